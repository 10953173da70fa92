// The search field: nodes, pods and workloads by a part of their name, and namespaces, labels and taints to filter by.

import {h, link, replace} from './dom.js';
import {plural} from './format.js';

export class Search {
  constructor(input, box, {ask, open, filter}) {
    Object.assign(this, {input, box, ask, open, filter});
    this.at = -1;
    input.addEventListener('input', () => { this.stale = true; clearTimeout(this.timer); this.timer = setTimeout(() => this.find(), 120); });
    input.addEventListener('focus', () => { if (input.value) this.find(); });
    input.addEventListener('blur', () => setTimeout(() => this.close(), 150));
    input.addEventListener('keydown', (e) => this.key(e));
  }

  async find() {
    const words = this.input.value.trim();
    clearTimeout(this.timer);
    this.asking?.abort();
    if (!words) { this.close(); return; }
    this.asking = new AbortController();
    let found;
    try {
      found = await this.ask('/api/find?' + new URLSearchParams({q: words}), undefined, this.asking.signal);
    } catch { return; }
    const tally = (kind, list, leads) => (list || []).slice(0, 4).map((t) => ({name: t.text, note: `${kind}, ${plural(t.count, kind === 'label' || kind === 'taint' ? 'node' : 'pod')}`, ...leads(t.text)}));
    const entries = [
      ...(found.nodes || []).slice(0, 8).map((name) => ({href: link('node', name), name, note: 'node'})),
      ...tally('workload', found.workloads, (w) => ({href: link('workload', ...w.split('/'))})),
      ...(found.pods || []).slice(0, 8).map((p) => ({href: link('pod', p.namespace, p.name), name: p.namespace === 'default' ? p.name : p.namespace + '/' + p.name, note: p.node ? 'pod on ' + p.node : 'pod, ' + (p.status || 'pending')})),
      ...tally('namespace', found.namespaces, (namespace) => ({filter: {namespace}})),
      ...tally('label', found.labels, (labels) => ({filter: {labels}})),
      ...tally('taint', found.taints, (taint) => ({filter: {taint}})),
    ];
    if (document.activeElement !== this.input) return; // the reader has gone on
    this.stale = false;
    this.entries = entries;
    this.at = entries.length ? 0 : -1;
    replace(this.box, entries.map((e, i) => h('div', {role: 'option', id: 'found-' + i, onpointerdown: (event) => { event.preventDefault(); this.take(i); }}, h('span', {class: 'name'}, e.name), h('span', {class: 'quiet'}, e.note))),
      entries.length ? null : h('div', {class: 'none'}, 'No matches'));
    this.box.hidden = false;
    this.input.setAttribute('aria-expanded', 'true');
    this.choose();
  }

  choose() {
    [...this.box.querySelectorAll('[role=option]')].forEach((o, i) => {
      o.setAttribute('aria-selected', String(i === this.at));
      if (i === this.at) o.scrollIntoView({block: 'nearest'});
    });
    if (this.at >= 0) this.input.setAttribute('aria-activedescendant', 'found-' + this.at);
    else this.input.removeAttribute('aria-activedescendant');
  }

  key(event) {
    const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
    if (step && this.entries?.length) {
      event.preventDefault();
      this.at = (this.at + step + this.entries.length) % this.entries.length;
      this.choose();
    } else if (event.key === 'Enter') {
      event.preventDefault();
      this.enter();
    } else if (event.key === 'Escape') {
      if (this.box.hidden) this.input.blur();
      this.close();
    }
  }

  // enter takes what is marked, of what was found for the words as they are now.
  async enter() {
    if (this.stale) await this.find();
    if (!this.stale && !this.box.hidden && this.at >= 0) this.take(this.at);
  }

  take(i) {
    const entry = this.entries[i];
    if (entry.href) this.open(entry.href);
    else this.filter(entry.filter);
    this.input.value = '';
    this.close();
    this.input.blur();
  }

  close() {
    this.box.hidden = true;
    this.input.setAttribute('aria-expanded', 'false');
    this.input.removeAttribute('aria-activedescendant');
  }
}
