// What the page knows of the cluster: rows by key, kept up to date by the server's deltas.

export class Store extends EventTarget {
  constructor() {
    super();
    this.nodes = new Map();
    this.queue = new Map();
    this.evictions = new Map();
    this.groups = new Map(); // pod groups with pending pods or in a tree with some, by key
    this.composites = new Map(); // composite pod groups of these trees, by key
    this.events = []; // the newest first
    this.departures = new Map(); // pods that left their nodes, by UID
    this.history = []; // moments, the oldest first: [at, evictions, preemptions, nodes failed, pending]
    this.since = null; // what happened before is not known
    this.summary = null;
    this.frozen = null; // the time that is looked at in a recording
    this.ahead = 0; // by how much this machine's clock is ahead of the server's
    this.words = new Map(); // long messages, each kept once
  }

  // now is the server's time: deadlines are by that clock.
  now() { return this.frozen ?? Date.now() - this.ahead; }

  tick(serverNow) { this.ahead = Date.now() - serverNow; }

  // apply takes in a delta and tells the views: {fresh, nodes: Set of names or null, queue: bool, evictions: bool, events: bool}.
  apply(delta) {
    this.tick(delta.now);
    this.summary = delta.summary;
    const fresh = Boolean(delta.fresh);
    if (fresh) {
      this.since = delta.since || null;
      this.nodes.clear(); this.queue.clear(); this.groups.clear(); this.composites.clear(); this.evictions.clear(); this.departures.clear(); this.words.clear(); this.events = []; this.history = [];
    }
    const nodes = new Set();
    let shape = fresh; // nodes came, went or moved
    for (const row of delta.nodes?.rows || []) {
      const before = this.nodes.get(row.name);
      shape ||= !before || before.zone !== row.zone;
      this.nodes.set(row.name, row);
      nodes.add(row.name);
    }
    for (const name of delta.nodes?.gone || []) {
      this.nodes.delete(name);
      nodes.add(name);
      shape = true;
    }
    this.#rows(this.queue, delta.queue);
    this.#rows(this.evictions, delta.evictions);
    this.#rows(this.groups, delta.groups, 'key');
    this.#rows(this.composites, delta.composites, 'key');
    for (const d of delta.departures || []) this.departures.set(d.uid, d);
    if (this.departures.size > 2500) this.departures = new Map([...this.departures].slice(-1500));
    this.#happened(delta.events || []);
    this.#passed(delta.history || []);
    this.dispatchEvent(new CustomEvent('change', {detail: {
      fresh, shape, nodes, queue: fresh || Boolean(delta.queue || delta.groups || delta.composites), evictions: fresh || Boolean(delta.evictions), events: fresh || Boolean(delta.events?.length), history: fresh || Boolean(delta.departures?.length || delta.queue),
      touched: delta,
    }}));
  }

  #rows(table, set, key = 'uid') {
    for (const row of set?.rows || []) {
      if (row.message) row.message = this.#once(row.message);
      table.set(row[key], row);
    }
    for (const gone of set?.gone || []) table.delete(gone);
  }

  #once(words) {
    if (this.words.size > 20000) this.words.clear();
    const known = this.words.get(words);
    if (known !== undefined) return known;
    this.words.set(words, words);
    return words;
  }

  // #passed takes in moments, of which the first may be one that is known already.
  #passed(moments) {
    if (!moments.length) return;
    while (this.history.length && this.history[this.history.length - 1][0] >= moments[0][0]) this.history.pop();
    this.history.push(...moments);
    if (this.history.length > 4320) this.history.splice(0, this.history.length - 2160);
  }

  #happened(events) {
    if (!events.length) return;
    const seen = new Set(events.map((e) => e.uid));
    this.events = [...events, ...this.events.filter((e) => !seen.has(e.uid))].sort((a, b) => b.at - a.at).slice(0, 300);
  }
}
