// What colours and signs on the map mean.

import {h, replace} from './dom.js';
import {count, cpu, memory, natural, stranded} from './format.js';
import {contrast, fill, kindColour, kindNames, kindOf, signs, taintKind, zoneColour} from './colours.js';

const entry = (colour, words, sign) => h('span', {class: 'entry'}, h('i', {class: 'swatch', style: {background: colour, color: contrast(colour)}}, sign || ''), words);
const mark = (kind, words, sign) => h('span', {class: 'entry'}, h('i', {class: 'swatch ' + kind, 'aria-hidden': 'true'}, sign || ''), words);

export function drawLegend(box, store, view) {
  box.hidden = view.shape !== 'map' || !store.nodes.size;
  if (box.hidden) return;
  const nodes = [...store.nodes.values()];
  const any = (is) => nodes.some(is);
  const tainted = new Set(view.colour === 'taint' ? [] : nodes.map((n) => taintKind(n.taints)));
  const named = view.common && (view.common.before || view.common.after)
    ? h('span', {class: 'entry'}, 'names: ', h('code', {}, `${view.common.before}…${view.common.after}`)) : null;
  // Signs that stand on a node whatever the colours mean, those that there are.
  const also = [
    any((n) => n.leaving) ? mark('corner', 'pods leaving') : null,
    any((n) => n.ready !== 'True') ? mark('hatched', 'not ready') : null,
    any((n) => n.cordoned) ? mark('sign', 'cordoned', signs.cordoned) : null,
    any((n) => n.trouble.length) ? mark('sign', 'pressure', signs.pressure) : null,
    view.colour === 'taint' ? null : ['noExecute', 'noSchedule', 'prefer'].map((kind) => (tainted.has(kind) ? mark('sign', kindNames[kind], signs[kind]) : null)),
    named,
  ];
  const ramp = (from, to) => h('span', {class: 'entry'}, from, h('span', {class: 'ramp', 'aria-hidden': 'true'}, Array.from({length: 24}, (_, i) => h('i', {style: {background: fill(i / 23)}}))), to);
  if (view.colour === 'fill') replace(box, ramp('0 %', '100 % requested'), also);
  else if (view.colour === 'stranded') {
    const all = nodes.filter((n) => n.ready === 'True' && !n.cordoned).map(stranded);
    const sum = (key) => all.reduce((total, s) => total + s[key], 0);
    replace(box, ramp('0 %', '100 % left, but out of reach'), h('span', {class: 'entry'}, `Stranded in all: ${cpu(Math.round(sum('cpu')))} CPU, ${memory(sum('memory'))} of memory, for want of another resource`), also);
  } else if (view.colour === 'taint') {
    const counts = new Map();
    for (const node of nodes) {
      const kind = kindOf(node);
      counts.set(kind, (counts.get(kind) || 0) + 1);
    }
    replace(box, Object.entries(kindNames).map(([kind, words]) => entry(kindColour(kind), `${words} ${count(counts.get(kind) || 0)}`, signs[kind])), also.flat().filter(Boolean));
  } else {
    const zones = [...new Set(nodes.map((n) => n.zone))].sort(natural);
    replace(box, zones.slice(0, 12).map((zone, i) => entry(zoneColour(i), zone || 'no zone')), zones.length > 12 ? h('span', {class: 'entry'}, `and ${zones.length - 12} more`) : null, also);
  }
}
