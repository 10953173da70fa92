// The devices of a node: who uses them, their taints, and shares of them; and what a pod requests of devices. Both are read when they are
// unfolded.

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

  show({slices, claims}, missing) { // the server writes an empty list as null
    const users = usersOf(claims || []);
    replace(this.content,
      slices?.length ? slices.map(({spec}) => h('section', {class: 'fact'}, h('h3', {}, `${spec.driver} · pool ${spec.pool.name}`, h('span', {class: 'quiet'}, ' ' + plural(spec.devices?.length || 0, 'device'))),
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

// Requests is what a pod requests: resources, and devices by its claims.
export class Requests {
  constructor(namespace, name) {
    Object.assign(this, {namespace, name});
    this.content = h('div', {class: 'fact-group', 'aria-live': 'polite'});
    this.element = h('details', {class: 'fact', ontoggle: (e) => { if (e.target.open) this.load(); }}, h('summary', {}, 'Requests and devices'), this.content);
  }

  async load() {
    replace(this.content, h('p', {class: 'thinking'}, 'Reading the pod and its claims …'));
    try {
      const {answer, missing} = await ask('/api/objects?' + new URLSearchParams({namespace: this.namespace, pod: this.name}));
      this.show(answer, missing);
    } catch (error) {
      replace(this.content, h('p', {class: 'fault'}, error.message));
    }
  }

  show({requests = {}, pod, claims, named}, missing) {
    const byName = new Map((claims || []).map((c) => [c.metadata.name, c]));
    const made = (c) => byName.get(c.resourceClaimName || named?.find((n) => n.name === c.name)?.resourceClaimName);
    replace(this.content,
      h('ul', {class: 'plain'}, Object.entries(requests).map(([name, n]) => h('li', {}, h('b', {}, n), ' ' + name))),
      (pod || []).map((c) => h('section', {class: 'fact device-claim'}, h('h3', {}, 'Claim ' + c.name, h('span', {class: 'quiet'}, c.resourceClaimTemplateName ? ` from template ${c.resourceClaimTemplateName}` : '')), claim(made(c), c))),
      pod?.length ? null : h('p', {class: 'quiet'}, 'The pod has no ResourceClaims.'),
      missing?.length ? h('p', {class: 'quiet'}, 'Not read: ' + missing.join('; ')) : null);
  }
}

// claim describes a ResourceClaim of a pod: its requests, and the devices that it has.
function claim(made, {resourceClaimName, resourceClaimTemplateName}) {
  if (!made) return h('p', {class: 'bad'}, resourceClaimName ? `ResourceClaim ${resourceClaimName} does not exist.` : `No claim has been made from ${resourceClaimTemplateName || 'its template'} yet.`);
  const results = made.status?.allocation?.devices?.results || [], request = (name, r) => h('li', {}, h('b', {}, name), ' ',
    r.allocationMode === 'All' ? 'all devices' : plural(r.count || 1, 'device'), ' of class ', h('b', {}, r.deviceClassName),
    (r.selectors || []).map((s) => h('div', {}, h('code', {}, s.cel?.expression || ''))),
    (r.tolerations || []).length ? h('div', {class: 'quiet'}, 'tolerates ' + r.tolerations.map((t) => t.key || 'all taints').join(', ')) : null,
    Object.entries(r.capacity?.requests || {}).map(([key, n]) => h('div', {class: 'quiet'}, `${n} of ${key}`)));
  return [h('ul', {class: 'plain'}, (made.spec.devices?.requests || []).map((r) => (r.exactly ? request(r.name, r.exactly)
    : h('li', {}, h('b', {}, r.name), ', the first available of', h('ol', {}, (r.firstAvailable || []).map((s) => request(s.name, s))))))),
  results.length ? h('p', {}, h('span', {class: 'chip come'}, 'allocated'), ' ', results.map((r) => `${r.driver}/${r.pool}/${r.device}`).join(', ')) : h('p', {}, h('span', {class: 'chip warn'}, 'not allocated'), h('span', {class: 'quiet'}, ' The scheduler allocates devices together with the node.'))];
}
