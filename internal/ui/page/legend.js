// What colours and signs on the map mean.

import {h} from './dom.js';
import {count, cpu, memory, natural, plural, stranded} from './format.js';
import {podColours, priorityColour} from './blocks.js';
import {contrast, fill, freeColour, kindColour, kindNames, kindOf, signs, taintKind, workloadColour, zoneColour} from './colours.js';

const entry = (colour, words, sign) => h('span', {class: 'entry'}, h('i', {class: 'swatch', style: {background: colour, color: contrast(colour)}}, sign || ''), words);
const mark = (kind, words, sign) => h('span', {class: 'entry'}, h('i', {class: 'swatch ' + kind, 'aria-hidden': 'true'}, sign || ''), words);

// show replaces what is in the box, unless it is the same: nodes change many times a second, and what they mean seldom.
function show(box, ...children) {
  const next = h('div', {}, children), now = [...box.childNodes];
  if (now.length === next.childNodes.length && now.every((child, i) => child.isEqualNode(next.childNodes[i]))) return;
  box.replaceChildren(...next.childNodes);
}

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
    view.colour !== 'taint' && any((n) => n.cordoned) ? mark('sign', 'cordoned', signs.cordoned) : null,
    any((n) => n.trouble.length) ? mark('sign', 'pressure', signs.pressure) : null,
    view.colour === 'taint' ? null : ['noExecute', 'noSchedule', 'prefer'].map((kind) => (tainted.has(kind) ? mark('sign', kindNames[kind], signs[kind]) : null)),
    named,
  ];
  const ramp = (from, to) => h('span', {class: 'entry'}, from, h('span', {class: 'ramp', 'aria-hidden': 'true'}, Array.from({length: 24}, (_, i) => h('i', {style: {background: fill(i / 23)}}))), to);
  if (podColours.has(view.colour) && view.blocks) show(box, view.colour === 'workload' ? workloads(view) : priorities(view), also);
  else if (view.colour === 'fill' || podColours.has(view.colour)) show(box, ramp('0 %', '100 % requested'),
    podColours.has(view.colour) && any((n) => n.blocks) ? h('span', {class: 'entry'}, 'nodes are too small to show their pods') : null, also);
  else if (view.colour === 'stranded') {
    const all = nodes.filter((n) => n.ready === 'True' && !n.cordoned).map(stranded);
    const sum = (key) => all.reduce((total, s) => total + s[key], 0);
    show(box, ramp('0 %', '100 % left, but out of reach'), h('span', {class: 'entry'}, `Stranded in all: ${cpu(Math.round(sum('cpu')))} CPU, ${memory(sum('memory'))} of memory, for want of another resource`), also);
  } else if (view.colour === 'taint') {
    const counts = new Map();
    for (const node of nodes) {
      const kind = kindOf(node);
      counts.set(kind, (counts.get(kind) || 0) + 1);
    }
    show(box, Object.entries(kindNames).map(([kind, words]) => entry(kindColour(kind), `${words} ${count(counts.get(kind) || 0)}`, signs[kind])), also.flat().filter(Boolean));
  } else {
    const zones = [...new Set(nodes.map((n) => n.zone))].sort(natural);
    show(box, zones.slice(0, 12).map((zone, i) => entry(zoneColour(i), zone || 'no zone')), zones.length > 12 ? h('span', {class: 'entry'}, `and ${zones.length - 12} more`) : null, also);
  }
}

const most = 9; // entries that are read

function workloads({tally}) {
  const list = tally.workloads, named = list.filter(Boolean).slice(0, most), rest = list.filter(Boolean).length - named.length;
  return [
    named.map((key) => entry(workloadColour(key), key.replace(/^default\//, '').replace(/^([^/]*\/)?[A-Z][^/]*\//, '$1'))),
    list.includes('') ? entry(freeColour(), 'no workload') : null,
    rest ? h('span', {class: 'entry'}, `and ${plural(rest, 'more workload')}`) : null,
  ];
}

function priorities({tally}) {
  const list = tally.priorities;
  return [h('span', {class: 'entry'}, 'priority'), list.slice(0, most).map((p) => entry(priorityColour(p, list), count(p))),
    list.length > most ? h('span', {class: 'entry'}, `and ${plural(list.length - most, 'lower one')}`) : null];
}
