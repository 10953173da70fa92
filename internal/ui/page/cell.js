// How a node is drawn.

import {contrast, fill, isDark, kindColour, kindOf, mixed, signsOf, zoneColour} from './colours.js';
import {count, percent, pairOf, share, stranded} from './format.js';
import {drawBlocks, podColours} from './blocks.js';
import {without} from './names.js';

const font = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';

// colourOf is the colour that the view gives a node. Where pods have the colours, it is that of its taints.
export function colourOf(node, view, zone) {
  if (view.colour === 'taint' || podColours.has(view.colour)) return kindColour(kindOf(node));
  if (view.colour === 'zone') return zoneColour(zone);
  return fill(partOf(node, view));
}

// partOf is the share that the view shows of a node.
const partOf = (node, view) => (view.colour === 'stranded' ? stranded(node).part : share(pairOf(node, view.metric)));

export function drawTitle(pen, group, words, index, ink, view) {
  pen.clearRect(group.x, group.y, group.width, 24);
  pen.textBaseline = 'middle';
  pen.textAlign = 'left';
  pen.font = '600 12px ' + font;
  let x = group.x;
  if (view.colour === 'zone') {
    pen.fillStyle = zoneColour(index);
    pen.beginPath();
    pen.roundRect(x, group.y + 7, 10, 10, 3);
    pen.fill();
    x += 16;
  }
  pen.fillStyle = ink.quiet;
  const fits = words.find((w) => pen.measureText(w).width <= group.x + group.width - x) || words[words.length - 1];
  pen.fillText(clip(pen, fits, group.x + group.width - x), x, group.y + 12);
}

// boxOf is the part of a cell in which its pods are; null if they are not drawn.
export function boxOf(cell, size) {
  const {x, y} = cell, {w, h, kind} = size;
  if (kind === 'card') return {x: x + 14, y: y + 30, w: w - 24, h: h - 40 - (foot(size) ? 18 : 0)};
  if (kind === 'tile') return {x: x + 8, y: y + (headed(size) ? 21 : 5), w: w - 13, h: h - (headed(size) ? 26 : 10)};
  return {x: x + 1, y: y + 1, w: w - 2, h: h - 2};
}

// foot tells whether a card has room for a line below its pods, headed whether a tile has room for its name above them.
const foot = (size) => size.h >= 120;
const headed = (size) => size.w >= 52 && size.h >= 44;

export function drawCell(pen, cell, size, row, view, ink) {
  if (!row) return;
  const change = view.plan?.of(cell.name);
  const node = change?.then ? {...row, ...change.then} : row;
  const held = view.blocks || !view.holders || view.holders.has(cell.name);
  const faded = !held || (view.marked ? !view.marked.has(cell.name) : view.selected ? !view.selected.has(cell.name) : view.plan ? !change : false);
  let colour = colourOf(node, view, cell.zone);
  if (faded) colour = mixed(colour, ink.ground, 0.2); // not by transparency: what is written stays readable
  if (view.blocks && row.blocks || size.kind === 'card') {
    const box = boxOf(cell, size);
    if (size.kind === 'card') card(pen, cell, size, node, colour, view, ink);
    else if (size.kind === 'tile') frame(pen, cell, size, node, colour, view, ink);
    const ofNode = podColours.has(view.colour) || view.colour !== 'fill' ? colour : faded ? colour : fill(Math.max(0.3, partOf(node, view)));
    drawBlocks(pen, box, row, {view, ink, ofNode, faded, change, words: size.kind === 'card'});
    if (size.kind === 'dot' || size.kind === 'tile' && !headed(size)) badge(pen, cell, size, node, ink);
  } else if (size.kind === 'tile') tile(pen, cell, size, node, colour, view, ink);
  else dot(pen, cell, size, node, colour, view, ink);
  marks(pen, cell, size, node, change, ink);
}

function ground(pen, cell, size, colour, radius, view) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.roundRect(cell.x, cell.y, size.w, size.h, radius);
  pen.fill();
  if (view.colour === 'fill' || view.colour === 'stranded') { // the palest must be seen on its ground
    pen.strokeStyle = isDark() ? 'rgb(255 255 255 / 0.10)' : 'rgb(20 40 70 / 0.14)';
    pen.lineWidth = 1;
    pen.stroke();
  }
}

// dot has no words, and one sign at most: what matters most of the node.
function dot(pen, cell, size, node, colour, view, ink) {
  ground(pen, cell, size, colour, size.w > 12 ? 3 : size.w > 8 ? 2 : 1, view);
  if (!isReady(node)) { hatch(pen, cell.x, cell.y, size.w, size.h, contrast(colour)); return; }
  const [sign] = signsOf(node);
  if (!sign) return;
  if (size.w >= 13) centred(pen, sign, cell, size, contrast(colour), Math.min(15, size.w - 3));
  else if (view.colour !== 'taint') { // too small for a sign: a bar for a taint or cordon, a corner for pressure
    pen.fillStyle = contrast(colour);
    const thick = Math.max(2, Math.round(size.h / 4));
    if (sign === '▲') corner(pen, cell.x, cell.y + size.h, -Math.ceil(size.w * 0.7), pen.fillStyle);
    else pen.fillRect(cell.x + 1, cell.y + (size.h - thick) / 2, size.w - 2, thick);
  }
}

// tile has the name, the share, and signs; a node that is not ready has a hatched edge, where nothing is written.
function tile(pen, cell, size, node, colour, view, ink) {
  ground(pen, cell, size, colour, 5, view);
  let right = cell.x + size.w - 5;
  if (!isReady(node)) {
    pen.save();
    pen.beginPath();
    pen.roundRect(cell.x, cell.y, size.w, size.h, 5);
    pen.clip();
    hatch(pen, cell.x + size.w - 11, cell.y, 11, size.h, contrast(colour));
    pen.restore();
    right -= 11;
  }
  pen.fillStyle = contrast(colour);
  pen.textBaseline = 'alphabetic';
  pen.textAlign = 'left';
  pen.font = '600 11px ' + font;
  const top = node.leaving > 0 ? Math.min(right, cell.x + size.w - 14) : right;
  pen.fillText(clip(pen, named(node, view), top - cell.x - 6), cell.x + 6, cell.y + (size.h > 40 ? 17 : 14));
  pen.font = '10px ' + font;
  const words = percent(partOf(node, view));
  pen.fillText(words, cell.x + 6, cell.y + size.h - 7);
  const from = cell.x + 6 + pen.measureText(words).width + 4;
  pen.font = '700 11px ' + font;
  pen.textAlign = 'right';
  for (const sign of signsOf(node)) {
    if (right - 9 < from) break;
    pen.fillText(sign, right, cell.y + size.h - 6);
    right -= 11;
  }
}

// shell is the ground of a cell with pods in it: its edge has the node's colour, hatched if the node is not ready.
function shell(pen, cell, size, node, colour, ink, edge, radius) {
  pen.fillStyle = ink.card;
  pen.strokeStyle = ink.line;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.roundRect(cell.x + 0.5, cell.y + 0.5, size.w - 1, size.h - 1, radius);
  pen.fill();
  pen.stroke();
  pen.save();
  pen.beginPath();
  pen.roundRect(cell.x, cell.y, size.w, size.h, radius);
  pen.clip();
  pen.fillStyle = colour;
  pen.fillRect(cell.x, cell.y, edge, size.h);
  if (!isReady(node)) hatch(pen, cell.x, cell.y, edge, size.h, contrast(colour));
  pen.restore();
}

// frame is a tile with pods in it: the name above them, if there is room, and signs.
function frame(pen, cell, size, node, colour, view, ink) {
  shell(pen, cell, size, node, colour, ink, 4, 5);
  if (!headed(size)) return;
  pen.textBaseline = 'alphabetic';
  const right = written(pen, node, cell.x + size.w - 6 - (node.leaving > 0 ? 9 : 0), cell.y + 15, ink.text, 10);
  pen.textAlign = 'left';
  pen.font = '600 11px ' + font;
  pen.fillStyle = ink.text;
  pen.fillText(clip(pen, named(node, view), right - cell.x - 9), cell.x + 9, cell.y + 15);
}

// written writes the signs of a node from right to left, and returns where what is beside them ends.
function written(pen, node, right, y, colour, width) {
  pen.font = '700 11px ' + font;
  pen.textAlign = 'right';
  pen.fillStyle = colour;
  for (const sign of signsOf(node)) {
    pen.fillText(sign, right, y);
    right -= width;
  }
  return right - 3;
}

// badge puts the most important sign of a node onto its pods, where there is no room beside them.
function badge(pen, cell, size, node, ink) {
  if (size.kind === 'dot') {
    pen.strokeStyle = ink.line;
    pen.lineWidth = 1;
    pen.strokeRect(cell.x + 0.5, cell.y + 0.5, size.w - 1, size.h - 1);
    if (!isReady(node)) { hatch(pen, cell.x, cell.y, size.w, size.h, ink.text); return; }
  }
  const [sign] = signsOf(node);
  if (!sign) return;
  pen.fillStyle = ink.card;
  pen.beginPath();
  pen.arc(cell.x + size.w / 2, cell.y + size.h / 2, 7, 0, 7);
  pen.fill();
  centred(pen, sign, cell, size, ink.text, 12);
}

const isReady = (node) => node.ready === undefined || node.ready === 'True';

// named is a node's name without what all have in common, where names do not fit as they are.
const named = (node, view) => (view.common ? without(node.name, view.common) : node.name);

function centred(pen, sign, cell, size, colour, height) {
  pen.fillStyle = colour;
  pen.font = `700 ${height}px ${font}`;
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  pen.fillText(sign, cell.x + size.w / 2, cell.y + size.h / 2 + 0.5);
}

// card has the node's name, how full it is, and what there is to say of it in a line at its foot.
function card(pen, cell, size, node, colour, view, ink) {
  shell(pen, cell, size, node, colour, ink, 6, 8);
  const left = cell.x + 14, right = cell.x + size.w - 10, y = cell.y + 20;
  pen.textBaseline = 'alphabetic';
  pen.textAlign = 'right';
  pen.font = '12px ' + font;
  pen.fillStyle = ink.quiet;
  const words = percent(partOf(node, view)), inset = node.leaving > 0 ? 8 : 0;
  pen.fillText(words, right - inset, y);
  const end = written(pen, node, right - inset - pen.measureText(words).width - 8, y, ink.text, 12);
  pen.textAlign = 'left';
  pen.font = '600 13px ' + font;
  pen.fillStyle = ink.text;
  pen.fillText(clip(pen, named(node, view), end - left), left, y);
  if (foot(size)) note(pen, node, left, right, cell.y + size.h - 9, ink);
}

// short is a resource's name in three letters or so: nvidia.com/gpu is gpu.
const short = (name) => name.replace(/^.*\//, '').slice(0, 4);

// note is the line at the foot of a card: what is the matter, or the taints, or nothing.
function note(pen, node, left, right, y, ink) {
  const kind = kindOf(node), words = [node.pods[0] === 1 ? '1 pod' : count(node.pods[0]) + ' pods'];
  if (kind === 'unready') words.push(node.ready === undefined ? 'new node' : 'not ready');
  if (node.cordoned) words.push('cordoned');
  words.push(...(node.trouble || []), ...node.taints.filter((t) => !t.startsWith('node.kubernetes.io/')));
  for (const [name, [requested, all]] of Object.entries(node.others || {})) if (/gpu|accelerator|tpu/i.test(name)) words.push(`${short(name).toUpperCase()} ${count(requested)}/${count(all)}`);
  pen.font = '11px ' + font;
  pen.textAlign = 'left';
  if (kind !== 'free') {
    pen.fillStyle = kindColour(kind);
    pen.beginPath();
    pen.roundRect(left, y - 8, 8, 8, 2);
    pen.fill();
    left += 13;
  }
  pen.fillStyle = ink.quiet;
  pen.fillText(clipEnd(pen, words.join('  ·  '), right - left), left, y);
}

// marks say what must be seen whatever the colours stand for.
function marks(pen, cell, size, node, change, ink) {
  const {x, y} = cell;
  if (node.leaving > 0 || change?.out > 0) corner(pen, x + size.w, y, Math.max(4, Math.min(12, size.w / 2.5)), ink.mark);
  if (change?.in > 0) corner(pen, x, y + size.h, -Math.max(4, Math.min(12, size.w / 2.5)), ink.come);
  if (change?.removed) {
    line(pen, x, y, x + size.w, y + size.h, 2, ink.mark);
    line(pen, x, y + size.h, x + size.w, y, 2, ink.mark);
  }
  if (change?.added) {
    pen.setLineDash([4, 3]);
    pen.strokeStyle = ink.come;
    pen.lineWidth = 1.5;
    pen.strokeRect(x + 0.75, y + 0.75, size.w - 1.5, size.h - 1.5);
    pen.setLineDash([]);
  }
}

// drawTally says how many pods would leave a node, and come to it. It is drawn above the ways that they take.
export function drawTally(pen, cell, size, change, ink) {
  if (size.kind === 'dot' || !change.in && !change.out) return;
  const words = [];
  if (change.out) words.push('−' + change.out);
  if (change.in) words.push('+' + change.in);
  const label = words.join(' ');
  const [points, tall, inset] = size.kind === 'card' ? [12, 18, 4] : [10, 14, 1]; // on a tile the name stays readable
  pen.font = `700 ${points}px ${font}`;
  const width = pen.measureText(label).width + tall - 6;
  const x = cell.x + size.w - width - inset, y = cell.y + size.h - tall - inset;
  const colour = change.in && !change.out ? ink.come : ink.mark;
  pen.fillStyle = colour;
  pen.beginPath();
  pen.roundRect(x, y, width, tall, tall / 2);
  pen.fill();
  pen.fillStyle = contrast(colour);
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  pen.fillText(label, x + width / 2, y + tall / 2 + 0.5);
}

function corner(pen, x, y, side, colour) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.moveTo(x - side, y);
  pen.lineTo(x, y);
  pen.lineTo(x, y + side);
  pen.fill();
}

function hatch(pen, x, y, width, height, colour) {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, width, height);
  pen.clip();
  for (let i = -height; i < width; i += 5) line(pen, x + i, y + height, x + i + height, y, 1.2, colour);
  pen.restore();
}

function line(pen, x1, y1, x2, y2, width, colour) {
  pen.strokeStyle = colour || (isDark() ? 'rgb(255 255 255 / 0.75)' : 'rgb(16 24 40 / 0.75)');
  pen.lineWidth = width;
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x2, y2);
  pen.stroke();
}

// clip shortens a text to a width. Names differ at their end, which is kept.
function clip(pen, words, width) {
  if (pen.measureText(words).width <= width) return words;
  let n = words.length;
  while (n > 1 && pen.measureText('…' + words.slice(-n)).width > width) n--;
  return '…' + words.slice(-n);
}

// clipEnd shortens a text that is read from its beginning.
function clipEnd(pen, words, width) {
  if (pen.measureText(words).width <= width) return words;
  let n = words.length;
  while (n > 1 && pen.measureText(words.slice(0, n) + '…').width > width) n--;
  return words.slice(0, n) + '…';
}
