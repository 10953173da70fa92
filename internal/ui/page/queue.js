// The queue: a line per workload, pod group or tree of groups with what keeps its pods pending, which unfolds to the pods, in the order in which they are tried.

import {h, link, narrow, text, whole} from './dom.js';
import {age, count, natural, plural} from './format.js';
import {workloadOf} from './filters.js';
import {Split, stuck} from './attention.js';
import {blank} from './lists.js';
import {List} from './list.js';
import {decisive, reasonOf} from './reasons.js';
import {read, write} from './address.js';
import {wall} from './summary.js';

// Names come last and decide often: those of pods are compared plainly, since minding numbers in them takes ten times as long.
const before = (a, b) => b.priority - a.priority || a.created - b.created || (a.pods && b.pods ? natural(a.name, b.name) : a.name < b.name ? -1 : a.name > b.name ? 1 : 0);

const most = 5; // reasons that are seen at once

export class Queue {
  constructor(store, filters) {
    Object.assign(this, {store, filters});
    this.chosen = read('reason');
    this.open = new Set();
    this.groups = new Map(); // as drawn, by key: what has not changed keeps the focus
    this.members = new Map(); // the same of what is in unfolded trees
    this.reasons = h('div', {class: 'reasons', role: 'group', 'aria-label': 'Reasons'});
    this.list = new List({
      label: 'Pending pods by workload, in the order in which they are tried', key: (r) => r.key, height: (rows) => (rows.some((r) => (r.name || '').length > 40) ? wall ? 126 : narrow.matches ? 116 : 98 : 78), name: 'queue', classOf: (r) => (r.within ? 'within' : ''),
      arrange: (groups, column, sign) => this.#arrange(groups, column, sign),
      columns: [
        {key: 'pod', title: 'Pending, and why', width: 'minmax(0, 1fr)', sort: (r) => r.name, compare: natural, cell: (r) => (r.pods ? this.#group(r) : this.#pod(r))},
        {key: 'priority', title: 'Priority', width: (rows) => `max(58px, ${longest(rows)}ch)`, end: true, sort: (r) => r.priority, cell: (r) => count(r.priority)},
        {key: 'since', title: 'For', width: '46px', end: true, sort: (r) => -r.created, cell: () => '', tick: (r, e) => text(e, age(store.now() - r.created))},
      ],
      empty: () => (store.queue.size ? blank('No pending pod matches', 'Clear the reason, or show all, to see the others.') : blank('No pending pods', 'Every pod has a node.')),
    });
    this.split = new Split('pending', stuck, () => this.update());
    this.element = h('div', {class: 'view'}, this.split.element, this.reasons, this.list.element);
  }

  #group(g) {
    const [kind, name] = g.kind ? [g.kind, g.name.replace(/^.*?\//, '')] : g.pods[0].workload.split(/\/(.*)/s);
    const namespace = g.kind ? g.name.replace(/\/.*$/s, '') : g.pods[0].namespace;
    const made = [namespace === 'default' || g.within ? '' : namespace, kind].filter(Boolean).join(' · '), long = narrow.matches || name.length + made.length > 32;
    const words = [h('span', {class: 'name'}, whole(name)), g.pods.length ? h('span', {class: 'chip', title: 'pending pods'}, count(g.pods.length)) : null, h('span', {class: 'quiet kind'}, made)];
    const head = g.pods.length ? h('button', {type: 'button', class: long ? 'fold long' : 'fold', 'aria-expanded': String(g.open), onclick: () => {
      this.open[g.open ? 'delete' : 'add'](g.key);
      this.update();
    }}, h('span', {class: 'arrow', 'aria-hidden': 'true'}, g.open ? '▾' : '▸'), words) : h('span', {class: 'fold'}, words);
    const to = g.kind === 'Pod group' ? link('group', namespace, name) : g.kind || !name ? null : link('workload', namespace, kind, name);
    const page = !to ? null : h('a', {href: to, class: 'small quiet page', 'aria-label': `Open ${kind} ${name}`}, 'Open');
    return h('div', {class: 'two', style: indent(g)}, h('div', {class: 'line'}, head, page), h('div', {class: long ? 'why' : 'why both', title: g.why}, nominatedTo(g.pods), g.why));
  }

  #pod(r) {
    const p = r.pod;
    return h('div', {class: 'two', style: indent(r)},
      h('div', {class: 'line'}, h('a', {href: link('pod', p.namespace, p.name), class: 'name wraps'}, whole(r.within || p.namespace === 'default' ? p.name : r.name))),
      h('div', {class: 'why both', title: p.message}, nominatedTo([p]), decisive(p)));
  }

  update() {
    const all = this.split.of([...this.store.queue.values()].filter((p) => this.filters.pod(p)));
    this.#reasons(all);
    const groups = new Map();
    for (const p of all) {
      if (this.chosen && reasonOf(p) !== this.chosen) continue;
      const name = workloadOf(p), tree = this.store.groups.get(p.group)?.tree;
      const key = tree ? 'tree ' + tree : p.group ? 'group ' + p.group : name ? 'workload ' + name : p.uid;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(p);
    }
    const drawn = new Map();
    for (const [key, pods] of groups) drawn.set(key, this.#row(key, pods));
    this.groups = drawn;
    this.list.element.dataset.pods = String(all.length);
    this.list.set(drawn.values());
  }

  // #row is the line of a tree, of a pod group, of a workload, or of a pod that nothing made: the same object as long as it says the same.
  #row(key, pods) {
    const known = this.groups.get(key), p = pods[0];
    if (!p.group && !workloadOf(p)) return known?.pod === p ? known : podRow(p, 0);
    const tree = this.store.groups.get(p.group)?.tree;
    if (tree) return this.#line(known, {key, tree, kind: 'Composite pod group', name: tree, pods, why: (common) => compositeSays(this.store.composites.get(tree), common)});
    if (p.group) return this.#line(known, {key, kind: 'Pod group', name: p.group, pods, why: (common) => groupSays(this.store.groups.get(p.group), common)});
    return this.#line(known, {key, name: workloadOf(p), pods, why: (common) => common});
  }

  // #line completes the line of some pods; why says what keeps them pending, given what keeps most of them. What is known stays if it says the same.
  #line(known, row) {
    row.pods.sort(before);
    row.why = row.why(commonOf(row.pods));
    row.priority = row.pods[0]?.priority ?? row.priority;
    row.created = row.pods.length ? Math.min(...row.pods.map((p) => p.created)) : row.created;
    row.open = this.open.has(row.key);
    row.said = [row.why, row.open, row.pods.length, row.priority, row.created, row.within, row.pods.map((p) => p.nominated).join(' ').trim()].join('\n');
    row.rows = known?.rows || new Map();
    if (known?.said !== row.said) return row;
    known.pods = row.pods;
    return known;
  }

  // #tree is what is below a composite pod group, the groups in it after the composite ones, with the pods of groups that are unfolded.
  #tree(top, key, within, order, seen, known) {
    const below = (table) => [...table.values()].filter((r) => r.parent === key && !seen.has(r)).sort((a, b) => natural(a.key, b.key));
    const line = (kind, r, pods, says) => {
      const row = this.#line(known.get(kind + r.key), {
        key: kind + ' ' + r.key, kind, name: r.key, within, pods, priority: top.priority, created: top.created, why: (common) => says(r, common),
      });
      seen.add(r);
      this.members.set(kind + r.key, row);
      return row;
    };
    return [...below(this.store.composites).flatMap((c) => [line('Composite pod group', c, [], compositeSays), ...this.#tree(top, c.key, within + 1, order, seen, known)]),
      ...below(this.store.groups).flatMap((g) => this.#unfold(line('Pod group', g, top.pods.filter((p) => p.group === g.key), groupSays), order))];
  }

  // #arrange puts workloads where the first of their pods stands, and the pods of those that are unfolded below them.
  #arrange(groups, column, sign) {
    const by = column ? column.compare || ((a, b) => (a < b ? -1 : a > b ? 1 : 0)) : null;
    const order = by ? (a, b) => sign * by(column.sort(a), column.sort(b)) : before;
    const known = this.members;
    this.members = new Map();
    return [...groups].sort(order).flatMap((g) => this.#unfold(g, by ? order : null, known));
  }

  // #unfold is a line and, if it is open, what it unfolds to.
  #unfold(g, order, known) {
    if (!g.open) return [g];
    if (g.tree) return [g, ...this.#tree(g, g.tree, 1, order, new Set([this.store.composites.get(g.tree)]), known)];
    const rows = new Map(g.pods.map((p) => [p.uid, g.rows.get(p.uid)?.pod === p ? g.rows.get(p.uid) : podRow(p, (g.within || 0) + 1)]));
    g.rows = rows;
    return [g, ...order ? [...rows.values()].sort(order) : rows.values()];
  }

  #reasons(pods) {
    const tally = new Map();
    for (const p of pods) tally.set(reasonOf(p), (tally.get(reasonOf(p)) || 0) + 1);
    if (this.chosen && this.store.queue.size && !tally.has(this.chosen)) this.#choose('');
    // Of reasons that are as frequent, the order is that of their words: the same each time.
    const all = [...tally].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)), top = this.unfolded ? all : all.slice(0, most);
    this.reasons.hidden = tally.size < 2;
    const drawn = JSON.stringify([top, this.chosen, all.length, this.unfolded]);
    if (drawn === this.drawn) return; // what has not changed keeps the focus
    this.drawn = drawn;
    this.reasons.replaceChildren(...top.map(([reason, n]) => h('button', {
      type: 'button', class: 'reason', 'aria-pressed': String(reason === this.chosen), title: reason,
      onclick: () => { this.#choose(reason === this.chosen ? '' : reason); this.update(); },
    }, h('b', {}, count(n)), ' ' + reason)), ...all.length > most ? [h('button', {type: 'button', class: 'reason more', 'aria-expanded': String(Boolean(this.unfolded)), onclick: () => {
      this.unfolded = !this.unfolded;
      this.update();
      this.reasons.querySelector('.more')?.focus();
    }}, this.unfolded ? 'Fewer' : `${count(all.length - most)} more`)] : []);
  }

  #choose(reason) {
    this.chosen = reason;
    write({reason});
  }

  tick() { this.list.tick(); }
}

// commonOf is what keeps most of some pods pending.
function commonOf(pods) {
  const tally = new Map();
  for (const p of pods) tally.set(reasonOf(p), (tally.get(reasonOf(p)) || 0) + 1);
  if (!tally.size) return '';
  const first = [...tally].reduce((a, b) => (b[1] > a[1] || b[1] === a[1] && b[0] < a[0] ? b : a))[0];
  return decisive(pods.find((p) => reasonOf(p) === first)) + (tally.size > 1 ? ` · ${count(tally.size - 1)} more reason${tally.size > 2 ? 's' : ''}` : '');
}

// groupSays is how far a pod group has come, and why it waits: its PodGroup's words, or what most of its pods are kept by.
function groupSays(group, common) {
  if (!group) return common;
  const needed = group.tree && group.needed > 1 ? `, ${count(group.needed)} needed at once` : '';
  const placed = group.pods ? `${count(group.placed)} of ${plural(group.pods, 'pod')} placed${needed}` : '';
  return [placed, group.message || common].filter(Boolean).join(' · ');
}

// compositeSays is the same of a composite pod group: of the groups in it, how many have on nodes what they ask for.
function compositeSays(composite, common) {
  if (!composite) return common;
  const needed = composite.needed > 1 ? `, ${count(composite.needed)} needed at once` : '';
  return [`${count(composite.placed)} of ${plural(composite.groups, 'group')} placed${needed}`, composite.message || common].filter(Boolean).join(' · ');
}

// longest is the number of characters of the longest priority, which is never cut.
const longest = (rows) => rows.reduce((most, r) => Math.max(most, count(r.priority).length), 0);

// nominatedTo names the nodes to which pods are nominated, at most two.
function nominatedTo(pods) {
  const some = pods.filter((p) => p.nominated), nodes = [...new Set(some.map((p) => p.nominated))].sort(natural);
  if (!nodes.length) return null;
  const names = nodes.slice(0, 2).join(', ') + (nodes.length > 2 ? ` and ${count(nodes.length - 2)} more` : '');
  return [h('span', {class: 'chip come'}, (pods.length > 1 ? count(some.length) + ' ' : '') + 'nominated to ' + names), ' '];
}

// indent sets off what is in a tree by its level; the first level is set off as the pods of a workload are.
function indent(row) { return row.within > 1 ? {'margin-left': 18 * (row.within - 1) + 'px'} : {}; }

function podRow(p, within) {
  return {key: p.uid, name: p.namespace + '/' + p.name, pod: p, priority: p.priority, created: p.created, within};
}
