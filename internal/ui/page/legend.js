// What colours and signs on the map mean.

import {h, keepFocus, replace} from './dom.js';
import {count, cpu, memory, natural, plural, stranded} from './format.js';
import {podColours, priorityColour} from './blocks.js';
import {contrast, fill, freeColour, kindColour, kindNames, kindOf, signs, taintKind, workloadColour, zoneColour} from './colours.js';

const entry = (colour, words, sign) => h('span', {class: 'entry'}, h('i', {class: 'swatch', style: {background: colour, color: contrast(colour)}}, sign || ''), words);
const mark = (kind, words, sign) => h('span', {class: 'entry'}, h('i', {class: 'swatch ' + kind, 'aria-hidden': 'true'}, sign || ''), words);

// show replaces what is in the box, unless it is the same: nodes change many times a second, and what they mean seldom.
function show(box, ...children) {
  const next = h('div', {}, children), now = [...box.childNodes];
  if (now.length === next.childNodes.length && now.every((child, i) => child.isEqualNode(next.childNodes[i]))) return;
  keepFocus(box, () => box.replaceChildren(...next.childNodes));
}

// choice is an entry that filters the map and the lists.
const choice = (on, choose, ...parts) => h('button', {type: 'button', class: 'entry', 'aria-pressed': String(on), onclick: choose}, parts);
const swatch = (colour) => h('i', {class: 'swatch', style: {background: colour, color: contrast(colour)}});

// drawLegend explains the colours. The entries of workloads, namespaces and priorities set the filters.
export function drawLegend(box, store, view, filters) {
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
  if (podColours.has(view.colour) && view.blocks) show(box, {workload: workloads, namespace: namespaces, priority: priorities}[view.colour](view, filters), also);
  else if (view.colour === 'fill') show(box, ramp('0 %', '100 % requested'), also);
  else if (view.colour === 'stranded') {
    const all = nodes.filter((n) => n.ready === 'True' && !n.cordoned).map(stranded);
    const sum = (key) => all.reduce((total, s) => total + s[key], 0);
    show(box, ramp('0 %', '100 % left, but out of reach'), h('span', {class: 'entry'}, `Stranded in all: ${cpu(Math.round(sum('cpu')))} CPU, ${memory(sum('memory'))} of memory, for want of another resource`), also);
  } else if (view.colour === 'taint' || podColours.has(view.colour)) {
    const counts = new Map();
    for (const node of nodes) {
      const kind = kindOf(node);
      counts.set(kind, (counts.get(kind) || 0) + 1);
    }
    show(box, Object.entries(kindNames).map(([kind, words]) => entry(kindColour(kind), `${words} ${count(counts.get(kind) || 0)}`, signs[kind])), also.flat().filter(Boolean));
  } else {
    const {grouping} = view, zones = [...new Set(nodes.filter((n) => grouping.shows(n)).map((n) => grouping.of(n)))].sort(natural);
    show(box, zones.slice(0, 12).map((zone, i) => choice(grouping.zoomed === zone, () => grouping.zoom(zone), swatch(zoneColour(i)), zone || 'no ' + (grouping.key || 'zone'))), zones.length > 12 ? h('span', {class: 'entry'}, `and ${zones.length - 12} more`) : null, also);
  }
}

// drawUnseen explains why the chosen view cannot be drawn, and offers another one.
export function drawUnseen(box, store, view, choose) {
  const what = {workload: 'Workloads', namespace: 'Namespaces', priority: 'Priorities'}[view.colour];
  box.hidden = !what || view.blocks || view.shape !== 'map' || !store.summary?.pods || !view.drawn; // without pods there is nothing to draw
  const words = `${what} cannot be drawn: ${plural(store.nodes.size, 'node')} leave no room for pods. The map shows the state of the nodes; search and filters find pods.`;
  if (box.hidden || box.dataset.words === words) return;
  box.dataset.words = words;
  replace(box, h('span', {}, words), h('button', {type: 'button', class: 'small', onclick: choose}, 'Show requests'));
}

const most = 9; // entries that are read

// chooser makes entries that set one filter; a second click clears it.
const chooser = (filters, key) => (value, colour, words) => choice(filters[key] === value, () => filters.set({[key]: filters[key] === value ? '' : value}), swatch(colour), words);

function workloads({tally}, filters) {
  const list = tally.workloads, named = list.filter(Boolean).slice(0, most), rest = list.filter(Boolean).length - named.length, entryOf = chooser(filters, 'workload');
  return [
    named.map((key) => entryOf(key.replace(/^default\//, ''), workloadColour(key), key.replace(/^default\//, '').replace(/^([^/]*\/)?[A-Z][^/]*\//, '$1'))),
    list.includes('') ? entry(freeColour(), 'no workload') : null,
    rest ? h('span', {class: 'entry'}, `and ${plural(rest, 'more workload')}`, rest > 100 ? ': the view Namespaces groups them' : '') : null,
  ];
}

function namespaces({tally}, filters) {
  const list = tally.namespaces, entryOf = chooser(filters, 'namespace');
  return [list.slice(0, most).map((ns) => entryOf(ns, workloadColour(ns), ns)), list.length > most ? h('span', {class: 'entry'}, `and ${plural(list.length - most, 'more namespace')}`) : null];
}

function priorities({tally}, filters) {
  const list = tally.priorities, entryOf = chooser(filters, 'priority');
  return [h('span', {class: 'entry'}, 'priority'), list.slice(0, most).map((p) => entryOf(String(p), priorityColour(p, list), count(p))),
    list.length > most ? h('span', {class: 'entry'}, `and ${plural(list.length - most, 'lower one')}`) : null];
}
