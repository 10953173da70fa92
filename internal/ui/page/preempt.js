// Preemptions in progress, as a picture: which pod makes room for itself, which pods leave for it, and the node on which they are.

import {h, keepFocus, nodeLink, podLink, replace, text} from './dom.js';
import {clock, count, plural} from './format.js';

// byScheduler is the reason of the condition DisruptionTarget of a victim.
const byScheduler = 'PreemptionByScheduler';

// preemptions lists the preemptions in progress: {pod, node, victims}, the most important preemptor first. The event of a victim has the
// UID of its preemptor. Without the event, the preemptor is the most important pod nominated to the node; pod is null if there is none.
export function preemptions(store) {
  const nominated = [...store.queue.values()].filter((p) => p.nominated).sort((a, b) => b.priority - a.priority || a.created - b.created);
  const found = new Map(nominated.map((pod) => [pod.uid, {pod, node: pod.nominated, victims: []}]));
  const victims = [...store.evictions.values()].filter((p) => p.going && p.cause === byScheduler), named = new Map();
  if (victims.length) {
    for (const e of store.events) {
      const uid = e.reason === 'Preempted' && /^Preempted by pod (\S+)/.exec(e.message)?.[1], victim = e.namespace + '/' + e.name;
      if (uid && !named.has(victim)) named.set(victim, uid);
    }
  }
  for (const v of victims) {
    const own = found.get(named.get(v.namespace + '/' + v.name));
    const pod = own?.node === v.node ? own.pod : nominated.find((p) => p.nominated === v.node && p.priority > v.priority);
    const key = pod ? pod.uid : 'on ' + v.node;
    if (!found.has(key)) found.set(key, {pod: null, node: v.node, victims: []});
    found.get(key).victims.push(v);
  }
  return [...found.values()].filter((p) => p.victims.length).sort((a, b) => (b.pod?.priority ?? -Infinity) - (a.pod?.priority ?? -Infinity));
}

const most = 3, mostVictims = 4; // preemptions, and victims of one, that are drawn

// Picture draws preemptions; only accepts those of one pod, or all of them.
export class Picture {
  constructor(store, only = () => true) {
    Object.assign(this, {store, only, counts: []});
    this.element = h('div', {class: 'preemptions', hidden: true});
  }

  // update draws these preemptions. The document changes only if they do, so that the focus stays.
  update(all = preemptions(this.store)) {
    const list = all.filter(this.only), drawn = JSON.stringify([list.slice(0, most), list.length]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.counts = [];
    this.element.hidden = !list.length;
    keepFocus(this.element, () => replace(this.element, list.slice(0, most).map((p) => this.#draw(p)),
      list.length > most ? h('p', {class: 'quiet'}, `and ${plural(list.length - most, 'more preemption')}`) : null));
    this.tick();
  }

  #draw({pod, node, victims}) {
    const left = h('b', {class: 'countdown'}), due = Math.max(...victims.map((v) => v.due));
    this.counts.push({element: left, due, over: 'overdue'});
    const card = (kind, ...children) => h('div', {class: 'card ' + kind}, children);
    const who = pod ? [podLink(pod.namespace, pod.name), priority(pod)] : h('span', {class: 'quiet'}, 'a pod that is not pending any more');
    const rest = victims.slice(mostVictims);
    return h('section', {class: 'preemption', 'aria-label': `${pod ? pod.name : 'A pod'} preempts ${plural(victims.length, 'pod')} on ${node}`},
      card('preemptor', h('span', {class: 'label'}, 'Preemptor'), who), arrow(),
      card('victims', h('span', {class: 'label'}, victims.length === 1 ? 'Victim' : 'Victims'),
        victims.slice(0, mostVictims).map((v) => h('div', {class: 'victim'}, podLink(v.namespace, v.name), priority(v), this.#left(v))),
        rest.length ? h('span', {class: 'quiet'}, `and ${count(rest.length)} more`) : null), arrow(),
      card('node', h('span', {class: 'label'}, 'Node'), nodeLink(node), h('span', {}, left)));
  }

  #left(v) {
    const element = h('span', {class: 'countdown'});
    this.counts.push({element, due: v.due, over: 'overdue'});
    return element;
  }

  tick() {
    for (const {element, due, over} of this.counts) text(element, due > this.store.now() ? clock(due - this.store.now()) : over);
  }
}

const priority = (p) => h('span', {class: 'priority'}, 'priority ' + count(p.priority));
const arrow = () => h('span', {class: 'to', 'aria-hidden': 'true'}, '→');

// victimOf maps the UID of each victim to the pod that preempts it.
export const victimOf = (list) => new Map(list.flatMap(({pod, victims}) => (pod ? victims.map((v) => [v.uid, pod]) : [])));
