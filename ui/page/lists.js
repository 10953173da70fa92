// The lists beside the map: who waits, who has to leave, and what happened; and the nodes as a table.

import {h, link, nodeLink, podLink, text} from './dom.js';
import {age, clock, count, natural, percent, share, time} from './format.js';
import {kindColour, kindNames, kindOf} from './colours.js';
import {List} from './list.js';

export function blank(title, words) {
  return [h('strong', {}, title), h('span', {}, words)];
}

// Queue is the pods that wait, in the order in which the scheduler takes them, and the reasons with how many each holds up.
export class Queue {
  constructor(store) {
    this.store = store;
    this.chosen = '';
    this.reasons = h('div', {class: 'reasons', 'aria-label': 'Reasons'});
    this.list = new List({
      label: 'Pods that wait, in the order in which they are tried', key: (p) => p.uid, height: 74, classOf: () => 'taller',
      columns: [
        {key: 'pod', title: 'Pod and why it waits', width: 'minmax(0, 1fr)', sort: (p) => p.namespace + '/' + p.name, compare: natural, cell: (p) => this.#pod(p)},
        {key: 'priority', title: 'Priority', width: '76px', end: true, sort: (p) => p.priority, cell: (p) => count(p.priority)},
        {key: 'waits', title: 'Waits', width: '64px', end: true, sort: (p) => -p.created, cell: () => '', tick: (p, e) => text(e, age(store.now() - p.created))},
      ],
      empty: () => (store.queue.size ? blank('None for this reason', 'Choose the reason once more to see all.') : blank('Nobody waits', 'Every pod has a node.')),
    });
    this.element = h('div', {class: 'view'}, this.reasons, this.list.element);
  }

  #pod(p) {
    return h('div', {class: 'two'},
      h('div', {class: 'line'}, podLink(p.namespace, p.name), p.nominated ? h('span', {class: 'chip come'}, 'nominated to ' + p.nominated) : null),
      h('div', {class: 'why both', title: p.message}, shortened(p)));
  }

  update() {
    const groups = new Map();
    for (const p of this.store.queue.values()) {
      const reason = reasonOf(p);
      groups.set(reason, (groups.get(reason) || 0) + 1);
    }
    if (this.chosen && !groups.has(this.chosen)) this.chosen = '';
    const top = [...groups].sort((a, b) => b[1] - a[1]).slice(0, 6);
    this.reasons.hidden = groups.size < 2;
    const drawn = JSON.stringify([top, this.chosen]);
    if (drawn !== this.drawn) this.reasons.replaceChildren(...top.map(([reason, n]) => h('button', {
      type: 'button', class: 'reason', 'aria-pressed': String(reason === this.chosen),
      onclick: () => { this.chosen = reason === this.chosen ? '' : reason; this.update(); },
    }, h('b', {}, count(n)), ' ' + reason)));
    this.drawn = drawn; // what has not changed keeps the focus
    const rows = [...this.store.queue.values()].filter((p) => !this.chosen || reasonOf(p) === this.chosen);
    if (!this.list.sort) rows.sort((a, b) => b.priority - a.priority || a.created - b.created || natural(a.name, b.name));
    this.list.set(rows);
  }

  tick() { this.list.tick(); }
}

// shortened is the scheduler's message without what is said in every one.
function shortened(p) {
  if (!p.message) return p.reason || 'not tried yet';
  return p.message.replace(/^0\/(\d+) nodes are available: /, 'none of $1 nodes: ').replace(/\.? ?preemption: .*$/, '.');
}

// reasonOf is what a message has in common with others: the reason of most nodes, without numbers and names.
export function reasonOf(p) {
  if (!p.message) return p.reason || 'not tried yet';
  const reasons = p.message.replace(/^0\/\d+ nodes are available: /, '').replace(/\. ?(preemption|no new claims).*$/, '').split(/, (?=\d+ )/);
  const most = reasons.reduce((a, b) => ((parseInt(b, 10) || 0) > (parseInt(a, 10) || 0) ? b : a));
  return most.replace(/^\d+ /, '').replace(/\{[^}]*\}/g, '').replace(/\s+/g, ' ').replace(/[.\s]+$/, '').trim();
}

// Evictions is the pods that have to leave, the next one first.
export class Evictions {
  constructor(store) {
    this.store = store;
    this.list = new List({
      label: 'Pods that have to leave their node', key: (p) => p.uid, height: 56, sort: 'due', classOf: (p) => (p.going ? 'tall going' : 'tall'),
      columns: [
        {key: 'pod', title: 'Pod and what sends it away', width: 'minmax(0, 1fr)', sort: (p) => p.namespace + '/' + p.name, compare: natural, cell: (p) => this.#pod(p)},
        {key: 'node', title: 'Node', width: 'minmax(56px, 92px)', sort: (p) => p.node, compare: natural, cell: (p) => nodeLink(p.node)},
        {key: 'due', title: 'Leaves in', width: '84px', end: true, sort: (p) => p.due, cell: () => h('span', {class: 'countdown'}), tick: (p, e) => countdown(store, p, e.firstChild)},
      ],
      empty: () => blank('Nobody has to leave', 'When a NoExecute taint sends pods away, they are counted down here.'),
    });
    this.element = h('div', {class: 'view'}, this.list.element);
  }

  #pod(p) {
    const why = p.going ? 'told to go' + (p.cause ? ': ' + p.cause : '') : p.taint;
    return h('div', {class: 'two'}, h('div', {class: 'line'}, podLink(p.namespace, p.name)), h('div', {class: 'line why', title: why}, why));
  }

  update() { this.list.set(this.store.evictions.values()); }
  tick() { this.list.tick(); }
}

export function countdown(store, p, element) {
  if (!element) return;
  const left = p.due - store.now();
  text(element, p.going ? (left > 0 ? 'going ' + clock(left) : 'going') : left > 0 ? clock(left) : 'now');
  element.classList.toggle('soon', !p.going && left < 60000);
}

// Events is what happened last.
export class Events {
  constructor(store) {
    this.store = store;
    this.list = new List({
      label: 'Events, the newest first', key: (e) => e.uid, height: 56, classOf: (e) => (e.warning ? 'tall warning' : 'tall'),
      columns: [
        {key: 'what', title: 'What happened', width: 'minmax(0, 1fr)', cell: (e) => this.#event(e)},
        {key: 'at', title: 'When', width: '78px', end: true, cell: (e) => time(e.at)},
      ],
      empty: () => blank('Nothing has happened yet', 'Events of the cluster and changes of its nodes appear here as they happen.'),
    });
    this.element = h('div', {class: 'view'}, this.list.element);
  }

  #event(e) {
    const about = e.kind === 'Node' ? nodeLink(e.name) : e.kind === 'Pod' ? podLink(e.namespace, e.name) : h('span', {class: 'name'}, `${e.kind}/${e.name}`);
    return h('div', {class: 'two'},
      h('div', {class: 'line'}, h('span', {class: e.warning ? 'chip warn' : 'chip'}, e.reason), about, e.count > 1 ? h('span', {class: 'quiet'}, '×' + count(e.count)) : null),
      h('div', {class: 'line why', title: e.message}, e.message));
  }

  update() { this.list.set(this.store.events); }
  tick() {}
}

function meter(pair) {
  const part = share(pair);
  const bar = h('span', {class: 'meter', 'aria-hidden': 'true'}, h('i', {style: {width: Math.min(100, part * 100) + '%'}}));
  return h('span', {class: 'metered'}, bar, h('span', {}, percent(part)));
}

// NodeTable is the map as a table.
export class NodeTable {
  constructor(store, view) {
    this.store = store;
    this.view = view;
    this.list = new List({
      label: 'Nodes', key: (n) => n.name, height: 34, sort: 'name', classOf: (n) => (view.marked && !view.marked.has(n.name) ? 'faded' : ''),
      columns: [
        {key: 'name', title: 'Node', width: 'minmax(90px, 1.4fr)', sort: (n) => n.name, compare: natural, cell: (n) => nodeLink(n.name)},
        {key: 'zone', title: 'Zone', width: 'minmax(44px, 0.7fr)', sort: (n) => n.zone, compare: natural, cell: (n) => n.zone || '–'},
        {key: 'state', title: 'State', width: 'minmax(84px, 1fr)', sort: (n) => kindOf(n), cell: (n) => state(n)},
        {key: 'cpu', title: 'CPU', width: '106px', sort: (n) => share(n.cpu), cell: (n) => meter(n.cpu)},
        {key: 'memory', title: 'Memory', width: '106px', sort: (n) => share(n.memory), cell: (n) => meter(n.memory)},
        {key: 'pods', title: 'Pods', width: '56px', end: true, sort: (n) => n.pods[0], cell: (n) => count(n.pods[0])},
        {key: 'leaving', title: 'Leaving', width: '66px', end: true, sort: (n) => n.leaving, cell: (n) => (n.leaving ? count(n.leaving) : '')},
        {key: 'taints', title: 'Taints', width: 'minmax(80px, 2fr)', sort: (n) => n.taints.join(' '), cell: (n) => n.taints.join('  ')},
      ],
      empty: () => blank('No nodes', 'The cluster has none, or they may not be read.'),
    });
    this.element = this.list.element;
  }

  update() { this.list.set(this.store.nodes.values()); }
}

function state(n) {
  const kind = kindOf(n);
  const words = n.ready !== 'True' ? 'not ready' : n.cordoned ? 'cordoned' : n.trouble.length ? n.trouble.join(', ') : 'ready';
  return h('span', {class: 'state', title: kindNames[kind]}, h('i', {class: 'swatch', style: {background: kindColour(kind)}}), words);
}

export const tabs = (store) => [
  ['queue', 'Queue', () => store.summary?.pending || 0],
  ['evictions', 'Evictions', () => store.summary?.leaving || 0],
  ['events', 'Events', () => 0],
  ['what-if', 'What if', () => 0],
].map(([id, title, n]) => ({id, title, href: link(id), n}));

