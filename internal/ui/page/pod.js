// One pod: why it is where it is, or why it waits, or when it has to go; and what would help.

import {breakable, h, link, nodeLink, nodeTail, podLink, replace, text} from './dom.js';
import {clock, count, moment, plural, span, stopped} from './format.js';
import {section} from './node.js';
import {lateness, overdue} from './attention.js';
import {Requests} from './devices.js';
import {Picture} from './preempt.js';
import {question} from './stream.js';

const mostScored = 100; // nodes in the table of scores

export class PodView {
  constructor(store, namespace, name, {back, whatIf, mark, locate}) {
    Object.assign(this, {store, namespace, name, whatIf, mark, locate});
    this.title = h('h2', {}, h('span', {class: 'space'}, namespace + '/'), name);
    this.stale = h('div', {class: 'stale', role: 'status', hidden: true}, 'The pod has changed since. ',
      h('button', {type: 'button', class: 'small', onclick: () => this.load()}, 'Explain again'));
    this.answer = h('div', {class: 'facts', 'aria-live': 'polite'});
    this.requests = new Requests(namespace, name);
    const own = (p) => p?.name === name && p.namespace === namespace;
    this.picture = new Picture(store, (p) => own(p.pod) || p.victims.some(own));
    this.element = h('div', {class: 'view detail scrolls'}, h('div', {class: 'crumb'}, back, h('span', {class: 'quiet'}, 'Pod')),
      h('div', {class: 'detail-head'}, this.title), this.stale, this.late = h('div', {class: 'late', role: 'status', hidden: true}), this.picture.element, this.answer);
    this.picture.update();
    this.load();
  }

  async load(node) {
    this.asking?.abort();
    this.asking = new AbortController();
    this.stale.hidden = true;
    if (!this.said) replace(this.answer, h('p', {class: 'thinking'}, 'Reading the cluster and asking every plugin about every node …'));
    try {
      const answer = await question('Explain', {namespace: this.namespace, name: this.name, node, scores: mostScored}, this.asking.signal);
      if (!this.closed) this.show(answer.document, answer.missing);
    } catch (error) {
      if (this.closed || error.name === 'AbortError') return;
      replace(this.answer, h('p', {class: 'fault'}, error.message),
        h('button', {type: 'button', class: 'small', onclick: () => this.load()}, 'Try again'));
    }
  }

  show(e, missing) {
    Object.assign(this, {said: e, missing});
    this.rows = this.store.summary ? this.#rows() : null; // null: the cluster has not been read yet
    this.marks(null);
    this.locate(e.pod.node || e.pod.nominatedNode || '', namespaced(this));
    replace(this.answer,
      h('div', {class: 'chips'},
        h('span', {class: 'chip strong state-' + e.state.toLowerCase()}, e.state),
        e.pod.node ? h('span', {class: 'chip'}, 'on ', nodeLink(e.pod.node)) : null,
        e.pod.controller ? h('span', {class: 'chip'}, this.#workload(e.pod.controller)) : null,
        h('span', {class: 'chip'}, 'priority ' + count(e.pod.priority))),
      stopped(e.source).map((words) => h('p', {class: 'fault'}, words)),
      h('p', {class: 'summary-line'}, e.summary),
      e.eviction ? this.eviction(e.eviction) : null,
      e.leaving ? section(e.leaving.preempted ? 'Preemption is under way' : 'Room is being made', this.leaving(e.leaving)) : null,
      e.suggestions?.length ? section('What would let it run', suggestions(e.suggestions)) : null,
      e.groups?.length ? this.groups(e) : null,
      e.preemption ? section('Preemption', preemption(e.preemption)) : null,
      e.scores?.length ? section(`Scores of the ${plural(e.feasible, 'node')} that can take it`, scores(e.scores, e.feasible)) : null,
      this.requests.element,
      e.queue ? section('In the queue', queue(e.queue)) : null,
      e.decision?.at ? section('What the scheduler decided last', decided(e.decision, e.lastDecision?.holds)) : null,
      e.message ? section('The scheduler’s message', h('p', {class: 'words'}, e.message)) : null,
      h('p', {class: 'source'}, `Read as of ${moment(Date.parse(e.source.asOf))}.`, e.source.assumed ? ' ' + e.source.assumed : '', missing?.length ? ' Not read: ' + missing.join('; ') : ''));
  }

  // #workload is a link to the pod's workload, which is its controller unless a Deployment made that.
  #workload(controller) {
    const own = (r) => r.name === this.name && r.namespace === this.namespace;
    const row = [this.store.queue, this.store.evictions].flatMap((table) => [...table.values()]).find(own);
    const block = this.store.nodes.get(this.said.pod.node)?.blocks?.find((b) => b.n === this.name && b.ns === this.namespace);
    const workload = row?.workload || block?.w || controller;
    return h('a', {href: link('workload', this.namespace, ...workload.split('/')), class: 'name'}, workload);
  }

  eviction(e) {
    this.due = Date.parse(e.due);
    this.left = h('b', {class: 'countdown big'});
    this.tick();
    return section('It has to leave', h('p', {}, this.left, ' ', h('span', {class: 'quiet'}, 'at ' + moment(this.due))),
      h('p', {}, 'Taint ', h('code', {}, e.taint), ', there since ' + moment(Date.parse(e.since)) +
        (e.tolerationSeconds === undefined ? ', which it does not tolerate.' : `, which it tolerates for ${span(e.tolerationSeconds * 1000)}.`)),
      e.cancel?.length ? [h('p', {class: 'quiet'}, 'What would let it stay:'), h('ul', {class: 'plain'}, e.cancel.map((c) => h('li', {}, c.text, command(c.command))))] : null);
  }

  // leaving are the pods that make room for it: nothing needs to be done.
  leaving({node, pods, until}) {
    return [
      h('p', {}, `${plural(pods.length, 'pod')} on `, nodeLink(node), pods.length === 1 ? ' is terminating: ' : ' are terminating: ', named(pods), '. ',
        `The pod fits there once ${pods.length === 1 ? 'it has' : 'they have'} gone, by ${moment(Date.parse(until))}.`),
      h('p', {class: 'quiet'}, 'Nothing needs to be done.'),
    ];
  }

  // groups are the nodes that cannot take it, by reason; one can be shown on the map.
  groups(e) {
    return section(`Rejected by ${count(e.nodes - e.feasible)} of ${plural(e.nodes, 'node')}`, h('ul', {class: 'groups'}, e.groups.map((g) => {
      const button = h('button', {type: 'button', class: 'group', 'aria-pressed': 'false', onclick: () => {
        const on = button.getAttribute('aria-pressed') !== 'true';
        for (const other of button.closest('ul').querySelectorAll('.group')) other.setAttribute('aria-pressed', 'false');
        button.setAttribute('aria-pressed', String(on));
        this.marks(on ? g.nodes : null);
      }}, h('b', {}, count(g.count)),
      h('span', {class: 'why-text'}, h('span', {}, breakable(g.reasons.join(', '))), (g.detail || []).map((d) => h('span', {class: 'quiet'}, breakable(d))),
        h('span', {class: 'quiet small'}, g.plugin || '', g.preemptionHelps ? ' · removing pods of lower priority could help' : '')),
      h('span', {class: 'meter', 'aria-hidden': 'true'}, h('i', {style: {width: 100 * g.count / e.nodes + '%'}})));
      button.title = 'Show these nodes on the map';
      return h('li', {}, button);
    })));
  }

  marks(nodes) {
    if (!nodes && !this.marked) return;
    this.marked = nodes;
    this.mark(nodes ? new Set(nodes) : null);
  }

  // changed says that the explanation may be outdated: what the lists say of the pod, or what matters of its node, differs.
  changed() {
    this.picture.update();
    if (!this.said) return;
    if (this.rows === null) { this.show(this.said, this.missing); return; } // which nodes exist is known now
    const rows = this.#rows();
    if (rows !== this.rows) this.stale.hidden = false;
    this.rows = rows;
  }

  // #rows is what the lists say of the pod, and the state of its node.
  #rows() {
    const own = (row) => row.name === this.name && row.namespace === this.namespace;
    const node = this.store.nodes.get(this.said.pod.node);
    return JSON.stringify([
      ...[this.store.queue, this.store.evictions].map((table) => [...table.values()].find(own)),
      node ? [node.zone, node.ready, node.cordoned, node.taints, node.trouble] : null,
    ]);
  }

  // remedy explains what to do about a pod that is overdue.
  remedy() {
    const row = [...this.store.evictions.values()].find((p) => p.name === this.name && p.namespace === this.namespace), found = row && overdue(row, this.store);
    this.late.hidden = !found;
    if (found && this.late.dataset.words !== found.words) {
      this.late.dataset.words = found.words;
      replace(this.late, this.since = h('b', {}), ': ' + found.words + '.', command(found.command));
    }
    if (found) text(this.since, lateness(found));
  }

  tick() {
    this.remedy();
    this.picture.tick();
    if (this.left) text(this.left, this.due > this.store.now() ? 'in ' + clock(this.due - this.store.now()) : 'now');
  }

  close() {
    this.closed = true;
    this.asking?.abort();
    this.marks(null);
  }
}

const namespaced = ({namespace, name}) => namespace + '/' + name;

const most = 4; // changes that are seen at once: they come smallest first

function suggestions(list) {
  const rest = list.slice(most);
  return [h('ol', {class: 'suggestions'}, list.slice(0, most).map((s) => suggestion(s))),
    rest.length ? h('details', {}, h('summary', {}, count(rest.length) + ' more'), h('ol', {class: 'suggestions', start: most + 1}, rest.map((s) => suggestion(s)))) : null];
}

function suggestion(s) {
  return h('li', {}, h('span', {}, s.text), h('span', {class: 'quiet'}, ' · then on ', nodeLink(s.node)), s.changes.map((c) => command(c.command)));
}

// command is one that can be copied.
export function command(words) {
  if (!words) return null;
  const button = h('button', {type: 'button', class: 'copy', 'aria-label': 'Copy the command', onclick: async () => {
    try {
      await navigator.clipboard.writeText(words);
      text(button, 'Copied');
    } catch {
      getSelection().selectAllChildren(code); // without rights to the clipboard, ready to be copied by hand
    }
    setTimeout(() => text(button, 'Copy'), 1500);
  }}, 'Copy');
  const code = h('code', {}, words);
  return h('div', {class: 'command'}, code, button);
}

// named are links to pods, as many as are read.
const named = (pods) => [pods.slice(0, 10).flatMap((v, i) => [i ? ', ' : '', podLink(v.namespace, v.name)]), pods.length > 10 ? ` and ${pods.length - 10} more` : ''];

function preemption(p) {
  if (!p.helps) return h('p', {}, 'It does not help: ' + p.message.replace(/\.+$/, '') + '.');
  return h('p', {}, 'It helps on ', nodeLink(p.node), `: ${plural(p.victims.length, 'pod')} would have to go: `,
    named(p.victims),
    p.violations ? `. The disruption budget of ${p.violations} of them would be broken.` : '.');
}

const mostScores = 10; // nodes that are seen at once

// scores is nodes by plugins, the best node first. Plugins that give all nodes the same are named below.
function scores(list, feasible) {
  const plugins = [...new Set(list.flatMap((s) => Object.keys(s.scores || {})))].sort(), of = (s, p) => s.scores?.[p] ?? 0;
  const [same, differ] = [true, false].map((same) => plugins.filter((p) => list.every((s) => of(s, p) === of(list[0], p)) === same));
  const best = Math.max(...list.map((s) => s.total)), table = (rows) => h('div', {class: 'wide-table', tabindex: '0', role: 'region', 'aria-label': 'Scores'}, h('table', {class: 'scores'},
    h('thead', {}, h('tr', {}, ['Node', 'Total', ...differ].map((t) => h('th', {scope: 'col'}, t)))),
    h('tbody', {}, rows.map((s) => h('tr', {class: s.own ? 'own' : ''}, h('th', {scope: 'row'}, nodeTail(s.node), s.own ? h('span', {class: 'quiet'}, ' (its own)') : null),
      h('td', {class: s.total === best ? 'best' : ''}, h('b', {}, count(s.total))), differ.map((p) => h('td', {title: s.words?.[p] || null}, count(of(s, p)))))))));
  return [table(list.slice(0, mostScores)),
    same.length ? h('p', {class: 'quiet'}, 'The same for all: ' + same.map((p) => `${p} ${count(of(list[0], p))}`).join(', ') + '.') : null,
    list.length > mostScores ? h('details', {}, h('summary', {}, plural(list.length - mostScores, 'more node')), table(list.slice(mostScores))) : null,
    feasible > list.length ? h('p', {class: 'quiet'}, `${plural(feasible - list.length, 'node')} with a lower score are not listed.`) : null];
}

// decided is the live scheduler's own memory of the pod.
function decided(d, holds) {
  const took = d.took ? `, in ${d.took < 0.001 ? Math.round(d.took * 1e6) + ' µs' : (d.took * 1000).toFixed(1) + ' ms'}` : '';
  const what = d.result === 'Placed'
    ? ['it chose ', nodeLink(d.node), d.feasible ? `, one of ${plural(d.feasible, 'node')} of ${count(d.nodes)} that could take it` : '', d.score ? `, with a score of ${count(d.score)}` : '']
    : ['it returned the pod to the queue: ' + (d.message || '').replace(/\.+$/, '')];
  const q = d.queue;
  return [
    h('p', {}, `At ${moment(Date.parse(d.at))}${took}, `, what, '. ', h('span', {class: 'quiet'}, holds ? 'This still holds.' : 'The cluster has changed since; the explanation above reflects its current state.')),
    d.victims?.length ? h('p', {}, `To make room on ${d.nominatedNode || 'a node'}, it preempted `, named(d.victims), '.') : null,
    q ? h('p', {class: 'quiet'}, `In its queue since ${moment(Date.parse(q.since))}, ${plural(q.attempts, 'attempt')}` + (q.notAfter ? `; retried by ${moment(Date.parse(q.notAfter))} at the latest` : '') + '.') : null,
  ];
}

function queue(q) {
  return [h('p', {}, `Place ${count(q.position)} of ${count(q.length)}: ${count(q.aheadByPriority)} ahead by priority, ${count(q.aheadByAge)} by age.`),
    q.wakes?.length ? [h('p', {class: 'quiet'}, 'It is retried when one of these happens, and after five minutes at the latest:'),
      h('ul', {class: 'plain'}, q.wakes.map((w) => h('li', {}, h('b', {}, w.plugin), ': ' + w.events.join('; '))))] : null];
}
