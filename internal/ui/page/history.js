// The history: pods that left their nodes, why, on whose initiative, and where their replacements run.

import {h, link, narrow, nodeLink, podLink, replace} from './dom.js';
import {moment, plural, span, time} from './format.js';
import {List} from './list.js';
import {blank} from './lists.js';

// reasons are the words for reasons of the condition DisruptionTarget and of events.
const reasons = {
  PreemptionByScheduler: 'preempted', Preempted: 'preempted', DeletionByTaintManager: 'evicted by a taint', TaintManagerEviction: 'evicted by a taint',
  DeletionByDeviceTaintManager: 'evicted by the taint of a device', DeviceTaintManagerEviction: 'evicted by the taint of a device', EvictionByEvictionAPI: 'evicted',
  Rebalanced: 'rebalanced', TerminationByKubelet: 'terminated by the kubelet', Evicted: 'evicted by the kubelet', DeletionByPodGC: 'removed by the garbage collector', '': 'deleted',
};

// initiator names who removed the pod, as far as it is known.
function initiator(d, store) {
  const uid = /^Preempted by pod (\S+)/.exec(d.message)?.[1], pod = uid && store.queue.get(uid);
  if (pod) return ['for ', podLink(pod.namespace, pod.name)];
  if (d.by) return 'by ' + d.by;
  return d.reason === 'EvictionByEvictionAPI' && store.nodes.get(d.node)?.cordoned ? 'while the node was cordoned, as in a drain' : '';
}

export class History {
  constructor(store, filters) {
    Object.assign(this, {store, filters, moment: null});
    this.chip = h('div', {class: 'reasons', hidden: true});
    this.list = new List({
      label: 'Pods that left their nodes, the newest first', key: (d) => d.uid, height: () => (narrow.matches ? 108 : 92), name: 'history', sort: '-at',
      columns: [
        {key: 'pod', title: 'Pod and reason', width: 'minmax(0, 1.15fr)', sort: (d) => d.namespace + '/' + d.name, cell: (d) => this.#pod(d)},
        {key: 'next', title: 'Replacement', width: 'minmax(0, 1fr)', sort: (d) => d.nextNode, cell: (d) => next(d)},
        {key: 'at', title: 'When', width: '66px', end: true, sort: (d) => d.at, cell: (d) => h('div', {class: 'two end', title: moment(d.at)}, h('div', {}, time(d.at)), h('div', {class: 'why'}, took(d)))},
      ],
      empty: () => (store.departures.size ? blank('No departure matches', 'Show all to see the others.') : blank('No pod has left its node', 'Evictions, preemptions and other deletions are recorded here. After a restart, the events of the cluster restore them.')),
    });
    this.element = h('div', {class: 'view'}, this.chip, this.list.element);
  }

  #pod(d) {
    return h('div', {class: 'two'}, h('div', {class: 'line'}, podLink(d.namespace, d.name)),
      h('div', {class: 'why both', title: d.message || null}, h('b', {}, reasons[d.reason] ?? d.reason), ' ', initiator(d, this.store)),
      h('div', {class: 'line why'}, 'from ', d.node ? nodeLink(d.node) : 'an unknown node'));
  }

  // at shows what left in a span of time; null shows all.
  at(from, to) {
    this.moment = from === null ? null : [from, to];
    this.update();
  }

  update() {
    const within = (d) => !this.moment || d.at < this.moment[1] && Math.max(d.at, d.gone) >= this.moment[0];
    const rows = [...this.store.departures.values()].filter((d) => this.filters.pod({...d, node: d.node}) && within(d));
    this.chip.hidden = !this.moment;
    if (this.moment) {
      replace(this.chip, h('button', {type: 'button', class: 'part', 'aria-pressed': 'true', 'aria-label': 'Show all times', onclick: () => this.at(null)},
        `${time(this.moment[0])} to ${time(this.moment[1])}: ${plural(rows.length, 'pod')} ✕`));
    }
    this.list.set(rows);
  }

  tick() {}
}

// took is the time that the departure took, or its state.
const took = (d) => (d.gone > 0 ? 'in ' + span(d.gone - d.at) : d.gone === 0 ? 'leaving' : 'gone');

function next(d) {
  if (!d.next) return h('span', {class: 'quiet why both'}, d.workload ? 'none' : 'none: no controller');
  return h('div', {class: 'two'}, h('div', {class: 'line'}, podLink(d.namespace, d.next)),
    h('div', {class: 'line why'}, d.nextNode ? ['on ', nodeLink(d.nextNode), d.nextPlaced ? ` after ${span(d.nextPlaced - d.at)}` : ''] : h('a', {class: 'bad', href: link('pod', d.namespace, d.next)}, 'pending')));
}
