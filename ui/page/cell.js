// How a node is drawn.

import {contrast, fill, isDark, kindColour, kindOf, signs, zoneColour} from './colours.js';
import {percent, share} from './format.js';

const font = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';

// colourOf is the colour that the view gives a node.
export function colourOf(node, view, zone) {
  switch (view.colour) {
    case 'taint': return kindColour(kindOf(node));
    case 'zone': return zoneColour(zone);
  }
  return fill(share(node[view.metric]));
}

export function drawTitle(pen, group, words, width, index, ink, view) {
  pen.clearRect(0, group.y, width, 24);
  pen.textBaseline = 'middle';
  pen.textAlign = 'left';
  pen.font = '600 12px ' + font;
  let x = 14;
  if (view.colour === 'zone') {
    pen.fillStyle = zoneColour(index);
    pen.beginPath();
    pen.roundRect(x, group.y + 7, 10, 10, 3);
    pen.fill();
    x += 16;
  }
  pen.fillStyle = ink.quiet;
  pen.fillText(words, x, group.y + 12);
}

export function drawCell(pen, cell, size, row, view, ink) {
  if (!row) return;
  const change = view.plan?.of(cell.name);
  const node = change?.then ? {...row, ...change.then} : row;
  const faded = view.marked ? !view.marked.has(cell.name) : view.plan ? !change : false;
  pen.globalAlpha = faded ? 0.22 : 1;
  const colour = colourOf(node, view, cell.zone);
  if (size.kind === 'card') card(pen, cell, size, node, colour, view, ink);
  else tile(pen, cell, size, node, colour, view);
  marks(pen, cell, size, node, change, ink);
  pen.globalAlpha = 1;
}

function tile(pen, cell, size, node, colour, view) {
  const radius = size.kind === 'tile' ? 5 : size.w > 12 ? 3 : size.w > 8 ? 2 : 1;
  pen.fillStyle = colour;
  pen.beginPath();
  pen.roundRect(cell.x, cell.y, size.w, size.h, radius);
  pen.fill();
  if (view.colour === 'fill') { // the palest must be seen on its ground
    pen.strokeStyle = isDark() ? 'rgb(255 255 255 / 0.10)' : 'rgb(20 40 70 / 0.14)';
    pen.lineWidth = 1;
    pen.stroke();
  }
  if (size.kind === 'dot') {
    const sign = view.colour === 'taint' ? signs[kindOf(node)] : '';
    if (sign && size.w >= 12) centred(pen, sign, cell, size, contrast(colour), size.w - 2);
    return;
  }
  pen.fillStyle = contrast(colour);
  pen.textBaseline = 'alphabetic';
  pen.textAlign = 'left';
  pen.font = '600 11px ' + font;
  pen.fillText(clip(pen, node.name, size.w - 10), cell.x + 6, cell.y + (size.h > 40 ? 17 : 14));
  pen.font = '10px ' + font;
  pen.globalAlpha *= 0.85;
  pen.fillText(percent(share(node[view.metric])), cell.x + 6, cell.y + size.h - 7);
  pen.globalAlpha /= 0.85;
}

function centred(pen, sign, cell, size, colour, height) {
  pen.fillStyle = colour;
  pen.font = `700 ${height}px ${font}`;
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  pen.fillText(sign, cell.x + size.w / 2, cell.y + size.h / 2 + 0.5);
}

// card has the node's name, bars for CPU and memory, and what there is to say of it in a line.
function card(pen, cell, size, node, colour, view, ink) {
  const {x, y} = cell;
  pen.fillStyle = ink.card;
  pen.strokeStyle = ink.line;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.roundRect(x + 0.5, y + 0.5, size.w - 1, size.h - 1, 8);
  pen.fill();
  pen.stroke();
  pen.save();
  pen.beginPath();
  pen.roundRect(x, y, size.w, size.h, 8);
  pen.clip();
  pen.fillStyle = colour;
  pen.fillRect(x, y, 7, size.h);
  pen.restore();
  const left = x + 17, right = x + size.w - 12;
  pen.textBaseline = 'alphabetic';
  pen.textAlign = 'right';
  pen.font = '11px ' + font;
  pen.fillStyle = ink.quiet;
  const pods = String(node.pods[0]) + (node.pods[0] === 1 ? ' pod' : ' pods');
  pen.fillText(pods, right, y + 21);
  const room = right - left - pen.measureText(pods).width - 8;
  pen.textAlign = 'left';
  pen.font = '600 13px ' + font;
  pen.fillStyle = ink.text;
  pen.fillText(clip(pen, node.name, room), left, y + 21);
  bar(pen, 'CPU', share(node.cpu), left, right, y + 38, ink);
  bar(pen, 'Mem', share(node.memory), left, right, y + 54, ink);
  note(pen, node, left, right, y + size.h - 12, ink);
}

function bar(pen, label, part, left, right, y, ink) {
  pen.font = '10px ' + font;
  pen.textAlign = 'left';
  pen.fillStyle = ink.quiet;
  pen.fillText(label, left, y);
  pen.textAlign = 'right';
  pen.fillText(percent(part), right, y);
  const from = left + 28, to = right - 34;
  pen.fillStyle = ink.track;
  pen.beginPath();
  pen.roundRect(from, y - 7, to - from, 6, 3);
  pen.fill();
  if (part <= 0) return;
  pen.fillStyle = fill(Math.max(0.35, part));
  pen.beginPath();
  pen.roundRect(from, y - 7, Math.max(4, (to - from) * Math.min(1, part)), 6, 3);
  pen.fill();
}

// note is the line at the foot of a card: what is the matter, or the taints, or nothing.
function note(pen, node, left, right, y, ink) {
  const kind = kindOf(node), words = [];
  if (kind === 'unready') words.push(node.ready === undefined ? 'new node' : 'not ready');
  if (node.cordoned) words.push('cordoned');
  words.push(...(node.trouble || []), ...node.taints.filter((t) => !t.startsWith('node.kubernetes.io/')));
  pen.font = '11px ' + font;
  pen.textAlign = 'left';
  if (!words.length) return;
  if (kind !== 'free') {
    pen.fillStyle = kindColour(kind);
    pen.beginPath();
    pen.roundRect(left, y - 8, 8, 8, 2);
    pen.fill();
    left += 13;
  }
  pen.fillStyle = ink.text;
  pen.fillText(clip(pen, words.join('  '), right - left), left, y);
}

// marks say what must be seen whatever the colours stand for.
function marks(pen, cell, size, node, change, ink) {
  const {x, y} = cell;
  if (node.ready !== undefined && node.ready !== 'True' && size.kind !== 'card') hatch(pen, x, y, size, ink);
  else if (node.cordoned && size.kind !== 'card') line(pen, x, y + size.h, x + size.w, y, 1.25);
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
  pen.font = '700 12px ' + font;
  const width = pen.measureText(label).width + 12;
  const x = cell.x + size.w - width - 4, y = cell.y + size.h - 22;
  pen.fillStyle = change.in && !change.out ? ink.come : ink.mark;
  pen.beginPath();
  pen.roundRect(x, y, width, 18, 9);
  pen.fill();
  pen.fillStyle = contrast(pen.fillStyle);
  pen.textAlign = 'center';
  pen.textBaseline = 'middle';
  pen.fillText(label, x + width / 2, y + 9.5);
}

function corner(pen, x, y, side, colour) {
  pen.fillStyle = colour;
  pen.beginPath();
  pen.moveTo(x - side, y);
  pen.lineTo(x, y);
  pen.lineTo(x, y + side);
  pen.fill();
}

function hatch(pen, x, y, size, ink) {
  pen.save();
  pen.beginPath();
  pen.roundRect(x, y, size.w, size.h, 2);
  pen.clip();
  for (let i = -size.h; i < size.w; i += 5) line(pen, x + i, y + size.h, x + i + size.h, y, 1.2, ink.text);
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

// clip shortens a text to a width.
function clip(pen, words, width) {
  if (pen.measureText(words).width <= width) return words;
  let n = words.length;
  while (n > 1 && pen.measureText(words.slice(0, n) + '…').width > width) n--;
  return words.slice(0, n) + '…';
}
