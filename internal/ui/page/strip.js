// The strip: pods pending, evictions, preemptions and nodes that failed, by time. It follows the time unless the reader goes back.

import {h, replace, text} from './dom.js';
import {inks} from './colours.js';
import {count, plural, time} from './format.js';

const spans = [['15 min', 900], ['1 h', 3600], ['6 h', 21600]];
const lanes = [['evicted', 1], ['preempted', 2], ['failed', 3]];
const left = 62, right = 30, laneHeight = 8, chart = 24;

export class Strip {
  // list(from, to) lists what happened around a click, or where Enter is pressed. go(ms), if given, takes the place of a click: in a
  // recording, it leads to that time.
  constructor(element, store, {go, list} = {}) {
    Object.assign(this, {store, go, list});
    this.span = 900000;
    this.end = null; // null: now
    this.cursor = null;
    this.reach = 0; // how far around the cursor is told of, at least: keys go in steps, and what lies between two is not left out
    this.canvas = h('canvas', {'aria-hidden': 'true'});
    this.box = h('div', {class: 'strip-box', tabindex: '0', role: 'slider', 'aria-label': 'What happened, by time. Arrow keys go through it, Enter lists the moment.',
      'aria-valuemin': '0', 'aria-valuemax': '100', 'aria-valuenow': '100', 'aria-valuetext': 'now'}, this.canvas);
    this.said = h('span', {class: 'strip-said'});
    this.now = h('button', {type: 'button', class: 'small', hidden: true, onclick: () => { this.end = this.cursor = null; this.plan(); }}, 'Now');
    this.select = h('select', {'aria-label': 'How much time is shown', onchange: (e) => { this.span = Number(e.target.value) * 1000; this.plan(); }}, spans.map(([words, s]) => h('option', {value: String(s)}, words)));
    const fold = h('button', {type: 'button', class: 'small fold-strip', 'aria-expanded': 'false', onclick: () => {
      fold.setAttribute('aria-expanded', String(element.classList.toggle('open')));
    }}, 'Timeline'); // where there is little room, the rest is folded away
    replace(element, h('div', {class: 'strip-head'}, this.said, h('span', {class: 'grow'}), this.now, this.select, fold), this.box);
    element.strip = this; // for tests
    this.box.addEventListener('pointermove', (e) => this.point(e.offsetX));
    this.box.addEventListener('pointerleave', () => { if (!this.go) this.cursor = null; this.plan(); });
    this.box.addEventListener('click', (e) => { this.point(e.offsetX); if (this.go) this.go(this.cursor); else this.listed(); });
    this.box.addEventListener('wheel', (e) => { e.preventDefault(); this.shift((e.deltaX || e.deltaY) / 400 * this.span); }, {passive: false});
    this.box.addEventListener('keydown', (e) => this.key(e));
    // Its size is noted when it changes: to ask for it while a frame is made would lay out the page anew.
    new ResizeObserver(() => { this.width = this.box.clientWidth; this.height = this.box.clientHeight; this.plan(); }).observe(this.box);
  }

  // wide offers all of a recording, and shows it.
  wide(ms) {
    this.span = Math.max(60000, ms);
    this.select.prepend(h('option', {value: String(this.span / 1000), selected: true}, 'All'));
    this.plan();
  }

  // bounds are the first and the last time that something is known of.
  bounds() {
    const first = Math.min(this.store.history[0]?.[0] ?? Infinity, this.store.since ?? Infinity, this.store.now());
    return [Math.min(first, this.until || this.store.now()), this.until || this.store.now()];
  }

  // shift moves the part that is shown, not before the first and not after the last.
  shift(ms) {
    const [first, last] = this.bounds(), end = Math.max(Math.min(last, first + this.span), Math.min(last, (this.end ?? last) + ms));
    this.end = end >= last - 1000 ? null : end;
    this.plan();
  }

  // listed lists the moment at the cursor: what speak tells of it.
  listed() {
    const reach = Math.max(this.reach, 10000, 0.01 * this.span);
    if (this.cursor !== null) this.list?.(this.cursor - reach, this.cursor + reach);
  }

  key(event) {
    if (event.key === 'Enter') this.listed();
    const [first, last] = this.bounds(), step = this.span / 60;
    const at = {ArrowLeft: -step, ArrowRight: step, PageUp: -this.span / 2, PageDown: this.span / 2}[event.key];
    if (at === undefined && event.key !== 'Home' && event.key !== 'End') return;
    event.preventDefault();
    this.reach = step / 2;
    this.cursor = event.key === 'Home' ? first : event.key === 'End' ? last : Math.max(first, Math.min(last, (this.cursor ?? this.end ?? last) + at));
    const end = this.end ?? last;
    if (this.cursor > end) this.shift(this.cursor - end);
    if (this.cursor < end - this.span) this.shift(this.cursor - (end - this.span));
    this.go?.(this.cursor);
    this.plan();
  }

  point(x) {
    const width = this.width - left - right, [, last] = this.bounds();
    this.reach = 0;
    this.cursor = Math.min(last, (this.end ?? last) - this.span * (1 - Math.max(0, Math.min(1, (x - left) / width))));
    this.plan();
  }

  // at sums up what happened from one time until before another, and how many were pending at most.
  at(from, to) {
    const sum = [0, 0, 0, 0];
    let before = 0;
    for (const m of this.store.history) {
      if (m[0] >= to) break;
      before = m[4];
      if (m[0] < from) continue;
      for (let k = 0; k < 3; k++) sum[k] += m[k + 1];
      sum[3] = Math.max(sum[3], m[4]);
    }
    sum[3] = Math.max(sum[3], before);
    return sum;
  }

  plan() {
    if (this.planned) return;
    this.planned = requestAnimationFrame(() => { this.planned = 0; this.draw(); });
  }

  draw() {
    const {width, height} = this, ratio = Math.min(devicePixelRatio || 1, 3);
    if (!width || !height) { // it is folded away
      const end = this.end ?? this.bounds()[1];
      this.speak(end - this.span, end, 1);
      return;
    }
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.setProperty('width', width + 'px');
      this.canvas.style.setProperty('height', height + 'px');
    }
    const pen = this.canvas.getContext('2d'), ink = inks(), [, last] = this.bounds(), end = this.end ?? last, from = end - this.span;
    const columns = Math.max(1, Math.floor((width - left - right) / 3));
    const columnOf = (ms) => Math.floor((ms - from) / this.span * columns);
    const sums = Array.from({length: columns}, () => [0, 0, 0, null]);
    let pending = null, at = 0;
    for (const m of this.store.history) {
      if (m[0] > end) break;
      const c = columnOf(m[0]);
      if (c < 0) { pending = m[4]; continue; }
      for (; at < Math.min(c, columns); at++) sums[at][3] ??= pending;
      const sum = sums[Math.min(c, columns - 1)];
      for (let k = 0; k < 3; k++) sum[k] += m[k + 1];
      sum[3] = Math.max(sum[3] ?? 0, m[4], pending ?? 0);
      pending = m[4];
    }
    if (this.end === null && this.store.summary && !this.until) pending = this.store.summary.pending;
    for (; at < columns; at++) sums[at][3] ??= pending;
    const most = Math.max(1, ...sums.map((s) => s[3] ?? 0));
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = '10px system-ui, sans-serif';
    pen.textBaseline = 'middle';
    const word = (words, y) => { pen.fillStyle = ink.quiet; pen.textAlign = 'right'; pen.fillText(words, left - 6, y); };
    word('pending', chart - 6);
    word(String(most), 6);
    lanes.forEach(([words], k) => word(words, chart + 6 + k * (laneHeight + 3) + laneHeight / 2));
    // Of before the dashboard has watched, nothing is drawn: that nothing happened is not known.
    const known = Math.max(0, (this.bounds()[0] - from) / this.span) * (width - left - right);
    pen.fillStyle = ink.track;
    lanes.forEach((_, k) => pen.fillRect(left + known, chart + 6 + k * (laneHeight + 3), Math.max(0, width - left - right - known), laneHeight));
    sums.forEach((sum, c) => {
      const x = left + c * 3;
      if (sum[3]) {
        const tall = Math.max(2, (chart - 3) * sum[3] / most);
        pen.fillStyle = ink.come;
        pen.fillRect(x, chart - tall, 2.5, tall);
      }
      lanes.forEach(([, k], lane) => {
        if (!sum[k - 1]) return;
        pen.fillStyle = ink.mark;
        pen.fillRect(x - 0.5, chart + 6 + lane * (laneHeight + 3), 3.5, laneHeight);
      });
    });
    this.counts(pen, ink, sums);
    this.axis(pen, ink, from, end, width, height);
    this.speak(from, end, columns);
  }

  // counts writes behind each group of bars how many they stand for, where there is room before the next group.
  counts(pen, ink, sums) {
    pen.font = '600 9px system-ui, sans-serif';
    pen.textAlign = 'left';
    pen.textBaseline = 'middle';
    pen.fillStyle = ink.text;
    lanes.forEach(([, k], lane) => {
      let sum = 0, last = -1;
      const write = (next) => {
        const words = count(sum), x = left + (last + 1) * 3 + 2;
        if (sum && x + pen.measureText(words).width < left + next * 3 - 1) pen.fillText(words, x, chart + 6 + lane * (laneHeight + 3) + laneHeight / 2 + 0.5);
      };
      sums.forEach((s, c) => {
        if (!s[k - 1]) return;
        if (last >= 0 && c - last > 4) { write(c); sum = 0; }
        sum += s[k - 1];
        last = c;
      });
      write(sums.length + 8); // the margin
    });
  }

  axis(pen, ink, from, end, width, height) {
    const every = [60, 120, 300, 600, 900, 1800, 3600, 7200].map((s) => s * 1000).find((ms) => (width - left - right) / (this.span / ms) > 70) || 7200000;
    pen.font = '10px system-ui, sans-serif';
    pen.textBaseline = 'alphabetic';
    pen.textAlign = 'center';
    for (let at = Math.ceil(from / every) * every; at <= end; at += every) {
      const x = left + (at - from) / this.span * (width - left - right);
      if (x < left + 16 || x > width - 16) continue;
      pen.fillStyle = ink.quiet;
      pen.fillText(time(at).slice(0, 5), x, height - 2);
    }
    const cursor = this.store.frozen ?? this.cursor;
    if (cursor === null) return;
    const x = left + (cursor - from) / this.span * (width - left - right);
    pen.fillStyle = ink.text;
    if (x >= left) pen.fillRect(Math.min(x, width - right) - 0.75, 0, 1.5, height - 12);
  }

  // speak says what happened where the cursor is, or in all that is shown.
  speak(from, end, columns) {
    const some = this.cursor !== null, reach = Math.max(this.reach, 1.5 * this.span / columns);
    const [a, b] = some ? [this.cursor - reach, this.cursor + reach] : [from, end + 1];
    const [evicted, preempted, failed, pending] = this.at(a, b);
    const words = `${plural(evicted, 'eviction')}, ${plural(preempted, 'preemption')}, ${plural(failed, 'node')} failed, ${some ? '' : 'up to '}${count(pending)} pending`;
    const [first, last] = this.bounds(), short = !this.until && first > from; // less is known than is shown
    const named = spans.find(([, s]) => s * 1000 === this.span);
    const when = some ? time(this.cursor) : short ? `Since ${time(first)}, when this dashboard started`
      : this.end !== null ? time(from).slice(0, 5) + ' to ' + time(end).slice(0, 5) : named ? (this.until ? '' : 'Last ') + named[0] : 'In all';
    const dark = short && some && this.cursor + reach < first;
    text(this.said, dark ? `${when}: not known, this dashboard started at ${time(first)}` : `${when}: ${words}`);
    this.now.hidden = this.end === null || Boolean(this.go);
    this.box.setAttribute('aria-valuetext', this.said.textContent);
    this.box.setAttribute('aria-valuenow', String(Math.round(100 * ((this.cursor ?? end) - first) / Math.max(1, last - first))));
  }
}
