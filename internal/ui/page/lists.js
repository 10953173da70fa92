// Lists beside the map: which pods have to leave, and what happened; and the nodes as a table.

import {h, link, narrow, nodeLink, nodeTail, podLink, tail, text} from './dom.js';
import {age, clock, count, natural, percent, share, time} from './format.js';
import {Split, overdue} from './attention.js';
import {kindColour, kindNames, kindOf} from './colours.js';
import {List} from './list.js';
import {Budgets} from './budgets.js';
import {Drains} from './drains.js';
import {Picture, preemptions, victimOf} from './preempt.js';

export function blank(title, words) {
  return [h('strong', {}, title), h('span', {}, words)];
}

// tall is the height of rows with a name and a line of what there is to say of it: more if a name is long for one line.
export const tall = (usual, line = 0) => (rows) => (rows.some((r) => (r.namespace || '').length + (r.name || '').length > (line || (narrow.matches ? 18 : 28))) ? 74 : usual);

// Evictions is the pods that have to leave, the next one first.
export class Evictions {
  constructor(store, filters) {
    Object.assign(this, {store, filters});
    this.list = new List({
      label: 'Pods that have to leave their node', key: (p) => p.uid, height: (rows) => Math.max(tall(56)(rows), rows.some((p) => p.overdue) ? 112 : 0), name: 'evictions', sort: 'due',
      classOf: (p) => (p.overdue ? 'overdue' : p.going ? 'going' : ''),
      columns: [
        {key: 'pod', title: 'Pod and taint', width: 'minmax(0, 1fr)', sort: (p) => p.namespace + '/' + p.name, compare: natural, cell: (p) => this.#pod(p)},
        {key: 'node', title: 'Node', width: 'minmax(56px, 84px)', sort: (p) => p.node, compare: natural, cell: (p) => nodeTail(p.node)},
        {key: 'due', title: 'Leaves in', width: '84px', end: true, sort: (p) => p.due, cell: () => h('span', {class: 'countdown'}), tick: (p, e) => countdown(store, p, e.firstChild)},
      ],
      empty: () => (store.evictions.size ? blank('No leaving pod matches', 'Show all to see the others.') : blank('No pod has to leave', 'When a NoExecute taint sends pods away, or the guard holds their evictions, they are counted down here.')),
    });
    this.picture = new Picture(store);
    this.drains = new Drains(store);
    this.rows = new Map(); // as drawn, by UID
    this.split = new Split('evictions', (p) => p.overdue, () => this.update());
    this.element = h('div', {class: 'view'}, this.split.element, this.drains.element, this.picture.element, this.list.element, new Budgets().element);
  }

  #pod(p) {
    if (p.overdue) {
      return h('div', {class: 'two'}, h('div', {class: 'line'}, podLink(p.namespace, p.name), h('span', {class: 'chip warn'}, 'overdue')),
        h('div', {class: 'why both all', title: p.overdue.command}, p.overdue.words + '.'));
    }
    const {by} = p, why = by ? ['preempted by ', podLink(by.namespace, by.name)] : p.going ? 'being deleted' + (p.cause ? ': ' + p.cause : '') : p.held ? 'held: ' + p.held : p.taint;
    return h('div', {class: 'two'}, h('div', {class: 'line'}, podLink(p.namespace, p.name)), h('div', {class: 'line why', title: by ? null : why}, why));
  }

  update() {
    const list = preemptions(this.store), by = victimOf(list), rows = new Map();
    for (const p of this.store.evictions.values()) {
      if (!this.filters.pod(p) || p.held && this.store.now() - p.due > 600000) continue; // the evictor has given up
      const known = this.rows.get(p.uid); // the same object as long as it says the same
      const late = overdue(p, this.store), same = known?.row === p && known.by === by.get(p.uid) && known.overdue?.words === late?.words;
      rows.set(p.uid, same ? known : {...p, row: p, by: by.get(p.uid), overdue: late});
    }
    this.rows = rows;
    this.picture.update(list);
    this.drains.update();
    this.list.set(this.split.of(rows.values()));
    this.looked = Date.now();
  }

  tick() {
    if (Date.now() - this.looked > 2000) this.update(); // time alone makes pods overdue
    this.list.tick();
    this.picture.tick();
  }
}

export function countdown(store, p, element) {
  if (!element) return;
  const left = p.due - store.now(), late = left < 0 && overdue(p, store);
  text(element, late ? 'for ' + age(late.late) : p.going ? (left > 0 ? 'going ' + clock(left) : 'going') : left > 0 ? clock(left) : 'now');
  element.classList.toggle('soon', !p.going && left < 60000);
}

// Events is what happened last.
export class Events {
  constructor(store, filters) {
    Object.assign(this, {store, filters});
    this.list = new List({
      label: 'Events, the newest first', key: (e) => e.uid, height: tall(56), classOf: (e) => (e.warning ? 'warning' : ''),
      columns: [
        {key: 'what', title: 'What happened', width: 'minmax(0, 1fr)', cell: (e) => this.#event(e)},
        {key: 'at', title: 'When', width: '78px', end: true, cell: (e) => time(e.at)},
      ],
      empty: () => (store.events.length ? blank('No event matches', 'Show all to see the others.') : blank('Nothing has happened yet', 'Events of the cluster and changes of its nodes appear here as they happen.')),
    });
    this.element = h('div', {class: 'view'}, this.list.element);
  }

  #event(e) {
    const about = e.kind === 'Node' ? nodeLink(e.name) : e.kind === 'Pod' ? podLink(e.namespace, e.name) : h('span', {class: 'name'}, `${e.kind}/${e.name}`);
    return h('div', {class: 'two'},
      h('div', {class: 'line'}, h('span', {class: e.warning ? 'chip warn' : 'chip'}, e.reason), about, e.count > 1 ? h('span', {class: 'quiet'}, '×' + count(e.count)) : null),
      h('div', {class: 'line why', title: e.message}, e.message));
  }

  update() { this.list.set(this.store.events.filter((e) => this.filters.event(e))); }
  tick() {}
}

function meter(pair) {
  const part = share(pair);
  const bar = h('span', {class: 'meter', 'aria-hidden': 'true'}, h('i', {style: {width: Math.min(100, part * 100) + '%'}}));
  return h('span', {class: 'metered'}, bar, h('span', {}, percent(part)));
}

// NodeTable is the map as a table.
export class NodeTable {
  constructor(store, view, filters) {
    Object.assign(this, {store, view, filters});
    this.list = new List({
      label: 'Nodes', key: (n) => n.name, height: 34, name: 'nodes', sort: 'name', classOf: (n) => (view.marked && !view.marked.has(n.name) ? 'faded' : ''),
      columns: [
        {key: 'name', title: 'Node', width: 'minmax(110px, 2.2fr)', sort: (n) => n.name, compare: natural, cell: (n) => nodeTail(n.name)},
        {key: 'zone', title: 'Zone', width: 'minmax(44px, 0.7fr)', sort: (n) => n.zone, compare: natural, cell: (n) => (n.zone ? tail(n.zone) : '–')},
        {key: 'state', title: 'State', width: 'minmax(128px, 1fr)', sort: (n) => kindOf(n), cell: (n) => state(n)},
        {key: 'cpu', title: 'CPU requested', width: '106px', sort: (n) => share(n.cpu), cell: (n) => meter(n.cpu)},
        {key: 'memory', title: 'Memory requested', width: '122px', sort: (n) => share(n.memory), cell: (n) => meter(n.memory)},
        {key: 'pods', title: 'Pods', width: '56px', end: true, sort: (n) => n.pods[0], cell: (n) => count(n.pods[0])},
        {key: 'leaving', title: 'Leaving', width: '66px', end: true, sort: (n) => n.leaving, cell: (n) => (n.leaving ? count(n.leaving) : '')},
        {key: 'taints', title: 'Taints', width: 'minmax(80px, 2fr)', sort: (n) => n.taints.join(' '), cell: (n) => n.taints.join('  ')},
      ],
      empty: () => (store.nodes.size ? blank('No node matches', 'Show all nodes to see the others.') : blank('No nodes', 'The cluster has none, or they may not be read.')),
    });
    this.element = this.list.element;
  }

  update() {
    const only = this.filters.nodes;
    this.list.set([...this.store.nodes.values()].filter((n) => (!only || only.has(n.name)) && this.view.grouping.shows(n)));
  }
}

function state(n) {
  const kind = kindOf(n);
  const words = [n.ready !== 'True' ? 'not ready' : n.cordoned ? 'cordoned' : '', ...n.trouble].filter(Boolean).join(', ') || 'ready';
  return h('span', {class: 'state', title: kindNames[kind]}, h('i', {class: 'swatch', style: {background: kindColour(kind)}}), words);
}

export const tabs = (store) => [
  ['queue', 'Pending', () => store.summary?.pending || 0],
  ['evictions', 'Evictions', () => store.summary?.leaving || 0],
  ['events', 'Events', () => 0],
  ['history', 'History', () => 0],
  ['what-if', 'What if', () => 0],
].map(([id, title, n]) => ({id, title, href: link(id), n}));

