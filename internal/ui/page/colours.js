// Colours of nodes, and what they mean. All scales are told apart by those who do not see red or green: fills by lightness alone,
// kinds by hues of Okabe and Ito, and by a sign wherever there is room for one.

import {remembered} from './dom.js';

const fills = {
  light: ['#eef2f7', '#cfe3ee', '#9ccbdd', '#5fa9c6', '#2f7fab', '#235a8c', '#1b3564'],
  dark: ['#1d2738', '#1f3f59', '#22607a', '#2b8793', '#58ae96', '#a3d08a', '#f3ea8b'],
};

const hues = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#a39a1a', '#7a68b8', '#8c6d4f', '#5c8a8a'];

const kinds = {
  light: {free: '#dde4ee', prefer: '#7fc4ee', noSchedule: '#e69f00', noExecute: '#c8500a', cordoned: '#b879a0', unready: '#59616f'},
  dark: {free: '#2b3750', prefer: '#56a9dc', noSchedule: '#e0a125', noExecute: '#e8692c', cordoned: '#c78ab0', unready: '#8a93a6'},
};

export const kindNames = {
  free: 'no taint', prefer: 'PreferNoSchedule', noSchedule: 'NoSchedule', noExecute: 'NoExecute', cordoned: 'cordoned', unready: 'not ready',
};

// signs are drawn into cells that have room, whatever the colours stand for.
export const signs = {free: '', prefer: '~', noSchedule: '–', noExecute: '×', cordoned: '/', unready: '!', pressure: '▲'};

// signsOf are those of a node, what matters most first.
export function signsOf(node) {
  const kind = kindOf(node), list = [];
  if (node.trouble?.length) list.push(signs.pressure);
  if (kind !== 'free' && kind !== 'unready') list.push(signs[kind]);
  if (node.cordoned && kind !== 'cordoned') list.push(signs.cordoned);
  if (kind === 'unready') {
    const taints = taintKind(node.taints.filter((t) => !t.startsWith('node.kubernetes.io/')));
    if (taints !== 'free') list.push(signs[taints]);
  }
  return list;
}

let dark = false;
export function setDark(on) { dark = on; }
export const isDark = () => dark;

const hex = (s) => [1, 3, 5].map((i) => parseInt(s.slice(i, i + 2), 16));
const ramps = {};

// fill is the colour of a share from 0 to 1.
export function fill(share) {
  const theme = dark ? 'dark' : 'light';
  ramps[theme] ||= Array.from({length: 101}, (_, i) => {
    const stops = fills[theme], at = i / 100 * (stops.length - 1), below = Math.min(Math.floor(at), stops.length - 2);
    const a = hex(stops[below]), b = hex(stops[below + 1]);
    return 'rgb(' + a.map((c, k) => Math.round(c + (b[k] - c) * (at - below))).join(' ') + ')';
  });
  return ramps[theme][Math.max(0, Math.min(100, Math.round(share * 100)))];
}

// kindOf is what matters most of a node: that it is not ready, that it sends pods away, that it takes none.
export function kindOf(node) {
  if (node.ready !== undefined && node.ready !== 'True') return 'unready';
  const kind = taintKind(node.taints);
  return node.cordoned && kind !== 'noExecute' && kind !== 'noSchedule' ? 'cordoned' : kind;
}

// taintKind is what matters most of taints.
export function taintKind(taints) {
  if (!taints.length) return 'free';
  const has = (effect) => taints.some((t) => t.endsWith(effect) && !t.startsWith('node.kubernetes.io/unschedulable'));
  return has(':NoExecute') ? 'noExecute' : has(':NoSchedule') ? 'noSchedule' : has(':PreferNoSchedule') ? 'prefer' : 'free';
}

export const kindColour = (kind) => kinds[dark ? 'dark' : 'light'][kind];

export const zoneColour = (index) => hues[index % hues.length];

// tints are colours of workloads: as many as can be told apart side by side, none louder than the others.
const tints = {
  light: ['#6b9ac4', '#e0a458', '#6fae8f', '#c98bb0', '#9b8fd0', '#cf7f68', '#a8ad52', '#5fb0b7', '#b89070', '#8298a8', '#d0889a', '#7fb06a'],
  dark: ['#4f82b3', '#c1883f', '#4f9475', '#ad6f95', '#7f74b8', '#b5654f', '#8c9140', '#45959d', '#9b7657', '#6a8294', '#b36d80', '#659650'],
};
const shades = 2, all = shades * tints.light.length, mostKept = 500;
let slots = new Map();
try { slots = new Map(JSON.parse(remembered.get('colours', '[]'))); } catch { /* written by another version */ }

// settleWorkloads gives each name a colour, which it keeps, after a reload as well. Each has one of its own while there are enough; then
// the colours that the fewest of these names have are taken.
export function settleWorkloads(names) {
  const fresh = names.filter((name) => !slots.has(name)).sort();
  if (!fresh.length) return;
  const uses = Array(all).fill(0);
  for (const name of names) if (slots.has(name)) uses[slots.get(name)]++;
  for (const name of fresh) {
    const first = [...name].reduce((sum, c) => (sum * 31 + c.charCodeAt(0)) >>> 0, 7), fewest = Math.min(...uses);
    let tries = 0, slot; // pale shades come last
    do slot = (first + tries) % tints.light.length + Math.floor(tries / tints.light.length) * tints.light.length; while (uses[slot] > fewest && ++tries < all);
    uses[slot]++;
    slots.set(name, slot);
  }
  remembered.set('colours', JSON.stringify([...slots].slice(-mostKept)));
}

export function workloadColour(name) {
  if (!slots.has(name)) settleWorkloads([name]);
  const list = tints[dark ? 'dark' : 'light'], slot = slots.get(name), tint = list[slot % list.length];
  return slot < list.length ? tint : mixed(tint, dark ? '#000000' : '#ffffff', 0.6);
}

// freeColour is of pods that nothing made.
export const freeColour = () => (dark ? '#5a6780' : '#a7b1c2');

// Text and lines on the map, which CSS does not reach.
export function inks() {
  return dark
    ? {text: '#e6eaf2', quiet: '#93a0b8', line: '#34415a', card: '#182131', ground: '#0d131d', mark: '#ff8f4d', come: '#63b3ff', focus: '#ffffff', track: '#263145'}
    : {text: '#1b2333', quiet: '#5d6880', line: '#d5dce8', card: '#ffffff', ground: '#f3f5f9', mark: '#b5480a', come: '#0b62b8', focus: '#101828', track: '#e8edf4'};
}

// parts are the red, green and blue of a colour as CSS writes it.
const parts = (colour) => (colour.startsWith('#') ? hex(colour) : colour.match(/[\d.]+/g).slice(0, 3).map(Number));

// luminance is as WCAG defines it, from 0 to 1.
function luminance(colour) {
  const [r, g, b] = parts(colour).map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// ratio is the contrast of two colours, from 1 to 21.
export function ratio(a, b) {
  const [x, y] = [luminance(a), luminance(b)].sort((p, q) => q - p);
  return (x + 0.05) / (y + 0.05);
}

const contrasts = new Map(); // thousands of cells share some two hundred colours

// contrast is black or white, whichever is read better on a colour: one of them has 4.5 to 1 on any.
export function contrast(colour) {
  let best = contrasts.get(colour);
  if (!best) contrasts.set(colour, best = ratio(colour, '#000000') > ratio(colour, '#ffffff') ? '#000000' : '#ffffff');
  return best;
}

// mixed is a colour of which so much is seen on its ground.
export function mixed(colour, ground, share) {
  const a = parts(colour), b = parts(ground);
  return 'rgb(' + a.map((c, i) => Math.round(c * share + b[i] * (1 - share))).join(' ') + ')';
}
