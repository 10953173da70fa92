// The map of nodes and the pods in them: a canvas that draws only what changed, and beside it, for keyboards and screen readers, a list box of which the
// canvas is the picture.

import {h, paced, text} from './dom.js';
import {inks, isDark} from './colours.js';
import {layout, at, roomFor, step, titleAt} from './layout.js';
import {blocksOf} from './blocks.js';
import {boxOf, drawCell, drawTally, drawTitle} from './cell.js';
import {drawFlows} from './flows.js';
import {common} from './names.js';
import {describe} from './describe.js';

export class Map2D {
  // view says how to colour: {colour, metric, plan, marked}.
  constructor(element, store, view, {open, openPod, hover, named, zoom}) {
    Object.assign(this, {element, store, view, open, openPod, hover, named, zoom});
    this.dirty = new Set();
    this.all = true; // everything has to be drawn
    this.stale = true; // the layout has to be made
    this.active = -1; this.over = -1; this.scrolled = 0;
    this.base = h('canvas', {'aria-hidden': 'true'});
    this.top = h('canvas', {'aria-hidden': 'true', class: 'top'});
    this.spacer = h('div', {class: 'spacer'});
    this.option = h('div', {role: 'option', id: 'map-option', class: 'hidden', 'aria-selected': 'true'});
    this.box = h('div', {class: 'scroller', tabindex: '0', role: 'listbox', id: 'map-box',
      'aria-label': 'Nodes by zone. Arrow keys move from node to node, Enter opens one.'}, h('div', {class: 'canvases'}, this.base, this.top), this.spacer, this.option);
    element.append(this.box);
    element.map = this; // for tests: where a node is drawn
    this.follow = paced(250, () => this.plan());
    this.listen();
  }

  listen() {
    this.box.addEventListener('scroll', () => { this.scrolled = this.box.scrollTop; this.redraw(); }, {passive: true});
    this.box.addEventListener('pointermove', (e) => this.point(e));
    this.box.addEventListener('pointerleave', () => this.point(null));
    this.box.addEventListener('click', (e) => {
      const title = this.layout && titleAt(this.layout, ...this.where(e));
      if (title) { this.zoom(title.name); return; }
      const i = this.at(e), block = this.blockAt(i, e);
      if (i >= 0) this.activate(i);
      if (block) this.openPod(block.pod.ns, block.pod.n);
      else if (i >= 0) this.open(this.layout.cells[i].name);
    });
    this.box.addEventListener('keydown', (e) => this.key(e));
    this.box.addEventListener('focus', () => { this.overlay(); });
    this.box.addEventListener('blur', () => this.overlay());
    // Its size is noted when it changes: to ask for it while a frame is made would lay out the page anew.
    new ResizeObserver(() => { this.width = this.box.clientWidth; this.height = this.box.clientHeight; this.relayout(); }).observe(this.box);
  }

  key(event) {
    if (event.ctrlKey || event.altKey || event.metaKey || !this.layout?.cells.length) return;
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      if (this.active >= 0) this.open(this.layout.cells[this.active].name);
      return;
    }
    const next = step(this.layout, this.active, event.key);
    if (next < 0) return;
    event.preventDefault();
    this.activate(next);
  }

  // settle makes a node the active one.
  settle(i) {
    this.active = i;
    this.activeName = this.layout.cells[i].name;
    this.option.setAttribute('aria-posinset', String(i + 1));
    this.option.setAttribute('aria-setsize', String(this.layout.cells.length));
    this.box.setAttribute('aria-activedescendant', 'map-option');
    this.say();
  }

  // activate does so and brings it into sight.
  activate(i) {
    const cell = this.layout?.cells[i];
    if (!cell) return;
    this.settle(i);
    const margin = 30, top = cell.y - margin, bottom = cell.y + this.layout.size.h + margin;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (bottom > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = bottom - this.box.clientHeight;
    this.scrolled = this.box.scrollTop;
    this.overlay();
  }

  // say describes the active node to screen readers.
  say() {
    const node = this.node(this.activeName);
    if (node) text(this.option, describe(node, this.view.plan?.of(node.name)));
  }

  // node is the row of a name; nodes that only a plan has are in the plan.
  node(name) { return this.store.nodes.get(name) || this.view.plan?.added.get(name); }

  point(event) {
    const i = event ? this.at(event) : -1;
    if (i === this.over && event === null) return;
    this.over = i;
    this.overBlock = event ? this.blockAt(i, event) : null;
    this.box.classList.toggle('over', i >= 0 || Boolean(event && this.layout && titleAt(this.layout, ...this.where(event))));
    this.hover(i >= 0 ? this.node(this.layout.cells[i].name) : null, event, this.overBlock?.pod);
    this.overlay();
  }

  // where an event is on the map, wherever that is scrolled to.
  where(event) {
    const r = this.box.getBoundingClientRect();
    return [event.clientX - r.left, event.clientY - r.top + this.box.scrollTop];
  }

  at(event) { return this.layout ? at(this.layout, ...this.where(event)) : -1; }

  // blockAt is the pod's block of a cell that an event is on, large enough to be meant: {x, y, w, h, pod}.
  blockAt(i, event) {
    const cell = this.layout?.cells[i], node = cell && this.store.nodes.get(cell.name);
    if (!node?.blocks || !this.view.blocks) return null;
    const box = boxOf(cell, this.layout.size), [px, py] = this.where(event), x = px - box.x, y = py - box.y;
    const found = blocksOf(node, this.view.metric, box.w, box.h).list.find((b) => x >= b.x && x < b.x + b.w && y >= b.y && y < b.y + b.h);
    return found && Math.min(found.w, found.h) >= 5 ? {...found, x: found.x + box.x, y: found.y + box.y} : null;
  }

  // changed says which nodes are to be drawn again; shape: that some came or went.
  changed(names, shape) {
    if (shape) this.stale = true;
    else if (names.size > 500) this.all = true;
    else for (const name of names) this.dirty.add(name);
    if (names.has(this.activeName)) this.say();
    if (this.layout?.cells.length > 1000) this.follow(); // the browser takes the whole canvas for each frame
    else this.plan();
  }

  redraw() { this.all = true; this.plan(); }
  relayout() { this.stale = true; this.plan(); }

  plan() {
    if (this.planned) return;
    this.planned = requestAnimationFrame(() => { this.planned = 0; this.draw(); });
  }

  draw() {
    const {width, height} = this;
    if (!width || !height) return;
    if (this.stale) this.arrange(width, height);
    const pen = this.base.getContext('2d', {alpha: true});
    const from = this.scrolled;
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, -from * this.ratio);
    const ink = inks();
    if (this.all) {
      pen.clearRect(0, from, width, height);
      this.layout.groups.forEach((group, i) => { if (group.y + 30 > from && group.y < from + height) drawTitle(pen, group, this.zoneText(group), i, ink, this.view); });
      for (const cell of this.layout.cells) this.cell(pen, cell, from, height, ink);
    } else {
      for (const name of this.dirty) {
        const cell = this.layout.cells[this.layout.index.get(name)];
        if (!cell) continue;
        pen.clearRect(cell.x - 1, cell.y - 1, this.layout.size.w + 2, this.layout.size.h + 2);
        this.cell(pen, cell, from, height, ink);
      }
    }
    if (this.all || this.dirty.has(this.view.chosen)) this.overlay(); // otherwise what is above the cells is the same
    this.all = false;
    this.dirty.clear();
  }

  cell(pen, cell, from, height, ink) {
    if (cell.y + this.layout.size.h < from || cell.y > from + height) return;
    drawCell(pen, cell, this.layout.size, this.node(cell.name), this.view, ink);
  }

  arrange(width, height) {
    // In the order of before: to sort thousands of names takes long, unless they are nearly sorted.
    const rows = new Map([...(this.layout?.cells || []).map((cell) => [cell.name, null]), ...this.store.nodes, ...(this.view.plan?.added || [])]);
    const nodes = [...rows.values()].filter((node) => node && this.view.grouping.shows(node));
    this.layout = layout(nodes, width, height, (node) => this.view.grouping.of(node));
    this.ratio = Math.min((devicePixelRatio || 1) * (this.box.currentCSSZoom || 1), 3);
    this.view.drawn = true;
    this.view.blocks = roomFor(this.layout.size) && nodes.some((node) => node.blocks);
    this.names(nodes);
    for (const canvas of [this.base, this.top]) {
      canvas.width = width * this.ratio;
      canvas.height = height * this.ratio;
      canvas.style.setProperty('width', width + 'px');
      canvas.style.setProperty('height', height + 'px');
    }
    this.spacer.style.setProperty('height', this.layout.height + 'px');
    this.active = this.layout.index.get(this.activeName) ?? -1;
    this.option.hidden = !this.layout.cells.length;
    if (this.active < 0 && this.layout.cells.length) this.settle(0);
    this.element.dataset.nodes = String(this.layout.cells.length);
    this.scrolled = this.box.scrollTop;
    this.stale = false;
    this.all = true;
  }

  // names decides whether names fit as they are, or are written without what all have in common.
  names(nodes) {
    const {kind, w} = this.layout.size, room = kind === 'card' ? w - 100 : w - 44;
    const pen = this.base.getContext('2d');
    pen.font = `600 ${kind === 'card' ? 13 : 11}px system-ui, sans-serif`;
    const longest = nodes.reduce((a, n) => (n.name.length > a.length ? n.name : a), '');
    const short = kind !== 'dot' && pen.measureText(longest).width > room;
    this.view.common = short ? common(nodes.map((n) => n.name)) : null;
    this.named?.();
  }

  // zoneText is what is said of a zone, and what is said in less room.
  zoneText(group) {
    const {grouping} = this.view, name = group.name || (this.layout.groups.length > 1 || grouping.key ? 'no ' + (grouping.key || 'zone') : 'all nodes');
    const sign = grouping.zoomed === null ? '' : '  ·  show all';
    return [name + '  ·  ' + group.count + sign, name];
  }

  drawPlan(pen, ink) {
    drawFlows(pen, this.layout, this.view.plan, ink);
    for (const [name, change] of this.view.plan.changes) {
      const cell = this.layout.cells[this.layout.index.get(name)];
      if (cell) drawTally(pen, cell, this.layout.size, change, ink);
    }
  }

  // ringPod marks the pod that is open, if its node is drawn with its pods.
  ringPod(pen, cell, ink) {
    const node = this.store.nodes.get(cell.name), {chosenPod} = this.view;
    if (!chosenPod || !node?.blocks || !this.view.blocks) return;
    const box = boxOf(cell, this.layout.size), found = blocksOf(node, this.view.metric, box.w, box.h).list.find((b) => b.pod.ns + '/' + b.pod.n === chosenPod);
    if (!found) return;
    pen.lineWidth = 3;
    pen.strokeStyle = ink.focus;
    pen.strokeRect(box.x + found.x, box.y + found.y, found.w, found.h);
  }

  // reveal scrolls a node into sight.
  reveal(name) {
    const i = this.layout?.index.get(name);
    if (i !== undefined) this.activate(i);
    else this.overlay();
  }

  // overlay draws what is above the cells: the one with the focus, the one under the pointer, and where pods would go.
  overlay() {
    if (!this.layout) return;
    const pen = this.top.getContext('2d'), from = this.scrolled, size = this.layout.size, ink = inks();
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, this.top.width, this.top.height);
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, -from * this.ratio);
    if (this.view.plan) this.drawPlan(pen, ink);
    const ring = (i, width, colour) => {
      const cell = this.layout.cells[i];
      if (!cell) return;
      pen.lineWidth = width;
      pen.strokeStyle = colour;
      pen.beginPath();
      pen.roundRect(cell.x - width / 2 - 1, cell.y - width / 2 - 1, size.w + width + 2, size.h + width + 2, size.kind === 'dot' ? 3 : 8);
      pen.stroke();
    };
    const chosen = this.layout.index.get(this.view.chosen);
    if (chosen !== undefined) {
      ring(chosen, 2, ink.come);
      this.ringPod(pen, this.layout.cells[chosen], ink);
    }
    ring(this.over, 1.5, ink.quiet);
    if (this.overBlock) {
      const {x, y, w, h} = this.overBlock;
      pen.lineWidth = 2;
      pen.strokeStyle = ink.focus;
      pen.strokeRect(x, y, w - 1, h - 1);
    }
    if (document.activeElement === this.box) {
      ring(this.active, 2.5, ink.focus);
      ring(this.active, 1, isDark() ? '#10151f' : '#ffffff');
    }
  }
}
