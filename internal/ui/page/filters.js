// What is shown of all there is: pods by namespace, priority and workload, nodes by label and taint. It stands in the address.

import {h, paced, replace} from './dom.js';
import {count, natural, plural} from './format.js';
import {read, write} from './address.js';
import {ask} from './stream.js';

export class Filters extends EventTarget {
  constructor(store) {
    super();
    this.store = store;
    this.nodes = null; // names of the nodes that match; null: all do
    this.holders = null; // names of the nodes with pods that match; null: the pods are not filtered, or are drawn
    this.tally = null; // what there is on nodes to filter by
    this.fault = '';
    this.selects = Object.fromEntries(['namespace', 'priority', 'workload'].map((key) => [key, h('select', {
      'aria-label': {namespace: 'Namespace', priority: 'Priority', workload: 'Workload'}[key], onchange: (e) => this.set({[key]: e.target.value}),
    })]));
    this.bar = h('div', {class: 'filters', role: 'group', 'aria-label': 'Filters of pods'}, Object.values(this.selects),
      this.clear = h('button', {type: 'button', class: 'small', hidden: true, onclick: () => this.set({namespace: '', priority: '', workload: ''})}, 'Show all'));
    this.labels = h('input', {type: 'search', spellcheck: 'false', autocomplete: 'off', placeholder: 'Node labels: zone=a, !gpu', 'aria-label': 'Show nodes with these labels, as kubectl -l',
      onchange: (e) => this.set({labels: e.target.value.trim()})});
    this.chip = h('span', {class: 'selected', role: 'status'});
    this.nodeBar = h('div', {class: 'node-filter'}, this.labels, this.chip);
    this.renew = paced(2000, () => this.select());
    this.load();
  }

  // load takes what the address says.
  load() {
    for (const key of ['namespace', 'priority', 'workload', 'taint']) this[key] = read(key);
    this.selector = this.labels.value = read('labels');
    this.#draw();
    this.select();
    if (this.only) this.hold();
  }

  set(values) {
    write(values);
    for (const [key, value] of Object.entries(values)) {
      if (key === 'labels') this.selector = this.labels.value = value;
      else this[key] = value;
    }
    this.#draw();
    if ('labels' in values || 'taint' in values) this.select();
    else this.dispatchEvent(new Event('change'));
    this.hold();
  }

  // block tells whether a pod on a node is to be shown; only is that test, or null if it accepts all.
  block(b) {
    return (!this.namespace || b.ns === this.namespace) && (!this.priority || String(b.p || 0) === this.priority) &&
      (!this.workload || workloadOf({namespace: b.ns, workload: b.w}) === this.workload);
  }

  get only() { return this.namespace || this.priority || this.workload ? (b) => this.block(b) : null; }

  // hold asks which nodes have the pods, where the page does not know because pods are not drawn.
  async hold() {
    const {namespace, priority, workload, only} = this, [own, kind, name] = workload.split('/').length > 2 ? workload.split('/') : [workload ? 'default' : '', ...workload.split('/')];
    const held = only ? await ask('/api/pods?' + new URLSearchParams({namespace: namespace || own, priority, workload: kind && name ? kind + '/' + name : ''})).catch(() => null) : null;
    if (namespace !== this.namespace || priority !== this.priority || workload !== this.workload) return; // another question was put meanwhile
    this.holders = held && new Set(Object.keys(held.nodes));
    this.heldAt = Date.now();
    this.#draw();
    this.dispatchEvent(new Event('change'));
  }

  // pod tells whether a pending or leaving pod is to be shown.
  pod(p) {
    return (!this.namespace || p.namespace === this.namespace) && (!this.priority || String(p.priority) === this.priority) &&
      (!this.workload || workloadOf(p) === this.workload) && (!this.nodes || !p.node || this.nodes.has(p.node));
  }

  // event tells whether an event is to be shown. Its pod, or the workload that it is about, must pass the filters of pods, and its node
  // those of nodes.
  event(e) {
    const workload = workloadOf({namespace: e.namespace, workload: e.workload || (e.kind !== 'Pod' && e.kind !== 'Node' ? e.kind + '/' + e.name : '')}), node = e.kind === 'Node' ? e.name : e.node;
    return (!this.namespace || e.namespace === this.namespace) && (!this.workload || workload === this.workload) &&
      (!this.priority || e.kind === 'Pod' && String(e.priority || 0) === this.priority) && (!this.nodes || !node || this.nodes.has(node));
  }

  // select asks which nodes have the labels and the taint.
  async select() {
    const labels = this.selector, taint = this.taint;
    this.marked = this.store.summary?.marked;
    this.fault = '';
    let nodes = null;
    if (labels || taint) {
      try {
        nodes = new Set((await ask('/api/select?' + new URLSearchParams({labels, taint}))).nodes);
      } catch (error) {
        this.fault = error.message;
      }
      if (labels !== this.selector || taint !== this.taint) return; // another question was put meanwhile
    }
    this.nodes = nodes;
    this.#draw();
    this.dispatchEvent(new Event('change'));
  }

  // update offers what there is to filter by, and looks up the nodes anew if their labels may have changed.
  update() {
    if ((this.selector || this.taint) && this.store.summary && this.marked !== this.store.summary.marked) this.renew();
    if (this.only && this.store.summary && Date.now() - (this.heldAt || 0) > 5000) { this.heldAt = Date.now(); this.hold(); }
    const seen = {namespace: new Map(), priority: new Map(), workload: new Map()};
    const add = (key, value) => { if (value !== '') seen[key].set(value, (seen[key].get(value) || 0) + 1); };
    for (const table of [this.store.queue, this.store.evictions]) {
      for (const p of table.values()) { add('namespace', p.namespace); add('priority', String(p.priority)); add('workload', workloadOf(p)); }
    }
    for (const ns of this.tally?.namespaces || []) add('namespace', ns);
    for (const p of this.tally?.priorities || []) add('priority', String(p));
    for (const w of this.tally?.workloads || []) add('workload', w.replace(/^default\//, ''));
    for (const [key, title] of [['namespace', 'All namespaces'], ['priority', 'All priorities'], ['workload', 'All workloads']]) {
      const options = [...seen[key].keys()].sort(key === 'priority' ? (a, b) => b - a : natural).slice(0, 500);
      if (this[key] && !options.includes(this[key])) options.unshift(this[key]);
      const drawn = JSON.stringify([options, this[key]]);
      if (drawn === this.selects[key].dataset.drawn) continue;
      this.selects[key].dataset.drawn = drawn;
      replace(this.selects[key], h('option', {value: ''}, title), options.map((o) => h('option', {value: o, selected: o === this[key]}, key === 'priority' ? 'Priority ' + count(Number(o)) : o)));
    }
  }

  #draw() {
    this.clear.hidden = !this.namespace && !this.priority && !this.workload;
    for (const key of ['namespace', 'priority', 'workload']) {
      this.selects[key].classList.toggle('on', Boolean(this[key]));
      delete this.selects[key].dataset.drawn;
    }
    this.update();
    const parts = [];
    if (this.taint) parts.push(h('button', {type: 'button', class: 'small', 'aria-label': 'Show nodes without this taint, too', onclick: () => this.set({taint: ''})}, 'taint ' + this.taint + ' ✕'));
    if (this.holders) parts.push(h('span', {class: 'quiet'}, this.holders.size ? plural(this.holders.size, 'node') + ' with these pods' : 'no node has these pods'));
    if (this.fault) parts.push(h('span', {class: 'bad'}, this.fault));
    else if (this.nodes) parts.push(h('span', {class: 'quiet'}, plural(this.nodes.size, 'node')));
    if (this.selector) parts.push(h('button', {type: 'button', class: 'small', onclick: () => this.set({labels: ''})}, 'All nodes'));
    replace(this.chip, parts);
  }
}

// workloadOf is how a pod's workload is called, with its namespace unless that is the default one; '' for a pod that nothing made.
export function workloadOf(p) {
  if (!p.workload) return '';
  return (p.namespace === 'default' ? '' : p.namespace + '/') + p.workload;
}
