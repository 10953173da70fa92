// Where on the map each node is: zones side by side, nodes by name, in the largest cells of which all fit. The cells fill the room.

import {natural} from './format.js';

const title = 26, between = 16, margin = 14;
const smallest = 6, touched = 44; // sides of cells, in pixels: below the first, one scrolls; a phone's fingers need the second

// kindOf is what a cell of a size looks like: card has a heading, a foot and its pods, tile a name and its pods, dot no words.
const kindOf = (w, h) => (w >= 116 && h >= 74 ? 'card' : w >= 44 && h >= 30 ? 'tile' : 'dot');

// roomFor tells whether pods are drawn in cells of a size.
export const roomFor = ({w, h}) => Math.min(w, h) >= 18;

const gapOf = (pitch) => (pitch > 110 ? 10 : pitch > 46 ? 6 : pitch > 22 ? 3 : pitch > 9 ? 2 : 1);

// layout places nodes on so much room; what does not fit in the smallest cells is scrolled to.
export function layout(nodes, width, height, groupOf = (node) => node.zone) {
  const zones = new Map();
  for (const node of nodes) {
    const zone = groupOf(node);
    if (!zones.has(zone)) zones.set(zone, []);
    zones.get(zone).push(node);
  }
  const names = [...zones.keys()].sort(natural);
  const lists = names.map((name) => zones.get(name).sort((a, b) => natural(a.name, b.name)));
  const counts = lists.map((list) => list.length), room = Math.max(40, width - 2 * margin);
  let best = largest(counts, room, height);
  for (let screens = 2; width < 500 && screens <= 3 && best && Math.min(best.w, best.h) < touched; screens++) best = largest(counts, room, screens * height);
  return place(names, lists, best || scrolled(counts, room), room);
}

// largest is the arrangement with the largest cells that fits: {bands, across, w, h, gap}; null if none does.
function largest(counts, width, height) {
  let best = null;
  for (const {bands, across, down} of arrangements(counts, Math.floor(width / smallest))) {
    const zones = Math.max(...bands.map((band) => band.length));
    const wide = width - (zones - 1) * between, tall = height - 2 * margin - bands.length * title - (bands.length - 1) * between;
    const gap = gapOf(Math.min(wide / across, tall / down)); // behind the last column and row of a zone there is none
    let w = Math.floor((wide + zones * gap) / across - gap), h = Math.floor((tall + bands.length * gap) / down - gap);
    if (Math.min(w, h) < smallest) continue;
    const [slim, flat] = Math.min(w, h) < 30 ? [1.3, 1.6] : [1.8, 3.4]; // the shapes that a cell may have
    w = Math.min(w, Math.floor(h * flat));
    h = Math.min(h, Math.floor(w * slim));
    const worth = w * h * (1 - 0.12 * Math.abs(Math.log(w / h / 1.3)));
    if (!best || worth > best.worth) best = {bands, across, w, h, gap, worth};
  }
  return best;
}

// scrolled is the lowest arrangement of the smallest cells.
function scrolled(counts, width) {
  const gap = 1;
  let best = null;
  for (const {bands, across, down} of arrangements(counts, Math.floor(width / (smallest + gap)))) {
    const zones = Math.max(...bands.map((band) => band.length)), tall = bands.length * (title + between) + down * (smallest + gap);
    if (across * (smallest + gap) + (zones - 1) * between <= width && (!best || tall < best.tall)) best = {bands, across, w: smallest, h: smallest, gap, tall};
  }
  return best || {bands: counts.map((n) => [{count: n, columns: 1, rows: n}]), across: 1, w: smallest, h: smallest, gap};
}

// arrangements are the ways to put zones into bands, one below the other, and their nodes into rows and columns. In a band all zones
// have as many rows; across is the most columns of a band, down the rows of all of them.
function* arrangements(counts, most) {
  for (let n = 1; n <= counts.length; n++) {
    const bands = split(counts, n);
    const fewest = Math.max(...bands.map((band) => band.length)), widest = Math.max(...bands.map((band) => band.reduce((a, b) => a + b, 0)));
    for (let columns = fewest; columns <= Math.min(most, widest); columns++) {
      const dealt = bands.map((band) => deal(band, columns));
      const across = Math.max(...dealt.map((band) => band.reduce((sum, zone) => sum + zone.columns, 0)));
      if (across === columns) yield {bands: dealt, across, down: dealt.reduce((sum, band) => sum + band[0].rows, 0)};
    }
  }
}

// split cuts a list of counts into n parts of about the same sum, in their order.
function split(counts, n) {
  const all = counts.reduce((a, b) => a + b, 0), parts = Array.from({length: n}, () => []);
  let sum = 0, at = 0;
  counts.forEach((count, i) => {
    const left = counts.length - i;
    if (parts[at].length && at < n - 1 && (sum + count / 2 > all * (at + 1) / n || left <= n - 1 - at)) at++;
    parts[at].push(count);
    sum += count;
  });
  return parts.filter((part) => part.length);
}

// deal gives the zones of a band so many columns in all that they need the fewest rows.
function deal(band, columns) {
  let low = 1, high = Math.max(...band);
  while (low < high) {
    const rows = (low + high) >> 1;
    if (band.reduce((sum, n) => sum + Math.ceil(n / rows), 0) <= columns) high = rows;
    else low = rows + 1;
  }
  return band.map((count) => ({count, columns: Math.ceil(count / low), rows: low}));
}

function place(names, lists, {bands, w, h, gap}, room) {
  const cells = [], groups = [], index = new Map(), size = {w, h, gap, kind: kindOf(w, h)};
  let y = margin;
  for (const band of bands) {
    // What whole pixels leave over is between the zones.
    const left = room - band.reduce((sum, zone) => sum + zone.columns * (w + gap) - gap, 0), apart = band.length > 1 ? Math.floor(left / (band.length - 1)) : 0;
    let x = margin;
    for (const {count, columns} of band) {
      const zone = groups.length;
      groups.push({name: names[zone], x, y, width: columns * (w + gap) - gap, from: cells.length, count, columns});
      lists[zone].forEach((node, i) => {
        index.set(node.name, cells.length);
        cells.push({name: node.name, zone, x: x + (i % columns) * (w + gap), y: y + title + Math.floor(i / columns) * (h + gap)});
      });
      x += columns * (w + gap) - gap + Math.max(between, Math.min(apart, 3 * between));
    }
    y += title + Math.max(...band.map((zone) => Math.ceil(zone.count / zone.columns))) * (h + gap) - gap + between;
  }
  return {cells, groups, index, size, height: y - between + margin};
}

// titleAt finds the group whose title is at a point; undefined if there is none.
export const titleAt = (l, x, y) => l.groups.find((g) => x >= g.x && x <= g.x + g.width && y >= g.y && y < g.y + title);

// at finds the cell at a point, -1 if there is none.
export function at(l, x, y) {
  for (const group of l.groups) {
    const column = Math.floor((x - group.x) / (l.size.w + l.size.gap)), row = Math.floor((y - group.y - title) / (l.size.h + l.size.gap));
    const i = row * group.columns + column;
    if (row < 0 || column < 0 || column >= group.columns || i >= group.count) continue;
    const cell = l.cells[group.from + i];
    if (x <= cell.x + l.size.w && y <= cell.y + l.size.h) return group.from + i;
  }
  return -1;
}

// step is the cell that a key leads to; -1 if the key leads nowhere.
export function step(l, from, key) {
  const last = l.cells.length - 1;
  if (from < 0) return 0;
  const {zone} = l.cells[from];
  switch (key) {
    case 'ArrowRight': return beside(l, from, 1) ?? Math.min(last, from + 1);
    case 'ArrowLeft': return beside(l, from, -1) ?? Math.max(0, from - 1);
    case 'ArrowDown': return above(l, from, 1) ?? from;
    case 'ArrowUp': return above(l, from, -1) ?? from;
    case 'Home': return 0;
    case 'End': return last;
    case 'PageDown': return l.groups[Math.min(l.groups.length - 1, zone + 1)].from;
    case 'PageUp': return l.groups[Math.max(0, from === l.groups[zone].from ? zone - 1 : zone)].from;
  }
  return -1;
}

// beside is the next cell in the same line, of whatever zone.
function beside(l, from, direction) {
  const cell = l.cells[from];
  return nearest(l, (c) => (c.y === cell.y && (c.x - cell.x) * direction > 0 ? Math.abs(c.x - cell.x) : Infinity));
}

// above is the cell in the next line above or below that is closest.
function above(l, from, direction) {
  const cell = l.cells[from];
  return nearest(l, (c) => ((c.y - cell.y) * direction > 0 ? Math.abs(c.y - cell.y) * 1e5 + Math.abs(c.x - cell.x) : Infinity));
}

// nearest is the cell of the shortest distance; undefined if all are infinitely far.
function nearest(l, distance) {
  let best, least = Infinity;
  l.cells.forEach((cell, i) => {
    const d = distance(cell);
    if (d < least) [best, least] = [i, d];
  });
  return best;
}
