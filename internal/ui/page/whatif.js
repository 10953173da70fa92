// What would happen if: operations in the words of berth what-if, put together in a form or typed, and the answer, which is drawn on
// the map, too.

import {h, nodeLink, nodeTail, podLink, replace} from './dom.js';
import {count, cpu, memory, moment, percent, plural, span, stopped} from './format.js';
import {Plan} from './flows.js';
import {List} from './list.js';
import {blank, tall} from './lists.js';
import {read, write} from './address.js';
import {question} from './stream.js';
import {command} from './pod.js';

// Operations and what is asked about each: fields are [name, label, example]; words makes the operation of them.
const operations = {
  drain: {title: 'Drain nodes', nodes: true, flags: ['--ignore-daemonsets', '--force', '--delete-emptydir-data', '--disable-eviction'], on: ['--ignore-daemonsets']},
  taint: {title: 'Taint nodes', nodes: true, fields: [['taint', 'Taint', 'maintenance=now:NoExecute']]},
  untaint: {title: 'Remove a taint from nodes', nodes: true, fields: [['taint', 'Taint', 'maintenance:NoExecute']]},
  cordon: {title: 'Cordon nodes', nodes: true},
  uncordon: {title: 'Uncordon nodes', nodes: true},
  'remove-node': {title: 'Remove nodes', nodes: true},
  choose: {title: 'Drain the nodes that are cheapest to drain', fields: [['n', 'How many', '1']], words: (f) => `drain --choose ${f.n} --ignore-daemonsets --force`},
  'add-nodes': {title: 'Add nodes', fields: [['n', 'How many', '3'], ['like', 'Like node', 'node-1']], words: (f) => `add-nodes ${f.n} --like node/${f.like}`},
  'add-pods': {title: 'Add pods', fields: [['n', 'How many, or max', 'max'], ['like', 'Like', 'deployment/web']], words: (f) => `add-pods ${f.n === 'max' ? '--max' : f.n} --like ${f.like}`},
  scale: {title: 'Scale a workload', fields: [['what', 'Workload', 'deployment/web'], ['n', 'Replicas', '10']], words: (f) => `scale ${f.what} --replicas ${f.n}`},
  delete: {title: 'Delete a pod or workload', fields: [['what', 'What', 'deployment/web']], words: (f) => `delete ${f.what}`},
  apply: {title: 'Apply a manifest', manifest: true, words: () => 'apply -f -'},
  provision: {title: 'Buy nodes for the pods left pending', words: () => 'provision --catalog -'},
  replace: {title: 'Remove nodes, or exchange them for cheaper ones', words: () => 'provision --catalog - --replace'},
};

export class WhatIf {
  constructor(store, view, {planned}) {
    Object.assign(this, {store, view, planned});
    this.kind = h('select', {id: 'wi-kind', onchange: () => this.fields()}, Object.entries(operations).map(([value, o]) => h('option', {value}, o.title)));
    this.inputs = h('div', {class: 'inputs'});
    this.words = h('textarea', {id: 'wi-words', rows: '2', spellcheck: 'false', autocomplete: 'off', placeholder: 'drain node/node-1 --ignore-daemonsets', oninput: () => this.typed()});
    this.namespace = h('input', {id: 'wi-namespace', value: 'default', spellcheck: 'false', autocomplete: 'off'});
    this.manifest = h('textarea', {id: 'wi-manifest', rows: '6', spellcheck: 'false', placeholder: 'apiVersion: apps/v1\nkind: Deployment\n…'});
    this.manifestBox = h('div', {class: 'field', hidden: true}, h('label', {for: 'wi-manifest'}, 'Manifest for apply -f -'), this.manifest);
    this.catalog = h('textarea', {id: 'wi-catalog', rows: '6', spellcheck: 'false', placeholder: 'Nodes with the annotation berth.dev/price, or NodePools and instance types'});
    this.catalogBox = h('div', {class: 'field', hidden: true}, h('label', {for: 'wi-catalog'}, 'Catalog for provision --catalog -'), this.catalog);
    this.go = h('button', {type: 'submit', class: 'primary'}, 'Show what would happen');
    this.answer = h('div', {class: 'answer', 'aria-live': 'polite'});
    // What is missing in a field of the builder holds back Add, not the question.
    this.form = h('form', {class: 'form', novalidate: true, onsubmit: (e) => { e.preventDefault(); this.ask(); },
      onkeydown: (e) => { if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) { e.preventDefault(); this.ask(); } }},
      h('p', {class: 'quiet'}, 'The cluster is only read. The operations are simulated with the engine of its scheduler.'),
      this.builder = h('details', {class: 'builder', open: true}, h('summary', {}, 'Build an operation'), h('div', {class: 'field'}, h('label', {for: 'wi-kind'}, 'If I were to'), this.kind), this.inputs,
        h('button', {type: 'button', onclick: () => this.add()}, 'Add')),
      h('div', {class: 'field'}, h('label', {for: 'wi-words'}, 'Operations, as for ', h('code', {}, 'berth what-if')), this.words),
      this.manifestBox, this.catalogBox,
      h('div', {class: 'row-fields'}, h('div', {class: 'field short'}, h('label', {for: 'wi-namespace'}, 'Namespace'), this.namespace), h('span', {class: 'grow'}), this.go));
    this.element = h('div', {class: 'view scrolls what-if'}, this.form, this.answer);
    this.fields();
  }

  // load puts in, and asks, what the address says.
  load() {
    const words = read('forecast'), namespace = read('in') || 'default';
    if (words ? words === this.asked && namespace === this.askedIn : !this.asked) return;
    this.asked = words;
    this.words.value = words;
    this.namespace.value = namespace;
    this.typed();
    if (words) this.ask();
    else { this.forget(); replace(this.answer); this.planned(null); }
  }

  // forget ends the question, if it is not answered yet.
  forget() {
    this.asked = '';
    if (!this.go.disabled) return;
    this.asking.abort();
    this.go.disabled = false;
    replace(this.answer);
  }

  // preset puts an operation in and asks.
  preset(words) {
    this.words.value = words;
    this.typed();
    this.ask();
  }

  fields() {
    const o = operations[this.kind.value];
    const nodes = o.nodes && h('div', {class: 'field'}, h('label', {for: 'wi-nodes'}, 'Nodes'),
      h('input', {id: 'wi-nodes', name: 'nodes', required: true, placeholder: 'node-1 node-2', value: this.view.chosen || '', spellcheck: 'false', autocomplete: 'off'}));
    const fields = (o.fields || []).map(([name, label, example]) => h('div', {class: 'field'}, h('label', {for: 'wi-' + name}, label),
      h('input', {id: 'wi-' + name, name, required: true, placeholder: example, spellcheck: 'false', autocomplete: 'off'})));
    const flags = (o.flags || []).map((flag) => h('label', {class: 'check'}, h('input', {type: 'checkbox', name: flag, checked: o.on?.includes(flag)}), flag));
    replace(this.inputs, nodes, fields, flags.length ? h('div', {class: 'checks'}, flags) : null);
  }

  // add puts what the fields say behind what is there. An example in a field is not its value.
  add() {
    const o = operations[this.kind.value], f = {};
    for (const input of this.inputs.querySelectorAll('input:not([type=checkbox])')) {
      input.value = f[input.name] = input.value.trim();
      if (!input.reportValidity()) return;
    }
    let words;
    if (o.words) words = o.words(f);
    else {
      const nodes = f.nodes.split(/[\s,]+/).map((n) => (n.includes('/') ? n : 'node/' + n)).join(' ');
      const flags = [...this.inputs.querySelectorAll('input:checked')].map((c) => c.name).join(' ');
      words = [this.kind.value, nodes, f.taint, flags].filter(Boolean).join(' ');
    }
    this.words.value = [this.words.value.trim(), words].filter(Boolean).join('\n');
    this.typed();
    this.words.focus();
  }

  typed() {
    this.manifestBox.hidden = !/\bapply\b/.test(this.words.value);
    this.catalogBox.hidden = !/\bprovision\b/.test(this.words.value);
  }

  async ask() {
    this.asking?.abort();
    const {signal} = this.asking = new AbortController();
    const operations = split(this.words.value), namespace = this.namespace.value.trim() || 'default';
    this.asked = this.words.value.trim();
    this.askedIn = namespace;
    this.typedAs = ['berth what-if', namespace !== 'default' ? '-n ' + namespace : '', ...this.asked.split(/\s*\n\s*/)].filter(Boolean).join(' ');
    write({forecast: this.asked, in: namespace === 'default' ? '' : namespace});
    replace(this.answer, h('p', {class: 'thinking'}, 'Reading the cluster and running the forecast …'));
    this.go.disabled = true;
    this.builder.open = false; // the answer needs the room
    try {
      const answer = await question('WhatIf', {operations, manifest: this.manifest.value, catalog: this.catalog.value, namespace}, signal);
      if (!signal.aborted) this.show(answer);
    } catch (error) {
      if (!signal.aborted) {
        replace(this.answer, h('p', {class: 'fault', role: 'alert'}, error.message));
        this.planned(null); // the map must not show the forecast of other operations
      }
    }
    if (!signal.aborted) this.go.disabled = false;
  }

  show({document: f, changedNodes, removedNodes, missing}) {
    this.planned(new Plan(f, changedNodes, removedNodes));
    const leaving = f.leaving.filter((l) => !l.again), placed = f.placed.filter((p) => !p.anyway), left = f.pending.filter((p) => !p.anyway);
    replace(this.answer, h('h2', {class: 'hidden'}, 'Forecast'),
      stopped(f.source).map((words) => h('p', {class: 'fault'}, words)),
      h('div', {class: 'verdict'},
        figure(leaving.length, 'leave', leaving.length ? 'mark' : ''), figure(leaving.filter((l) => l.next?.node).length + placed.length, 'find a place', 'come'),
        figure(left.length, 'left pending', left.length ? 'bad' : ''), figure(f.budgets.length, f.budgets.length === 1 ? 'budget hit' : 'budgets hit', f.budgets.length ? 'bad' : '')),
      utilisation(f.utilisation), f.provision && (!f.provision.replaced || f.provision.nodes.length || f.provision.pending.length) ? bought(f.provision) : null, f.provision?.replaced ? exchanged(f.provision.replaced) : null,
      (f.drains || []).flatMap((d) => [blocked('kubectl drain would refuse to begin', d.refused), blocked('Held by a disruption budget to the end', d.blocked), blocked('Held by a disruption budget for a while', d.waited)]),
      f.budgets.length ? part('Disruption budgets', h('ul', {class: 'plain'}, f.budgets.map((b) => h('li', {}, h('b', {}, b.namespace + '/' + b.name),
        (b.broken ? ' is violated by the loss of ' : ' holds back ') + some(b.pods || []))))) : null,
      f.chosen?.length ? part('Cheapest to drain', h('ul', {class: 'plain'}, f.chosen.map((c) => h('li', {}, nodeLink(c.node), `: ${plural(c.evicted, 'pod')} to move, ${c.pending} left pending`)))) : null,
      (f.fills || []).map((fill) => part(`${count(fill.placed)} like ${fill.like} find room`, h('p', {}, fill.stops ? 'The next one does not: ' + fill.stops : `On ${plural(Object.keys(fill.nodes || {}).length, 'node')}.`))),
      table('Pods that leave', leaving, leavingColumns), table('Left pending', left, pendingColumns), table('Placed', placed, placedColumns),
      table('Pending with or without this', f.pending.filter((p) => p.anyway), pendingColumns), table('Leave anyway, with or without this', f.anyway, leavingColumns), table('Stay because of this, and leave without it', f.spared, leavingColumns),
      f.notes?.length ? h('ul', {class: 'plain quiet'}, f.notes.map((n) => h('li', {}, n))) : null,
      h('div', {class: 'same'}, h('span', {class: 'quiet'}, 'The same on the command line'), command(this.typedAs)),
      h('p', {class: 'source'}, `Read as of ${moment(Date.parse(f.source.asOf))}; ${f.settled ? 'nothing more happens after ' : 'looked ahead '}${after(f.for)}.`, f.source.assumed ? ' ' + f.source.assumed : '', missing?.length ? ' Not read: ' + missing.join('; ') : ''));
  }

  update() {}
  tick() {}
  changed() {}
}

// split cuts into words as a shell does, quotes included.
export function split(line) {
  return [...line.matchAll(/(?:[^\s"']+|"[^"]*"|'[^']*')+/g)].map((m) => m[0].replace(/"([^"]*)"|'([^']*)'/g, (_, a, b) => a ?? b));
}

// after writes a length of time as Go does: 5m0s.
function after(written) {
  let ms = 0;
  for (const [, n, unit] of String(written).matchAll(/([\d.]+)(h|ms|m|s)/g)) ms += Number(n) * {h: 3600000, m: 60000, s: 1000, ms: 1}[unit];
  return ms ? span(ms) : '0s';
}

function figure(n, words, kind) {
  return h('div', {class: 'figure ' + kind}, h('b', {}, count(n)), h('span', {}, words));
}

function utilisation({before, without, after: then}) {
  const row = (label, u) => h('tr', {}, h('th', {scope: 'row'}, label), h('td', {}, count(u.nodes)), h('td', {}, count(u.empty)), h('td', {}, count(u.pods)), h('td', {}, count(u.pending)),
    h('td', {title: `${cpu(u.cpu.requested)} of ${cpu(u.cpu.allocatable)}`}, percent(u.cpu.percent / 100)), h('td', {title: `${memory(u.memory.requested)} of ${memory(u.memory.allocatable)}`}, percent(u.memory.percent / 100)));
  return h('div', {class: 'wide-table', tabindex: '0', role: 'region', 'aria-label': 'Nodes in numbers'}, h('table', {class: 'scores'},
    h('thead', {}, h('tr', {}, ['When', 'Nodes', 'Empty', 'Pods', 'Pending', 'CPU', 'Memory'].map((t) => h('th', {scope: 'col'}, t)))),
    h('tbody', {}, row('Now', before), without ? row('Without', without) : null, row('Then', then))));
}

// bought says which nodes a plan buys, those that are alike in a row. On the map they are among the others.
function bought(plan) {
  const lots = new Map();
  for (const n of plan.nodes) {
    const key = JSON.stringify([n.pool, n.type, n.zone, n.capacityType, n.pricePerHour]);
    const lot = lots.get(key) || lots.set(key, {...n, count: 0, pods: 0, cpu: 0, memory: 0}).get(key);
    lot.count++;
    lot.pods += n.pods.length;
    lot.cpu += n.cpuPercent;
    lot.memory += n.memoryPercent;
  }
  const row = (l) => h('tr', {}, h('th', {scope: 'row'}, [l.type || l.pool, l.zone, l.capacityType].filter(Boolean).join(', ')), h('td', {}, count(l.count)), h('td', {}, price(l.pricePerHour)),
    h('td', {}, price(l.pricePerHour * l.count)), h('td', {}, count(l.pods)), h('td', {}, percent(l.cpu / l.count / 100)), h('td', {}, percent(l.memory / l.count / 100)));
  const rows = [...lots.values()].sort((a, b) => b.pricePerHour * b.count - a.pricePerHour * a.count);
  return part(plan.nodes.length ? `Buy ${plural(plan.nodes.length, 'node')} for ${plural(plan.pods, 'pod')}: ${price(plan.costPerHour)} an hour, ${count(Math.round(plan.costPerMonth))} a month` : plan.pending.length ? 'No node of the catalog helps' : 'No node is needed',
    rows.length ? h('div', {class: 'wide-table', tabindex: '0', role: 'region', 'aria-label': 'Nodes to buy'}, h('table', {class: 'scores'}, h('thead', {}, h('tr', {}, ['Type', 'Nodes', 'Each', 'Together', 'Pods', 'CPU', 'Memory'].map((t) => h('th', {scope: 'col'}, t)))), h('tbody', {}, rows.map(row)))) : null,
    plan.pending.length ? h('ul', {class: 'plain'}, plan.pending.slice(0, 10).map((p) => h('li', {}, podLink(p.namespace, p.name), ' stays pending: ' + p.message)), plan.pending.length > 10 ? h('li', {class: 'quiet'}, `and ${plan.pending.length - 10} more`) : null) : null,
    plan.notes?.length ? h('ul', {class: 'plain quiet'}, plan.notes.map((n) => h('li', {}, n))) : null);
}

const price = (n) => n.toLocaleString('en', {maximumSignificantDigits: 4});

// exchanged says which nodes a plan removes or exchanges: what they cost, by type before and after, and after each step.
function exchanged(plan) {
  const steps = plan.exchanges, headers = (...titles) => h('thead', {}, h('tr', {}, titles.map((t) => h('th', {scope: 'col'}, t))));
  const most = Math.max(...plan.types.flatMap((t) => [t.nodesBefore, t.nodesAfter]), 1);
  const bar = (n, of, of100, label) => h('td', {}, h('meter', {min: 0, max: of, value: n, 'aria-label': label}), ' ', of100);
  let cost = plan.costBeforePerHour;
  return part(steps.length ? `${price(cost)} an hour today, ${price(cost - plan.savedPerHour)} afterwards` : 'No node can be removed or replaced by a cheaper one',
    plan.leastPerHour ? h('p', {class: 'quiet'}, `At least ${price(plan.leastPerHour)} an hour is required.`) : null,
    steps.length ? h('div', {class: 'wide-table', tabindex: '0', role: 'region', 'aria-label': 'Nodes by type, before and after'}, h('table', {class: 'scores'}, headers('Type', 'Nodes', 'Afterwards'),
      h('tbody', {}, plan.types.map((t) => h('tr', {}, h('th', {scope: 'row'}, [t.type, t.capacityType].filter(Boolean).join(', ')), bar(t.nodesBefore, most, count(t.nodesBefore), 'Nodes today'), bar(t.nodesAfter, most, count(t.nodesAfter), 'Nodes afterwards')))))) : null,
    steps.length ? h('div', {class: 'wide-table', tabindex: '0', role: 'region', 'aria-label': 'Steps'}, h('table', {class: 'scores'}, headers('Step', 'Remove', 'Add', 'Moves', 'Cost afterwards'),
      h('tbody', {}, steps.map((e, i) => { cost -= e.savedPerHour; return h('tr', {}, h('th', {scope: 'row'}, count(i + 1)), h('td', {title: e.gone.join(', ')}, plural(e.gone.length, 'node')), h('td', {}, count(e.nodes.length)), h('td', {}, count(e.moves.length)), bar(cost, plan.costBeforePerHour, price(cost), 'Cost per hour')); })))) : null,
    plan.kept.length ? h('details', {}, h('summary', {}, `${plural(plan.kept.length, 'node')} stay`), h('ul', {class: 'plain'}, plan.kept.slice(0, 50).map((k) => h('li', {}, nodeLink(k.node), ': ' + k.why)), plan.kept.length > 50 ? h('li', {class: 'quiet'}, `and ${count(plan.kept.length - 50)} more`) : null)) : null);
}

function part(title, ...children) { return h('section', {class: 'fact'}, h('h3', {}, title), children); }

function some(names) { return names.slice(0, 5).join(', ') + (names.length > 5 ? ` and ${names.length - 5} more` : ''); }

function blocked(title, list) {
  if (!list?.length) return null;
  return part(title, h('ul', {class: 'plain'}, list.slice(0, 10).map((b) => h('li', {}, podLink(b.namespace, b.name), ' on ' + b.node + ': ' + b.message)),
    list.length > 10 ? h('li', {class: 'quiet'}, `and ${list.length - 10} more`) : null));
}

function table(title, rows, columns) {
  if (!rows?.length) return null;
  const list = new List({label: title, key: (r) => r.key, height: tall(44), columns, empty: () => blank('None', '')});
  list.set(rows.map((r, i) => ({...r, key: String(i)})));
  list.element.style.setProperty('height', Math.min(rows.length, 8) * list.height + 34 + 'px');
  return part(`${title} (${count(rows.length)})`, list.element);
}

const two = (top, below) => h('div', {class: 'two'}, h('div', {class: 'line'}, top), h('div', {class: 'line why', title: below}, below));

// fates names what becomes of pods that get no successor.
const fates = {Returns: '', Fails: 'its Job fails', IndexFails: 'its index fails'};

const leavingColumns = [
  {key: 'pod', title: 'Pod', width: 'minmax(0, 1.8fr)', cell: (l) => two(podLink(l.namespace, l.name), [l.cause, l.detail].filter(Boolean).join(': '))},
  {key: 'from', title: 'From', width: 'minmax(0, 0.7fr)', cell: (l) => nodeTail(l.node)},
  {key: 'to', title: 'To', width: 'minmax(0, 1fr)', cell: (l) => (l.next?.node ? nodeTail(l.next.node) : l.next ? h('span', {class: 'bad', title: l.next.message}, 'pending: ' + l.next.message) : h('span', {title: l.reason || null}, fates[l.fate] ?? l.fate.toLowerCase()))},
  {key: 'after', title: 'After', width: '64px', end: true, cell: (l) => after(l.after)},
];
const pendingColumns = [
  {key: 'pod', title: 'Pod', width: 'minmax(0, 1fr)', cell: (p) => two(podLink(p.namespace, p.name), p.message)},
  {key: 'before', title: 'Change', width: '72px', end: true, cell: (p) => (p.anyway ? (p.before ? 'as now' : 'anyway') : p.before ? '' : 'new')},
];
const placedColumns = [
  {key: 'pod', title: 'Pod', width: 'minmax(0, 1fr)', cell: (p) => two(podLink(p.namespace, p.name), p.before ? 'pending now' : 'new')},
  {key: 'on', title: 'On', width: 'minmax(0, 0.7fr)', cell: (p) => nodeTail(p.node)},
  {key: 'after', title: 'After', width: '76px', end: true, cell: (p) => after(p.after)},
];
