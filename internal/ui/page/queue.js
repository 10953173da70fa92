// The queue: a line per workload or pod group with what keeps its pods pending, which unfolds to the pods, in the order in which they are tried.

import {h, link, narrow, text, whole} from './dom.js';
import {age, count, natural, plural} from './format.js';
import {workloadOf} from './filters.js';
import {blank} from './lists.js';
import {List} from './list.js';
import {decisive, reasonOf} from './reasons.js';
import {read, write} from './address.js';

// Names come last and decide often: those of pods are compared plainly, since minding numbers in them takes ten times as long.
const before = (a, b) => b.priority - a.priority || a.created - b.created || (a.pods && b.pods ? natural(a.name, b.name) : a.name < b.name ? -1 : a.name > b.name ? 1 : 0);

const most = 5; // reasons that are seen at once

export class Queue {
  constructor(store, filters) {
    Object.assign(this, {store, filters});
    this.chosen = read('reason');
    this.open = new Set();
    this.groups = new Map(); // as drawn, by key: what has not changed keeps the focus
    this.reasons = h('div', {class: 'reasons', role: 'group', 'aria-label': 'Reasons'});
    this.list = new List({
      label: 'Pending pods by workload, in the order in which they are tried', key: (r) => r.key, height: 78, classOf: (r) => (r.within ? 'within' : ''),
      arrange: (groups, column, sign) => this.#arrange(groups, column, sign),
      columns: [
        {key: 'pod', title: 'Pending, and why', width: 'minmax(0, 1fr)', sort: (r) => r.name, compare: natural, cell: (r) => (r.pods ? this.#group(r) : this.#pod(r))},
        {key: 'priority', title: 'Priority', width: '58px', end: true, sort: (r) => r.priority, cell: (r) => count(r.priority)},
        {key: 'since', title: 'For', width: '46px', end: true, sort: (r) => -r.created, cell: () => '', tick: (r, e) => text(e, age(store.now() - r.created))},
      ],
      empty: () => (store.queue.size ? blank('No pending pod matches', 'Choose the reason once more, or show all, to see the others.') : blank('No pending pods', 'Every pod has a node.')),
    });
    this.element = h('div', {class: 'view'}, this.reasons, this.list.element);
  }

  #group(g) {
    const [kind, name] = g.together ? ['Pod group', g.name.replace(/^.*?\//, '')] : g.pods[0].workload.split(/\/(.*)/s);
    const made = [g.pods[0].namespace === 'default' ? '' : g.pods[0].namespace, kind].filter(Boolean).join(' · '), long = narrow.matches || name.length + made.length > 32;
    const button = h('button', {type: 'button', class: long ? 'fold long' : 'fold', 'aria-expanded': String(g.open), onclick: () => {
      this.open[g.open ? 'delete' : 'add'](g.key);
      this.update();
    }}, h('span', {class: 'arrow', 'aria-hidden': 'true'}, g.open ? '▾' : '▸'), h('span', {class: 'name'}, whole(name)), h('span', {class: 'chip', title: 'pending pods'}, count(g.pods.length)),
      h('span', {class: 'quiet kind'}, made));
    return h('div', {class: 'two'}, h('div', {class: 'line'}, button), h('div', {class: long ? 'why' : 'why both', title: g.why}, g.why));
  }

  #pod(r) {
    const p = r.pod;
    return h('div', {class: 'two'},
      h('div', {class: 'line'}, h('a', {href: link('pod', p.namespace, p.name), class: 'name wraps'}, whole(r.within || p.namespace === 'default' ? p.name : r.name))),
      h('div', {class: 'why both', title: p.message}, p.nominated ? h('span', {class: 'chip come'}, 'nominated to ' + p.nominated) : null, p.nominated ? ' ' : null, decisive(p)));
  }

  update() {
    const all = [...this.store.queue.values()].filter((p) => this.filters.pod(p));
    this.#reasons(all);
    const groups = new Map();
    for (const p of all) {
      if (this.chosen && reasonOf(p) !== this.chosen) continue;
      const name = workloadOf(p), key = p.group ? 'group ' + p.group : name ? 'workload ' + name : p.uid;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(p);
    }
    const drawn = new Map();
    for (const [key, pods] of groups) drawn.set(key, this.#row(key, pods));
    this.groups = drawn;
    this.list.element.dataset.pods = String(all.length);
    this.list.set(drawn.values());
  }

  // #row is the line of a pod group, of a workload, or of a pod that nothing made: the same object as long as it says the same.
  #row(key, pods) {
    const known = this.groups.get(key);
    const together = pods[0].group;
    if (!together && !workloadOf(pods[0])) return known?.pod === pods[0] ? known : podRow(pods[0], false);
    pods.sort(before);
    const tally = new Map();
    for (const p of pods) tally.set(reasonOf(p), (tally.get(reasonOf(p)) || 0) + 1);
    const first = [...tally].reduce((a, b) => (b[1] > a[1] || b[1] === a[1] && b[0] < a[0] ? b : a))[0];
    const common = decisive(pods.find((p) => reasonOf(p) === first)) + (tally.size > 1 ? ` · ${count(tally.size - 1)} more reason${tally.size > 2 ? 's' : ''}` : '');
    const why = together ? groupSays(this.store.groups.get(together), common) : common;
    const row = {key, together, name: together || workloadOf(pods[0]), pods, why, priority: pods[0].priority, created: Math.min(...pods.map((p) => p.created)), open: this.open.has(key), rows: new Map()};
    if (known?.pods && known.why === why && known.open === row.open && known.pods.length === pods.length && known.priority === row.priority && known.created === row.created) {
      known.pods = pods;
      return known;
    }
    row.rows = known?.rows || row.rows;
    return row;
  }

  // #arrange puts workloads where the first of their pods stands, and the pods of those that are unfolded below them.
  #arrange(groups, column, sign) {
    const by = column ? column.compare || ((a, b) => (a < b ? -1 : a > b ? 1 : 0)) : null;
    const order = by ? (a, b) => sign * by(column.sort(a), column.sort(b)) : before;
    return [...groups].sort(order).flatMap((g) => (g.open ? [g, ...this.#pods(g, by ? order : null)] : [g]));
  }

  #pods(g, order) {
    const rows = new Map(g.pods.map((p) => [p.uid, g.rows.get(p.uid)?.pod === p ? g.rows.get(p.uid) : podRow(p, true)]));
    g.rows = rows;
    return order ? [...rows.values()].sort(order) : [...rows.values()];
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

// groupSays is how far a pod group has come, and why it waits: its PodGroup's words, or what most of its pods are kept by.
function groupSays(group, common) {
  if (!group) return common;
  const placed = group.pods ? `${count(group.placed)} of ${plural(group.pods, 'pod')} placed` : '';
  return [placed, group.message || common].filter(Boolean).join(' · ');
}

function podRow(p, within) {
  return {key: p.uid, name: p.namespace + '/' + p.name, pod: p, priority: p.priority, created: p.created, within};
}
