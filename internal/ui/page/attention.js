// What needs attention, and what resolves itself.

import {h, keepFocus, replace} from './dom.js';
import {count, span} from './format.js';
import {read, write} from './address.js';

const slack = 15000; // deletions end a few seconds after their grace period

// overdue explains why a pod is still on its node after its time: {late, words, command}, or null if it is not overdue.
export function overdue(p, store) {
  if (p.held) return null; // the guard's deadline is not a promise
  const late = store.now() - p.due, node = store.nodes.get(p.node), off = node && node.ready !== 'True';
  if (late < (p.going && off ? 0 : slack)) return null;
  const pod = `pod ${p.name}${p.namespace === 'default' ? '' : ' -n ' + p.namespace}`;
  if (!p.going) return {late, words: 'no controller evicts it: check that one is running', command: `berth explain ${pod.replace(' ', '/')}`};
  if (off) {
    return {late, words: `${p.node} is not ready, so no kubelet confirms the end of the pod. If the machine is off, taint its node; otherwise repair it`,
      command: `kubectl taint node ${p.node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`};
  }
  if (!node) return {late, words: `${p.node} does not exist: the garbage collector of pods removes it; if it does not, force the deletion`, command: `kubectl delete ${pod} --force --grace-period=0`};
  return {late, words: `the kubelet of ${p.node} has not ended it, or a finalizer keeps it`, command: `kubectl get ${pod} -o jsonpath='{.metadata.finalizers}'`};
}

export const lateness = (o) => 'overdue for ' + span(o.late);

// overdueCount is the number of pods that are overdue.
export function overdueCount(store) {
  let n = 0;
  for (const p of store.evictions.values()) if (overdue(p, store)) n++;
  return n;
}

// stuck tells whether a pending pod needs attention: it has been rejected or is gated, and no room is being made for it.
export const stuck = (p) => Boolean(p.message || p.reason) && !p.nominated;

// Split separates the rows of a list that need attention from the others. The choice stands in the address under its name.
export class Split {
  constructor(name, needs, changed) {
    Object.assign(this, {name, needs, changed});
    this.element = h('div', {class: 'reasons split', role: 'group', 'aria-label': 'Attention', hidden: true});
  }

  // of returns the rows to be shown.
  of(rows) {
    const chosen = read(this.name), both = {needs: [], resolves: []};
    for (const row of rows) both[this.needs(row) ? 'needs' : 'resolves'].push(row);
    const drawn = JSON.stringify([both.needs.length, both.resolves.length, chosen]);
    if (drawn !== this.drawn) {
      this.drawn = drawn;
      this.element.hidden = !both.needs.length && !chosen;
      keepFocus(this.element, () => replace(this.element, [['needs', both.needs.length === 1 ? 'needs attention' : 'need attention'], ['resolves', both.resolves.length === 1 ? 'resolves itself' : 'resolve themselves']].map(([value, words]) =>
        h('button', {type: 'button', class: 'part ' + value, 'data-value': value, 'aria-pressed': String(value === chosen), onclick: () => {
          write({[this.name]: value === chosen ? '' : value});
          this.changed();
        }}, h('b', {}, count(both[value].length)), ' ' + words))));
    }
    return both[chosen] || [...both.needs, ...both.resolves];
  }
}
