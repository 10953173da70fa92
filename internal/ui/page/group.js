// One pod group: the same as berth explain podgroup/NAME shows, with links.

import {h, link, nodeLink, podLink, replace} from './dom.js';
import {count, moment, plural, stopped} from './format.js';
import {section} from './node.js';
import {question} from './stream.js';

export class GroupView {
  constructor(store, namespace, name, {back, mark}) {
    Object.assign(this, {store, namespace, name, mark});
    this.stale = h('div', {class: 'stale', role: 'status', hidden: true}, 'The group has changed since. ', h('button', {type: 'button', class: 'small', onclick: () => this.load()}, 'Explain again'));
    this.answer = h('div', {class: 'facts', 'aria-live': 'polite'});
    this.element = h('div', {class: 'view detail scrolls'}, h('div', {class: 'crumb'}, back, h('span', {class: 'quiet'}, 'Pod group')),
      h('div', {class: 'detail-head'}, h('h2', {}, h('span', {class: 'space'}, namespace + '/'), name)), this.stale, this.answer);
    this.load();
  }

  async load() {
    this.stale.hidden = true;
    if (!this.said) replace(this.answer, h('p', {class: 'thinking'}, 'Reading the cluster and trying to place the group …'));
    try {
      const answer = await question('Explain', {group: true, namespace: this.namespace, name: this.name});
      if (!this.closed) this.show(answer.document, answer.missing);
    } catch (error) {
      if (!this.closed) replace(this.answer, h('p', {class: 'fault'}, error.message), h('button', {type: 'button', class: 'small', onclick: () => this.load()}, 'Try again'));
    }
  }

  show(e, missing) {
    this.said = e;
    this.row = this.#row();
    const tree = this.store.groups.get(this.namespace + '/' + this.name)?.tree, last = e.lastDecision;
    this.mark(new Set(e.pods.filter((p) => p.node).map((p) => p.node)));
    replace(this.answer,
      h('div', {class: 'chips'}, h('span', {class: 'chip strong state-' + e.state.toLowerCase()}, e.state),
        e.minCount ? h('span', {class: 'chip'}, `gang: ${plural(e.minCount, 'pod')} at once`) : null,
        e.topology ? h('span', {class: 'chip'}, 'all on nodes with one value of ' + e.topology) : null,
        tree ? h('span', {class: 'chip'}, 'in composite pod group ' + tree) : null),
      stopped(e.source).map((words) => h('p', {class: 'fault'}, words)),
      h('p', {class: 'summary-line'}, e.summary),
      e.suggestions?.length ? section('What would let it run', h('ol', {class: 'suggestions'}, e.suggestions.map((s) => h('li', {}, s.text)))) : null,
      e.now?.victims?.length ? section('Would have to leave', h('ul', {class: 'plain'}, e.now.victims.map((v) => h('li', {}, podLink(v.namespace, v.name))))) : null,
      e.leaving ? section('Room is being made', h('ul', {class: 'plain'}, e.leaving.pods.map((v) => h('li', {}, podLink(v.namespace, v.name)))), h('p', {class: 'quiet'}, `By ${moment(Date.parse(e.leaving.until))}. Nothing needs to be done.`)) : null,
      e.pods.length ? section(`${count(e.pods.length)} pods`, h('ul', {class: 'plain members'}, e.pods.map((p) => h('li', {}, podLink(this.namespace, p.name), ' ',
        p.node ? h('span', {class: 'quiet'}, p.waits ? 'would go to ' : 'on ', nodeLink(p.node)) : h('span', {class: 'chip warn'}, 'no node'), p.message ? h('div', {class: 'why-text quiet'}, p.message) : null)))) : null,
      last ? section('What the scheduler decided last', h('p', {}, `At ${moment(Date.parse(last.at))}: ${last.message || last.reason}`)) : null,
      h('p', {class: 'source'}, `Read as of ${moment(Date.parse(e.source.asOf))}.`, e.source.assumed ? ' ' + e.source.assumed : '', missing?.length ? ' Not read: ' + missing.join('; ') : '',
        ' ', h('a', {href: link('queue')}, 'All pending pods')));
  }

  // #row is what the stream knows of the group.
  #row() { return JSON.stringify([this.store.groups.get(this.namespace + '/' + this.name), [...this.store.queue.values()].filter((p) => p.group === this.namespace + '/' + this.name).map((p) => p.uid)]); }

  changed() {
    if (!this.said) return;
    const row = this.#row();
    if (row !== this.row) this.stale.hidden = false;
    this.row = row;
  }

  close() {
    this.closed = true;
    this.mark(null);
  }
}
