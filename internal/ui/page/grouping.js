// How nodes are grouped on the map: by zone or by any label. One group can be shown alone.

import {h, paced, replace} from './dom.js';
import {natural} from './format.js';
import {read, write} from './address.js';
import {ask} from './stream.js';

export class Grouping extends EventTarget {
  constructor(store) {
    super();
    this.store = store;
    this.values = {}; // of the label, by node
    this.keys = [];
    this.group = h('select', {'aria-label': 'Group nodes by', onchange: (e) => { write({group: e.target.value, zoom: ''}); this.load(); }});
    this.select = h('select', {'aria-label': 'Show one group', onchange: (e) => this.zoom(e.target.value === 'all' ? null : e.target.value.slice(1))});
    this.renew = paced(5000, () => this.#read()); // taints may change many times a second
    this.load();
  }

  // of returns the group of a node, and shows tells whether the node is on the map.
  of(node) { return this.key ? this.values[node.name] || '' : node.zone; }
  shows(node) { return this.zoomed === null || this.of(node) === this.zoomed; }

  // load takes what the address contains: ?group=LABEL&zoom==NAME. The equals sign tells the group without a name from all groups.
  load() {
    const zoom = read('zoom');
    this.key = read('group');
    this.zoomed = zoom ? zoom.slice(1) : null;
    this.#read();
  }

  // zoom shows one group, or all groups if it is shown already.
  zoom(name) {
    this.zoomed = name === this.zoomed ? null : name;
    write({zoom: this.zoomed === null ? '' : '=' + this.zoomed});
    this.#draw();
    this.dispatchEvent(new Event('change'));
  }

  // update reads the label again if the labels of nodes may have changed.
  update() {
    if (this.marked !== this.store.summary?.marked) this.renew();
    this.#draw();
  }

  async #read() {
    const {key} = this;
    this.marked = this.store.summary?.marked;
    const found = await ask('/api/labels?' + new URLSearchParams({key})).catch(() => null);
    if (key !== this.key) return; // another label was chosen meanwhile
    const before = JSON.stringify(this.values);
    this.values = found?.values || {};
    this.keys = found?.keys || [];
    this.#draw();
    if (JSON.stringify(this.values) !== before || key !== this.read) this.dispatchEvent(new Event('change')); // the map is laid out again
    this.read = key;
  }

  #draw() {
    const keys = this.key && !this.keys.includes(this.key) ? [this.key, ...this.keys] : this.keys;
    const groups = [...new Set([...this.store.nodes.values()].map((node) => this.of(node)))].sort(natural);
    if (this.zoomed !== null && this.store.nodes.size && !groups.includes(this.zoomed)) groups.push(this.zoomed);
    const drawn = JSON.stringify([keys, groups, this.key, this.zoomed]);
    if (drawn === this.drawn) return; // an open list keeps its place
    this.drawn = drawn;
    replace(this.group, h('option', {value: ''}, 'By zone'), keys.map((key) => h('option', {value: key, selected: key === this.key}, 'By ' + key)));
    replace(this.select, h('option', {value: 'all'}, this.key ? 'All groups' : 'All zones'),
      groups.map((name) => h('option', {value: '=' + name, selected: name === this.zoomed}, name || 'no ' + (this.key || 'zone'))));
    this.select.hidden = groups.length < 2 && this.zoomed === null;
    this.group.classList.toggle('on', Boolean(this.key));
    this.select.classList.toggle('on', this.zoomed !== null);
  }
}
