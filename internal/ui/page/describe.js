// A node in a sentence, for those who do not see the map.

import {amount, count, cpu, memory, percent, plural, share, stranded} from './format.js';

// describePod is a pod in a node, in a few words each.
export function describePod(pod, node) {
  const others = Object.entries(pod.o || {}).map(([name, n]) => `${amount(name, n)} ${name}`);
  const requests = [pod.c ? cpu(pod.c) + ' CPU' : '', pod.m ? memory(pod.m) : '', ...others].filter(Boolean);
  return [
    pod.w ? pod.w.replace('/', ' ') : '', pod.ns === 'default' ? '' : 'namespace ' + pod.ns, 'on ' + node.name,
    requests.length ? 'requests ' + requests.join(', ') : 'requests nothing', 'priority ' + count(pod.p || 0), pod.l ? 'leaves' : '',
  ].filter(Boolean);
}

export function describe(node, change) {
  const words = [node.name, node.zone ? 'zone ' + node.zone : 'no zone'];
  words.push(node.ready === 'True' ? 'ready' : node.ready === undefined ? 'new' : 'not ready');
  if (node.cordoned) words.push('cordoned');
  words.push(`CPU ${percent(share(node.cpu))} of ${cpu(node.cpu[1])} requested`, `memory ${percent(share(node.memory))} of ${memory(node.memory[1])} requested`);
  for (const [name, [requested, all]] of Object.entries(node.others || {})) words.push(`${name} ${amount(name, requested)} of ${amount(name, all)} requested`);
  words.push(plural(node.pods[0], 'pod') + ' of ' + node.pods[1]);
  words.push(node.taints.length ? 'taints ' + node.taints.join(' and ') : 'no taints');
  if (node.trouble?.length) words.push('conditions ' + node.trouble.join(' and '));
  const room = stranded(node);
  if (room.part >= 0.25) words.push(room.cpu > 0 ? `${cpu(room.cpu)} CPU stranded` : `${memory(room.memory)} of memory stranded`);
  if (node.leaving) words.push(plural(node.leaving, 'pod') + ' leaving');
  if (change) {
    if (change.removed) words.push('in the forecast: removed');
    else if (change.out || change.in) words.push(`in the forecast: ${plural(change.out, 'pod')} out, ${change.in} in`);
  }
  return words.join(', ');
}
