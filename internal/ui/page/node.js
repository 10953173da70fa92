// One node: what it is, what is the matter with it, how full it is and with whom.

import {h, keepFocus, narrow, podLink, replace} from './dom.js';
import {age, amount, count, cpu, memory, moment, natural, percent, plural} from './format.js';
import {kindColour, kindNames, kindOf} from './colours.js';
import {Devices} from './devices.js';
import {drawBlocks, isDraining} from './drains.js';
import {blank, countdown, tall} from './lists.js';
import {List} from './list.js';
import {ask} from './stream.js';

export class NodeView {
  constructor(store, name, {back, whatIf}) {
    Object.assign(this, {store, name, whatIf, unfolded: new Set()});
    this.devices = new Devices(name);
    this.head = h('div', {class: 'detail-head'});
    this.facts = h('div', {class: 'facts'});
    this.list = new List({
      label: 'Pods of ' + name, key: (p) => p.uid, height: (rows) => (narrow.matches ? 86 : tall(44, 16)(rows)), name: 'pods', sort: 'pod', classOf: (p) => (p.due ? 'leaving' : ''),
      columns: [
        {key: 'pod', title: 'Pod', width: 'minmax(0, 1fr)', sort: (p) => p.namespace + '/' + p.name, compare: natural, cell: (p) => this.#pod(p)},
        {key: 'cpu', title: 'CPU', width: '52px', end: true, sort: (p) => p.cpu, cell: (p) => withOverhead(cpu, p.cpu, p.overheadCPU)},
        {key: 'memory', title: 'Memory', width: '66px', end: true, sort: (p) => p.memory, cell: (p) => withOverhead(memory, p.memory, p.overheadMemory)},
        {key: 'due', title: 'Leaves in', width: '92px', end: true, sort: (p) => p.due || Infinity, cell: (p) => (p.due ? h('span', {class: 'countdown'}) : ''),
          tick: (p, e) => { if (p.due) countdown(store, p, e.firstChild); }},
      ],
      empty: () => blank('No pods', 'Nothing runs on this node.'),
    });
    this.element = h('div', {class: 'view detail'}, h('div', {class: 'crumb'}, back, h('span', {class: 'quiet'}, 'Node')), this.head, this.facts,
      h('h3', {}, 'Pods'), this.list.element);
    this.load();
  }

  #pod(p) {
    const words = [p.priority ? 'priority ' + count(p.priority) : '', p.status, p.owner].filter(Boolean).join(' · ');
    return h('div', {class: 'two'}, h('div', {class: 'line'}, podLink(p.namespace, p.name)),
      h('div', {class: 'line why', title: words}, words));
  }

  // load reads the node, again whenever its row changes but not more than twice a second.
  async load() {
    if (this.loading) { this.again = true; return; }
    this.loading = true;
    try {
      const node = await ask('/api/nodes/' + encodeURIComponent(this.name));
      if (!this.closed) this.show(node);
    } catch (error) {
      if (!this.closed) this.gone(error);
    }
    setTimeout(() => {
      this.loading = false;
      if (this.again && !this.closed) { this.again = false; this.load(); }
    }, 500);
  }

  gone(error) {
    replace(this.head, h('h2', {}, this.name));
    replace(this.facts, h('p', {class: 'fault'}, this.store.nodes.has(this.name) ? error.message : 'The node does not exist.'));
    this.list.set([]);
  }

  show(node) {
    const kind = kindOf(node), row = this.store.nodes.get(node.name);
    keepFocus(this.head, () => replace(this.head,
      h('h2', {}, node.name),
      h('div', {class: 'chips'},
        h('span', {class: 'chip strong'}, h('i', {class: node.ready === 'True' ? 'dot good' : 'dot bad', 'aria-hidden': 'true'}), node.ready === 'True' ? 'ready' : 'not ready'),
        node.cordoned ? h('span', {class: 'chip'}, 'cordoned') : null,
        kind !== 'free' && kind !== 'cordoned' && kind !== 'unready' ? h('span', {class: 'chip'}, h('i', {class: 'swatch', style: {background: kindColour(kind)}}), kindNames[kind]) : null,
        node.zone ? h('span', {class: 'chip'}, 'zone ' + node.zone) : null,
        h('span', {class: 'chip'}, age(this.store.now() - node.created) + ' old'),
        h('button', {type: 'button', class: 'small', onclick: () => this.whatIf(`drain node/${node.name} --ignore-daemonsets --force`)}, 'What if it were drained?'),
        node.cordoned ? h('button', {type: 'button', class: 'small', onclick: () => this.whatIf(`uncordon node/${node.name}`)}, 'What if it were uncordoned?') : null)));
    keepFocus(this.facts, () => replace(this.facts,
      row && isDraining(this.store, row) ? section('Drain', drawBlocks(this.store, row)) : null,
      section('Requested', h('div', {class: 'rooms'}, node.resources.filter((r) => r.allocatable !== '0' || r.requested !== '0').map((r) => room(r, node)))),
      section('Taints', node.taintList.length ? h('ul', {class: 'plain'}, node.taintList.map((t) => this.#taint(t))) : h('p', {class: 'quiet'}, 'None: pods need no toleration')),
      section('Conditions', h('ul', {class: 'plain'}, node.conditions.map((c) => condition(c)))),
      this.devices.element,
      this.#more('Labels', Object.entries(node.labels || {}).sort((a, b) => natural(a[0], b[0])).map(([k, v]) => [k, v])),
      this.#more('System', Object.entries(node.system).filter(([, v]) => v))));
    this.list.set(node.podList);
  }

  #taint(t) {
    const spec = t.key + (t.value ? '=' + t.value : '') + ':' + t.effect;
    return h('li', {}, h('code', {}, spec), t.since ? h('span', {class: 'quiet'}, ' since ' + moment(t.since)) : null,
      h('button', {type: 'button', class: 'small', onclick: () => this.whatIf(`untaint node/${this.name} ${t.key}:${t.effect}`)}, 'What if it were removed?'));
  }

  // #more is what is folded away until somebody unfolds it.
  #more(title, pairs) {
    if (!pairs.length) return null;
    return h('details', {class: 'fact', open: this.unfolded.has(title), ontoggle: (e) => this.unfolded[e.target.open ? 'add' : 'delete'](title)},
      h('summary', {}, title + ' ', h('span', {class: 'quiet'}, plural(pairs.length, 'entry', 'entries'))),
      h('dl', {}, pairs.map(([k, v]) => [h('dt', {}, k), h('dd', {}, v || '–')])));
  }

  changed(detail) {
    if (detail.fresh || detail.nodes.has(this.name)) this.load();
  }

  tick() { this.list.tick(); }
  close() { this.closed = true; }
}

function withOverhead(write, n, overhead) {
  if (!overhead) return write(n);
  return h('div', {class: 'two end', title: `${write(overhead)} of it pod overhead`}, h('div', {}, write(n)), h('div', {class: 'why'}, 'ovh ' + write(overhead)));
}

function section(title, ...children) {
  return h('section', {class: 'fact'}, h('h3', {}, title), children);
}

// room is how much of a resource is requested; what of it is pod overhead is hatched.
function room(r, node) {
  const requested = Math.min(1, r.share), over = Math.min(requested, r.overShare);
  const pair = {cpu: node.cpu, memory: node.memory, ...node.others}[r.name], write = (n) => amount(r.name, n);
  const overhead = pair && Math.round(r.overShare * pair[1]);
  const amounts = pair ? pair.map(write) : [r.requested, r.allocatable];
  return [
    h('span', {class: 'label', title: r.name}, r.name),
    h('span', {class: 'meter wide', 'aria-hidden': 'true'}, h('i', {style: {width: (requested - over) * 100 + '%'}}), over ? h('i', {class: 'over', style: {width: over * 100 + '%'}}) : null),
    h('span', {class: 'amount'}, `${amounts[0]} of ${amounts[1]}`),
    h('span', {class: 'quiet'}, percent(r.share) + (overhead ? `, ${write(overhead)} overhead` : '')),
  ];
}

function condition(c) {
  return h('li', {class: 'condition' + (c.good ? '' : ' bad')}, h('i', {class: c.good ? 'dot good' : 'dot bad', 'aria-hidden': 'true'}),
    h('span', {}, h('b', {}, c.type), ' ' + c.status, h('span', {class: 'quiet'}, [c.reason, c.good ? '' : c.message].filter(Boolean).map((w) => ' · ' + w).join(''))),
    h('span', {class: 'quiet small'}, c.since > 0 ? moment(c.since) : ''));
}

export {section};
