// Rolls and drains in progress: the current and the next node, and what blocks them. Rolls are recorded on their nodes; a drain is a
// cordoned node whose pods are being evicted, or which a drain reports to wait for.

import {h, keepFocus, link, nodeLink, podLink, replace} from './dom.js';
import {count, moment, natural, plural, time} from './format.js';
import {decisive} from './reasons.js';
import {ask} from './stream.js';

const kindOf = (spec) => (spec.strategy ? 'Deployment' : 'ReplicaSet'); // only these surge

const most = 5, mostWaits = 5; // nodes, and pods of a node, that are listed

// noteOf is the record of a roll on a node, or null.
function noteOf(node) {
  if (!node.roll) return null;
  try { return JSON.parse(node.roll); } catch { return null; }
}

// evictedFrom is the set of nodes that pods are leaving because of the API of evictions.
function evictedFrom(store) {
  const nodes = new Set();
  for (const p of store.evictions.values()) if (p.going && p.cause === 'EvictionByEvictionAPI') nodes.add(p.node);
  return nodes;
}

// waits lists the events of pods that a drain waits for, and that are not leaving yet.
function waits(store, node) {
  if (!node.waits) return [];
  const going = new Set([...store.evictions.values()].filter((p) => p.going && p.node === node.name).map((p) => p.namespace + '/' + p.name));
  return node.waits.filter((w) => !going.has(w.namespace + '/' + w.name));
}

// isDraining tells whether a node is being drained, in a roll or on its own.
export function isDraining(store, node, evicted = evictedFrom(store)) {
  return node.cordoned && (noteOf(node)?.state === 'turn' || evicted.has(node.name) || waits(store, node).length > 0);
}

// inProgress returns {rolls, drains}. A roll is {begun, done, total, turn, next, first}; turn, next and drains list nodes, and first names the next one.
export function inProgress(store) {
  const rolls = new Map(), evicted = evictedFrom(store), drains = [];
  for (const node of store.nodes.values()) {
    const note = noteOf(node);
    if (note?.begun && note.state !== 'complete') {
      if (!rolls.has(note.begun)) rolls.set(note.begun, {begun: note.begun, done: 0, total: 0, turn: [], next: []});
      const roll = rolls.get(note.begun);
      roll.total++;
      if (note.state === 'done') roll.done++;
      if (note.state === 'turn') { roll.turn.push(node); roll.first ||= note.next; }
      if (note.state === 'next') roll.next.push(node);
    }
    if (!['turn', 'next'].includes(note?.state) && isDraining(store, node, evicted)) drains.push(node);
  }
  const byName = (list) => list.sort((a, b) => natural(a.name, b.name));
  return {rolls: [...rolls.values()].filter((r) => r.turn.length || r.next.length).map((r) => ({...r, turn: byName(r.turn), next: byName(r.next)})), drains: byName(drains)};
}

// blocks lists what a drain of a node waits for, as {pod, words, at}: pods that may not leave yet, and pending replacements of those that left.
export function blocks(store, node) {
  const pending = new Map([...store.queue.values()].map((p) => [p.namespace + '/' + p.name, p]));
  return [
    ...waits(store, node).map((w) => ({pod: w, words: w.message, at: w.at})),
    ...[...store.departures.values()].filter((d) => d.node === node.name && d.next && !d.nextNode && pending.has(d.namespace + '/' + d.next)).map((d) => {
      const p = pending.get(d.namespace + '/' + d.next);
      return {pod: p, words: `replacement of ${d.name}, pending: ${decisive(p)}`, at: p.created};
    }),
  ];
}

export function drawBlocks(store, node) {
  const list = blocks(store, node), left = node.pods[0];
  return [h('div', {class: 'line'}, nodeLink(node.name), h('span', {class: 'quiet'}, ` ${plural(left, 'pod')} on it` + (node.leaving ? `, ${count(node.leaving)} leaving` : ''))),
    list.length ? h('ul', {class: 'plain blocks'}, list.slice(0, mostWaits).map((b) => h('li', {}, podLink(b.pod.namespace, b.pod.name), h('span', {class: 'quiet'}, ' since ' + time(b.at)), h('div', {class: 'why-text'}, b.words)))) : null,
    list.length > mostWaits ? h('p', {class: 'quiet'}, `and ${plural(list.length - mostWaits, 'more pod')}`) : null];
}

export class Drains {
  constructor(store) {
    this.store = store;
    this.content = h('div', {});
    this.surges = h('div', {'aria-live': 'polite'});
    this.element = h('section', {class: 'drains', 'aria-label': 'Rolls and drains in progress', hidden: true}, this.content,
      h('details', {ontoggle: (e) => { if (e.target.open) this.load(); }}, h('summary', {}, 'Surges, and room kept for replacements'), this.surges));
  }

  // update draws what has changed, so that the focus stays.
  update() {
    const {store} = this, {rolls, drains} = inProgress(store), shown = [...rolls.flatMap((r) => r.turn), ...drains];
    const drawn = JSON.stringify([rolls, drains, shown.map((n) => blocks(store, n))]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.element.hidden = !rolls.length && !drains.length;
    const nodes = (list) => [h('ul', {class: 'plain'}, list.slice(0, most).map((n) => h('li', {class: 'draining'}, drawBlocks(store, n)))), list.length > most ? h('p', {class: 'quiet'}, `and ${plural(list.length - most, 'more node')}`) : null];
    keepFocus(this.content, () => replace(this.content,
      rolls.map((r) => h('section', {class: 'roll'}, h('h2', {}, `Roll: ${count(r.done)} of ${plural(r.total, 'node')} done`, h('span', {class: 'quiet'}, ` since ${moment(Date.parse(r.begun))}`)),
        h('progress', {max: r.total, value: r.done, 'aria-label': 'Nodes done'}),
        r.turn.length ? [h('p', {class: 'label'}, 'Current'), nodes(r.turn)] : h('p', {class: 'quiet'}, 'No node has its turn: the next turn is being planned, or the roll was interrupted. The same command continues it.'),
        r.next.length ? h('p', {class: 'after'}, h('span', {class: 'label'}, 'Next '), nodeLink(r.first || r.next[0].name), r.next.length > 1 ? h('span', {class: 'quiet'}, ` and ${plural(r.next.length - 1, 'node')} after it`) : null) : null)),
      drains.length ? h('section', {class: 'roll'}, h('h2', {}, drains.length > 1 ? `Drains of ${plural(drains.length, 'node')}` : 'Drain'), nodes(drains)) : null));
  }

  // load reads the surges and the reservation, which are not part of the stream.
  async load() {
    replace(this.surges, h('p', {class: 'thinking'}, 'Reading workloads and the reservation …'));
    try {
      const {answer} = await ask('/api/objects'), rooms = JSON.parse(answer.room || '[]'), surges = answer.surges || [];
      replace(this.surges,
        surges.length ? h('ul', {class: 'plain'}, surges.map(({metadata: {namespace, name}, spec}) => h('li', {}, h('a', {class: 'name', href: link('workload', namespace, kindOf(spec), name)}, `${namespace}/${kindOf(spec)}/${name}`), h('span', {class: 'quiet'}, ' has one more replica until a pod has left')))) : h('p', {class: 'quiet'}, 'No workload has an additional replica.'),
        rooms.map((room) => h('p', {}, 'Room is kept on ', nodeLink(room.node), ' for the replacement of ', podLink(room.namespace, room.name), room.ahead ? ', which starts first.' : '.')),
        h('p', {class: 'source'}, `As of ${moment(Date.parse(answer.asOf))}. `, h('button', {type: 'button', class: 'small', onclick: () => this.load()}, 'Read again')));
    } catch (error) {
      replace(this.surges, h('p', {class: 'fault'}, error.message));
    }
  }
}
