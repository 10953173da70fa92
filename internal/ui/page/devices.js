// The devices of a node: who uses them, their taints, and shares of them. They are read when they are unfolded.

import {breakable, h, podLink, replace} from './dom.js';
import {amount, plural} from './format.js';
import {ask} from './stream.js';

export class Devices {
  constructor(node) {
    this.node = node;
    this.content = h('div', {class: 'fact-group', 'aria-live': 'polite'});
    this.element = h('details', {class: 'fact', ontoggle: (e) => { if (e.target.open) this.load(); }}, h('summary', {}, 'Devices'), this.content);
  }

  async load() {
    replace(this.content, h('p', {class: 'thinking'}, 'Reading ResourceSlices and claims …'));
    try {
      const {answer, missing} = await ask('/api/objects?' + new URLSearchParams({node: this.node}));
      this.show(answer, missing);
    } catch (error) {
      replace(this.content, h('p', {class: 'fault'}, error.message));
    }
  }

  show({slices = [], claims = []}, missing) {
    const users = usersOf(claims);
    replace(this.content,
      slices.length ? slices.map(({spec}) => h('section', {class: 'fact'}, h('h3', {}, `${spec.driver} · pool ${spec.pool.name}`, h('span', {class: 'quiet'}, ' ' + plural(spec.devices?.length || 0, 'device'))),
        h('ul', {class: 'plain'}, (spec.devices || []).map((d) => device(d, users.get([spec.driver, spec.pool.name, d.name].join('\n')) || []))))) : h('p', {class: 'quiet'}, 'No ResourceSlice belongs to this node.'),
      missing?.length ? h('p', {class: 'quiet'}, 'Not read: ' + missing.join('; ')) : null);
  }
}

// usersOf maps driver, pool and device to the claims that have the device, with what each consumes of it.
function usersOf(claims) {
  const users = new Map();
  for (const {metadata, status} of claims) {
    for (const r of status.allocation.devices.results || []) {
      const key = [r.driver, r.pool, r.device].join('\n');
      if (!users.has(key)) users.set(key, []);
      users.get(key).push({claim: metadata, pods: (status.reservedFor || []).filter((c) => c.resource === 'pods'), consumed: r.consumedCapacity});
    }
  }
  return users;
}

function device(d, users) {
  return h('li', {class: 'device'}, h('b', {}, d.name), ' ',
    h('span', {class: users.length ? 'chip come' : 'chip'}, users.length ? (users.length > 1 ? plural(users.length, 'share') + ' in use' : 'in use') : 'free'),
    (d.taints || []).map((t) => [' ', h('span', {class: 'chip warn'}, breakable(`${t.key}${t.value ? '=' + t.value : ''}:${t.effect}`))]),
    users.map((u) => h('div', {class: 'quiet'}, u.pods.length ? u.pods.flatMap((p, i) => [i ? ', ' : '', podLink(u.claim.namespace, p.name)]) : 'no pod yet', ` by claim ${u.claim.name}`,
      u.consumed ? ': ' + Object.entries(u.consumed).map(([name, n]) => `${typeof n === 'number' ? amount(name, n) : n} ${name}`).join(', ') : '')));
}
