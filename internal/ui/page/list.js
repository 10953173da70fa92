// A table of any length: only the rows that can be seen are in the document, and a row stays the same element while it is.

import {h, keepFocus, replace} from './dom.js';
import {read, write} from './address.js';

const mostPrinted = 2000; // rows
const headHeight = 32; // which stays at the top, above the rows

export class List {
  // height is that of a row, or says it for the rows that there are.
  // columns: {key, title, width or width(rows), cell(row) → text or node, sort(row), end, tick(row, element)}.
  // arrange(rows, column, sign), if given, sorts in the place of the list: column is undefined where the reader has chosen none.
  // name is that of the list in the address, which says how it is sorted: ?sort.nodes=-cpu.
  constructor({label, columns, key, height = 34, name = '', sort = '', empty, classOf, arrange}) {
    Object.assign(this, {columns, key, tall: height, name, sort, usual: sort, descending: false, empty, classOf, arrange});
    this.rows = [];
    this.shown = new Map(); // by key: {element, row, cells}
    this.heads = columns.map((c) => this.#head(c));
    this.inner = h('div', {role: 'rowgroup', class: 'rows'});
    this.blank = h('div', {class: 'blank small', hidden: true});
    const heads = h('div', {role: 'rowgroup', class: 'heads'}, h('div', {role: 'row', class: 'row head'}, this.heads));
    this.scroller = h('div', {class: 'list-scroll', tabindex: '0', role: 'table', 'aria-label': label}, heads, this.inner);
    this.element = h('div', {class: 'list'}, this.scroller, this.blank);
    this.#stand([]);
    // Where it is scrolled to and how tall it is are noted when they change: to ask while rows are made would lay out the page for each.
    this.top = 0;
    this.room = 600;
    this.scroller.addEventListener('scroll', () => { this.top = this.scroller.scrollTop; this.draw(); }, {passive: true});
    this.scroller.addEventListener('keydown', (e) => this.#key(e));
    this.inner.addEventListener('focusin', (e) => { this.last = Number(e.target.closest('.row').dataset.at); });
    new ResizeObserver(() => { this.room = this.scroller.clientHeight || 600; this.top = this.scroller.scrollTop; this.draw(); }).observe(this.scroller);
  }

  // #stand makes rows as high as these need.
  #stand(rows) {
    this.element.style.setProperty('--columns', this.columns.map((c) => (typeof c.width === 'function' ? c.width(rows) : c.width || '1fr')).join(' '));
    const height = typeof this.tall === 'function' ? this.tall(rows) : this.tall;
    if (height === this.height) return;
    this.height = height;
    this.element.style.setProperty('--row', height + 'px');
    for (const shown of this.shown.values()) shown.at = -1; // they stand elsewhere
  }

  #head(column) {
    const head = h('div', {role: 'columnheader', class: column.end ? 'cell end' : 'cell'});
    if (!column.sort) { replace(head, column.title); return head; }
    head.append(h('button', {type: 'button', onclick: () => {
      this.descending = this.sort === column.key ? !this.descending : Boolean(column.end);
      this.sort = column.key;
      const words = (this.descending ? '-' : '') + this.sort;
      if (this.name) write({['sort.' + this.name]: words === this.usual ? '' : words});
      this.set(this.given);
    }}, column.title));
    return head;
  }

  // Up and down go from link to link; Page keys, Home and End scroll as everywhere.
  #key(event) {
    const step = {ArrowDown: 1, ArrowUp: -1, j: 1, k: -1}[event.key];
    if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    this.step(step);
  }

  // step moves the focus by so many rows from where it is, or else to where it was.
  step(by) {
    if (!this.rows.length) return;
    const focused = this.inner.contains(document.activeElement) ? Number(document.activeElement.closest('.row').dataset.at) + by : this.last ?? Math.floor(this.scroller.scrollTop / this.height);
    const at = Math.max(0, Math.min(this.rows.length - 1, focused));
    const top = at * this.height;
    const room = this.scroller.clientHeight - headHeight;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top + this.height > this.scroller.scrollTop + room) this.scroller.scrollTop = top + this.height - room;
    this.top = this.scroller.scrollTop;
    this.draw();
    const focus = this.shown.get(this.key(this.rows[at]))?.element.querySelector('a, button');
    (focus || this.scroller).focus({preventScroll: true});
  }

  // set shows these rows, sorted as the reader chose.
  set(rows) {
    this.given = rows = [...rows];
    this.#stand(rows);
    if (this.name) {
      const words = read('sort.' + this.name) || this.usual;
      this.descending = words.startsWith('-');
      this.sort = words.replace('-', '');
    }
    const column = this.columns.find((c) => c.key === this.sort && c.sort);
    const sign = this.descending ? -1 : 1;
    if (this.arrange) rows = this.arrange(rows, column, sign);
    else if (column) {
      const by = column.compare || ((a, b) => (a < b ? -1 : a > b ? 1 : 0));
      rows = [...rows].sort((a, b) => sign * by(column.sort(a), column.sort(b)));
    }
    this.columns.forEach((c, i) => {
      if (c === column) this.heads[i].setAttribute('aria-sort', this.descending ? 'descending' : 'ascending');
      else this.heads[i].removeAttribute('aria-sort');
    });
    this.rows = rows;
    this.scroller.setAttribute('aria-rowcount', String(rows.length + 1));
    this.element.dataset.rows = String(rows.length);
    this.inner.style.setProperty('height', rows.length * this.height + 'px');
    this.blank.hidden = rows.length > 0;
    this.element.classList.toggle('empty', !rows.length);
    if (!rows.length && this.empty) replace(this.blank, this.empty());
    this.draw();
  }

  // print puts all rows into the document, or only those that can be seen again.
  print(whole) {
    this.whole = whole;
    this.draw();
  }

  draw() {
    const top = Math.max(0, Math.min(this.top, this.rows.length * this.height - this.room + headHeight)); // the browser scrolls back when there are fewer rows
    const from = this.whole ? 0 : Math.max(0, Math.floor(top / this.height) - 6);
    const to = Math.min(this.rows.length, this.whole ? mostPrinted : Math.ceil((top + this.room) / this.height) + 6);
    const keep = new Set();
    for (let i = from; i < to; i++) {
      const row = this.rows[i], key = this.key(row);
      keep.add(key);
      let shown = this.shown.get(key);
      if (!shown) {
        shown = {element: h('div', {role: 'row', class: 'row'}), cells: this.columns.map((c) => h('div', {role: 'cell', 'data-title': c.title, class: c.end ? 'cell end' : 'cell'}))};
        shown.element.append(...shown.cells);
        this.shown.set(key, shown);
        this.inner.append(shown.element);
      }
      if (shown.at !== i) {
        shown.at = i;
        shown.element.style.setProperty('transform', `translateY(${i * this.height}px)`);
        shown.element.setAttribute('aria-rowindex', String(i + 2));
        shown.element.dataset.at = String(i);
      }
      if (shown.row !== row) {
        shown.row = row;
        shown.element.className = 'row' + (this.classOf ? ' ' + this.classOf(row) : '');
        keepFocus(shown.element, () => this.columns.forEach((c, k) => this.#fill(shown.cells[k], c.cell(row))));
      }
    }
    for (const [key, shown] of this.shown) {
      if (keep.has(key)) continue;
      shown.element.remove();
      this.shown.delete(key);
    }
    this.tick();
  }

  #fill(cell, value) {
    if (value instanceof Node) { cell.replaceChildren(value); cell.removeAttribute('title'); return; }
    const words = value === null || value === undefined ? '' : String(value);
    if (cell.textContent !== words) cell.textContent = words;
    cell.title = words.length > 12 ? words : '';
  }

  // tick brings what depends on the time up to date, in the rows that can be seen.
  tick() {
    for (const {row, cells} of this.shown.values()) {
      this.columns.forEach((c, k) => c.tick?.(row, cells[k]));
    }
  }
}
