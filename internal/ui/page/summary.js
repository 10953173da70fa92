// The cluster in numbers, at the top, and what of it is wrong.

import {h, text} from './dom.js';
import {overdueCount} from './attention.js';
import {age, count, cpu, memory, percent, share} from './format.js';

// wall is the view for a screen on a wall: nobody points at anything there.
export const wall = new URLSearchParams(location.search).has('wall');

// oldest is how long the oldest pending pod has waited, in milliseconds; 0 without any.
function oldest(store) {
  let created = Infinity;
  for (const p of store.queue.values()) created = Math.min(created, p.created);
  return Math.max(0, store.now() - created) || 0;
}

const patience = 300000; // pods that are pending for longer are a problem: the scheduler has retried them by then

// problems are in a few words what somebody should look at: on the wall, the title lists them; the icon shows that there are some.
export function problems(store, lost) {
  const s = store.summary;
  if (!s) return [];
  return [lost ? 'outdated' : '', s.ready < s.nodes ? count(s.nodes - s.ready) + ' not ready' : '', s.astray ? count(s.astray) + ' on no node' : '',
    overdueCount(store) ? count(overdueCount(store)) + ' overdue' : '', oldest(store) > patience ? 'pending for ' + age(oldest(store)) : ''].filter(Boolean);
}

export function drawSummary(box, store) {
  const s = store.summary;
  let ready = s.ready === s.nodes ? 'all ready' : count(s.nodes - s.ready) + ' not ready';
  if (wall) ready = `${count(s.ready)} ready, ${count([...store.nodes.values()].filter((n) => n.ready === 'True' && !n.cordoned).length)} schedulable`;
  const late = overdueCount(store);
  const tiles = [
    ['Nodes', count(s.nodes), s.nodes ? ready : 'none', s.ready === s.nodes ? '' : 'bad'],
    ['Pods', count(s.pods), s.astray ? `on nodes, and ${count(s.astray)} on nodes that do not exist` : 'on nodes', s.astray ? 'bad' : ''],
    ['Pending', count(s.pending), !s.pending ? 'none' : wall && store.queue.size ? 'oldest ' + age(oldest(store)) : 'to be placed', s.pending ? 'warn' : ''],
    ['Leaving', count(s.leaving), late ? count(late) + ' overdue' : s.leaving ? 'to be evicted' : 'none', late ? 'bad' : s.leaving ? 'warn' : ''],
    ['CPU', percent(share(s.cpu)), `${cpu(s.cpu[0])} of ${cpu(s.cpu[1])}`, '', share(s.cpu)],
    ['Memory', percent(share(s.memory)), `${memory(s.memory[0])} of ${memory(s.memory[1])}`, '', share(s.memory)],
  ];
  while (box.children.length < tiles.length) {
    box.append(h('div', {class: 'tile'}, h('span', {class: 'label'}, '', h('span', {class: 'long'}, ' requested')), h('b', {}), h('span', {class: 'note'}), h('span', {class: 'meter', 'aria-hidden': 'true'}, h('i', {}))));
  }
  tiles.forEach(([label, value, note, kind, part], i) => {
    const [l, v, n, m] = box.children[i].children;
    text(l.firstChild, label); text(v, value); text(n, note);
    box.children[i].className = 'tile ' + kind;
    box.children[i].title = `${label}: ${value} ${note}`;
    m.hidden = l.lastChild.hidden = part === undefined;
    if (part !== undefined) m.firstChild.style.setProperty('width', Math.min(100, part * 100) + '%');
  });
}
