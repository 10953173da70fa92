// Disruption budgets and their current allowance, and the progress of workloads.

import {h, replace} from './dom.js';
import {count, moment, natural, plural} from './format.js';
import {ask} from './stream.js';

// budgetRow describes a PodDisruptionBudget: its name, its rule, and what it allows now with the numbers.
export function budgetRow({metadata, spec, status = {}}, words = metadata.name) {
  const rule = spec.maxUnavailable !== undefined ? `at most ${spec.maxUnavailable} unavailable` : spec.minAvailable !== undefined ? `at least ${spec.minAvailable} available` : '';
  const allowed = status.disruptionsAllowed || 0;
  return [h('b', {}, words), h('span', {class: 'quiet'}, ` ${rule} `),
    h('span', {class: allowed > 0 ? 'chip' : 'chip warn'}, allowed > 0 ? `allows ${plural(allowed, 'eviction')}` : 'allows no eviction'),
    h('span', {class: 'quiet'}, ` ${count(status.currentHealthy || 0)} of ${plural(status.expectedPods || 0, 'pod')} healthy, ${count(status.desiredHealthy || 0)} needed`)];
}

// covers tells whether a budget selects the pods of a workload.
export function covers({metadata, spec}, workload) {
  const labels = workload?.spec.template?.metadata?.labels || {}, {matchLabels = {}, matchExpressions = []} = spec.selector || {};
  const holds = {In: (v, list) => list.includes(v), NotIn: (v, list) => !list.includes(v), Exists: (v) => v !== undefined, DoesNotExist: (v) => v === undefined};
  return metadata.namespace === workload?.metadata.namespace && Boolean(spec.selector) && Object.entries(matchLabels).every(([key, value]) => labels[key] === value) &&
    matchExpressions.every((e) => holds[e.operator](labels[e.key], e.values || []));
}

// rolloutWords describes the progress of a Deployment, StatefulSet or DaemonSet, in sentences.
export function rolloutWords({spec, status = {}}) {
  const wanted = status.desiredNumberScheduled ?? spec.replicas ?? 1, updated = status.updatedReplicas ?? status.updatedNumberScheduled ?? 0;
  const ready = status.readyReplicas ?? status.numberReady ?? 0, available = status.availableReplicas ?? status.numberAvailable ?? 0;
  return [updated >= wanted && available >= wanted ? `Complete: ${plural(wanted, 'replica')}.`
    : `In progress: of ${plural(wanted, 'replica')}, ${count(updated)} updated, ${count(ready)} ready, ${count(available)} available.`,
  status.conditions?.find((c) => c.type === 'Progressing')?.message].filter(Boolean);
}

// Budgets lists all disruption budgets, the exhausted ones first. They are read when the list is unfolded.
export class Budgets {
  constructor() {
    this.content = h('div', {'aria-live': 'polite'});
    this.element = h('details', {class: 'budgets', ontoggle: (e) => { if (e.target.open) this.load(); }}, h('summary', {}, 'Disruption budgets'), this.content);
  }

  async load() {
    replace(this.content, h('p', {class: 'thinking'}, 'Reading budgets …'));
    try {
      const {answer} = await ask('/api/objects'), allowed = (b) => b.status?.disruptionsAllowed || 0, name = (b) => b.metadata.namespace + '/' + b.metadata.name;
      const list = (answer.budgets || []).sort((a, b) => allowed(a) - allowed(b) || natural(name(a), name(b)));
      replace(this.content, list.length ? h('ul', {class: 'plain'}, list.map((b) => h('li', {}, budgetRow(b, name(b))))) : h('p', {class: 'quiet'}, 'There are none: drains may evict all pods of a workload at the same time.'),
        h('p', {class: 'source'}, `As of ${moment(Date.parse(answer.asOf))}. `, h('button', {type: 'button', class: 'small', onclick: () => this.load()}, 'Read again')));
    } catch (error) {
      replace(this.content, h('p', {class: 'fault'}, error.message));
    }
  }
}
