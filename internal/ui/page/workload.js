// One workload: its pods, where they run, what its budgets allow, how far its rollout is, and a forecast of a drain.

import {h, keepFocus, link, narrow, nodeLink, nodeTail, podLink, replace} from './dom.js';
import {age, count, moment, natural, plural} from './format.js';
import {blank, countdown, tall} from './lists.js';
import {List} from './list.js';
import {budgetRow, covers, rolloutWords} from './budgets.js';
import {section} from './node.js';
import {decisive, reasonOf} from './reasons.js';
import {ask} from './stream.js';

const most = 12; // nodes that are listed at once

export class WorkloadView {
  // name is the workload's Kind/name.
  constructor(store, namespace, name, {back, whatIf, mark}) {
    Object.assign(this, {store, namespace, name, whatIf, mark});
    const [kind, own] = name.split(/\/(.*)/s);
    this.facts = h('div', {class: 'facts'});
    this.objects = h('div', {class: 'fact-group', 'aria-live': 'polite'});
    this.list = new List({
      label: 'Pods of ' + name, key: (p) => p.uid, height: (rows) => (narrow.matches ? 86 : tall(44, 16)(rows)), name: 'pods', sort: 'pod', classOf: (p) => (p.due ? 'leaving' : ''),
      columns: [
        {key: 'pod', title: 'Pod', width: 'minmax(0, 1fr)', sort: (p) => p.name, compare: natural, cell: (p) => h('div', {class: 'two'}, h('div', {class: 'line'}, podLink(p.namespace, p.name)),
          h('div', {class: 'line why'}, [p.status, age(store.now() - p.created) + ' old'].join(' · ')))},
        {key: 'node', title: 'Node', width: 'minmax(56px, 110px)', sort: (p) => p.node || '', compare: natural, cell: (p) => (p.node ? nodeTail(p.node) : 'pending')},
        {key: 'due', title: 'Leaves in', width: '92px', end: true, sort: (p) => p.due || Infinity, cell: (p) => (p.due ? h('span', {class: 'countdown'}) : ''),
          tick: (p, e) => { if (p.due) countdown(store, p, e.firstChild); }},
      ],
      empty: () => blank('No pods', 'The workload has none, or does not exist.'),
    });
    this.element = h('div', {class: 'view detail'}, h('div', {class: 'crumb'}, back, h('span', {class: 'quiet'}, kind)),
      h('div', {class: 'detail-head'}, h('h2', {}, h('span', {class: 'space'}, namespace + '/'), own)), this.facts, h('h3', {}, 'Pods'), this.list.element);
    this.load();
    this.read();
  }

  // load reads the pods, again when the cluster changes but not more than once a second.
  async load() {
    if (this.loading) { this.again = true; return; }
    this.loading = true;
    try {
      const chosen = await ask('/api/pods?' + new URLSearchParams({namespace: this.namespace, workload: this.name}));
      if (!this.closed) this.show(chosen);
    } catch (error) {
      if (!this.closed) replace(this.facts, h('p', {class: 'fault'}, error.message));
    }
    setTimeout(() => {
      this.loading = false;
      if (this.again && !this.closed) { this.again = false; this.load(); }
    }, 1000);
  }

  // read reads budgets and rollout, which takes as long as an explanation.
  async read() {
    replace(this.objects, h('p', {class: 'thinking'}, 'Reading budgets and rollout …'));
    try {
      const {answer} = await ask('/api/objects?' + new URLSearchParams({namespace: this.namespace, workload: this.name}));
      const budgets = (answer.budgets || []).filter((b) => covers(b, answer.workload));
      const rollout = answer.workload && rolloutWords(answer.workload);
      replace(this.objects,
        section('Budgets', budgets.length ? h('ul', {class: 'plain'}, budgets.map((b) => h('li', {}, budgetRow(b)))) : h('p', {class: 'quiet'}, answer.workload ? 'None: drains may evict all pods at the same time.' : `Not known: there is no ${this.name}, or it cannot be read.`)),
        rollout ? section('Rollout', rollout.map((words) => h('p', {}, words))) : null,
        h('p', {class: 'source'}, `Budgets${rollout ? ' and rollout' : ''} as of ${moment(Date.parse(answer.asOf))}. `, h('button', {type: 'button', class: 'small', onclick: () => this.read()}, 'Read again')));
    } catch (error) {
      replace(this.objects, h('p', {class: 'fault'}, error.message));
    }
  }

  show(chosen) {
    const {pods, nodes} = this.chosen = chosen;
    const placed = Object.entries(nodes).sort((a, b) => b[1] - a[1] || natural(a[0], b[0])), zones = new Map();
    for (const [node, n] of placed) {
      const zone = this.store.nodes.get(node)?.zone || 'no zone';
      zones.set(zone, (zones.get(zone) || 0) + n);
    }
    const pending = [...this.store.queue.values()].filter((p) => p.namespace === this.namespace && p.workload === this.name), reasons = new Map(pending.map((p) => [reasonOf(p), p]));
    this.mark(new Set(Object.keys(nodes)), (b) => b.ns === this.namespace && b.w === this.name);
    const drawn = JSON.stringify([placed, [...zones], pending.map((p) => p.uid), [...reasons.keys()]]);
    this.list.set(pods);
    if (drawn === this.drawn) return; // what has not changed keeps the focus
    this.drawn = drawn;
    keepFocus(this.facts, () => replace(this.facts,
      section('Where it runs', placed.length ? [
        h('p', {}, `${plural(placed.reduce((sum, [, n]) => sum + n, 0), 'pod')} on ${plural(placed.length, 'node')} in ${plural(zones.size, 'zone')}: `, [...zones].sort((a, b) => natural(a[0], b[0])).map(([zone, n]) => `${zone} ${count(n)}`).join(', ')),
        h('ul', {class: 'plain'}, placed.slice(0, most).map(([node, n]) => h('li', {}, nodeLink(node), ' ', h('span', {class: 'quiet'}, plural(n, 'pod')),
          h('button', {type: 'button', class: 'small', 'aria-label': `What if ${node} were drained?`, onclick: () => this.whatIf(`drain node/${node} --ignore-daemonsets --force`)}, 'What if it were drained?')))),
        placed.length > most ? h('p', {class: 'quiet'}, `and ${plural(placed.length - most, 'more node')}, which the map shows`) : null,
      ] : h('p', {class: 'quiet'}, 'No pod is on a node.')),
      pending.length ? section(`Pending: ${plural(pending.length, 'pod')}`, h('ul', {class: 'plain'}, [...reasons.values()].map((p) => h('li', {}, decisive(p)))),
        h('p', {}, h('a', {href: link('pod', pending[0].namespace, pending[0].name), class: 'name'}, 'Explain ' + pending[0].name))) : null,
      this.objects));
  }

  changed(detail) {
    if (detail.fresh && this.chosen) this.show(this.chosen); // zones and pending pods are known now
    if (detail.fresh || detail.queue || detail.evictions || detail.nodes.size) this.load();
  }
  tick() { this.list.tick(); }
  close() { this.closed = true; this.mark(null, null); }
}
