// Where on the map each node is: zones one below the other, nodes by name, in the largest cells of which all fit.

import {natural} from './format.js';

// What cells look like: card has names and bars, tile a name, dot nothing.
const sizes = [
  {w: 190, h: 92, gap: 10, kind: 'card', most: 270}, {w: 138, h: 84, gap: 8, kind: 'card', most: 190}, {w: 78, h: 44, gap: 5, kind: 'tile', most: 96}, {w: 58, h: 32, gap: 4, kind: 'tile', most: 72},
  {w: 28, h: 28, gap: 3, kind: 'dot'}, {w: 22, h: 22, gap: 3, kind: 'dot'}, {w: 18, h: 18, gap: 2, kind: 'dot'}, {w: 15, h: 15, gap: 2, kind: 'dot'},
  {w: 13, h: 13, gap: 2, kind: 'dot'}, {w: 11, h: 11, gap: 2, kind: 'dot'}, {w: 10, h: 10, gap: 2, kind: 'dot'}, {w: 9, h: 9, gap: 1, kind: 'dot'}, {w: 8, h: 8, gap: 1, kind: 'dot'}, {w: 7, h: 7, gap: 1, kind: 'dot'}, {w: 6, h: 6, gap: 1, kind: 'dot'},
];

const title = 26, between = 12, margin = 14;

// layout places nodes on so much room; what does not fit in the smallest cells is scrolled to.
export function layout(nodes, width, height) {
  const zones = new Map();
  for (const node of nodes) {
    if (!zones.has(node.zone)) zones.set(node.zone, []);
    zones.get(node.zone).push(node);
  }
  const names = [...zones.keys()].sort(natural);
  for (const list of zones.values()) list.sort((a, b) => natural(a.name, b.name));
  const room = Math.max(40, width - 2 * margin);
  const tall = (size) => names.reduce((sum, name) => sum + title + Math.ceil(zones.get(name).length / columns(size)) * (size.h + size.gap) + between, margin);
  const columns = (size) => Math.max(1, Math.floor((room + size.gap) / (size.w + size.gap)));
  const screens = width < 500 ? 3 : 1; // on a phone nodes are touched, and one scrolls anyway
  const size = sizes.find((s) => tall(s) <= height * screens && s.w <= room) || sizes[sizes.length - 1];
  return place(names, zones, stretched(size, room, columns(size)), columns(size));
}

// stretched makes cards and tiles wider, so that they fill a row.
function stretched(size, room, columns) {
  return size.most ? {...size, w: Math.min(size.most, Math.floor((room + size.gap) / columns - size.gap))} : size;
}

function place(names, zones, size, columns) {
  const cells = [], groups = [], index = new Map();
  let y = margin;
  for (const name of names) {
    const list = zones.get(name);
    groups.push({name, y, from: cells.length, count: list.length});
    y += title;
    list.forEach((node, i) => {
      index.set(node.name, cells.length);
      cells.push({name: node.name, zone: groups.length - 1, x: margin + (i % columns) * (size.w + size.gap), y: y + Math.floor(i / columns) * (size.h + size.gap)});
    });
    y += Math.ceil(list.length / columns) * (size.h + size.gap) + between;
  }
  return {cells, groups, index, size, columns, height: y};
}

// at finds the cell at a point, -1 if there is none.
export function at(l, x, y) {
  for (const group of l.groups) {
    const column = Math.floor((x - margin) / (l.size.w + l.size.gap)), row = Math.floor((y - group.y - title) / (l.size.h + l.size.gap));
    const i = row * l.columns + column;
    if (row < 0 || column < 0 || column >= l.columns || i >= group.count) continue;
    const cell = l.cells[group.from + i];
    if (x <= cell.x + l.size.w && y <= cell.y + l.size.h) return group.from + i;
  }
  return -1;
}

// step is the cell that a key leads to.
export function step(l, from, key) {
  const last = l.cells.length - 1;
  if (from < 0) return 0;
  const cell = l.cells[from], row = (dy) => nearest(l, cell, dy);
  switch (key) {
    case 'ArrowRight': return Math.min(last, from + 1);
    case 'ArrowLeft': return Math.max(0, from - 1);
    case 'ArrowDown': return row(1) ?? from;
    case 'ArrowUp': return row(-1) ?? from;
    case 'Home': return 0;
    case 'End': return last;
    case 'PageDown': return l.groups[Math.min(l.groups.length - 1, cell.zone + 1)].from;
    case 'PageUp': return l.groups[Math.max(0, from === l.groups[cell.zone].from ? cell.zone - 1 : cell.zone)].from;
  }
  return -1;
}

// nearest is the cell in the next row above or below, in the column that is closest.
function nearest(l, cell, direction) {
  let best, distance = Infinity, rowAt;
  const from = l.index.get(cell.name);
  for (let i = from + direction; i >= 0 && i < l.cells.length; i += direction) {
    const c = l.cells[i];
    if (c.y === cell.y) continue;
    if (rowAt !== undefined && c.y !== rowAt) break;
    rowAt = c.y;
    if (Math.abs(c.x - cell.x) < distance) [best, distance] = [i, Math.abs(c.x - cell.x)];
  }
  return best;
}
