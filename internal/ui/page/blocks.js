// The pods in a node, as blocks: how large a block is says what the pod requests, of all that the node has.

import {contrast, fill, freeColour, mixed, workloadColour} from './colours.js';
import {pairOf} from './format.js';

const font = 'system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif';

// podColours are the colourings of pods; the others are of nodes.
export const podColours = new Set(['workload', 'namespace', 'priority']);

// workloadKey tells workloads of different namespaces apart; '' of a pod that nothing made.
export const workloadKey = (b) => (b.w ? b.ns + '/' + b.w : '');

// weightOf is what a pod requests of the resource that is shown.
const weightOf = (b, metric) => (metric === 'cpu' ? b.c : metric === 'memory' ? b.m : metric === 'pods' ? 1 : b.o?.[metric]) || 0;

// order puts pods of a priority, and of a workload, side by side, and the most important at the bottom.
const order = (a, b) => (b.p || 0) - (a.p || 0) || compare(workloadKey(a), workloadKey(b)) || compare(a.n, b.n);
const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);

const made = new WeakMap(); // by row of a node: what was laid out last

// blocksOf lays out the pods of a node in a box whose area is all that the node has: {list: [{x, y, w, h, pod}], level}. Level is how
// high the box is filled, from the bottom.
export function blocksOf(node, metric, w, h) {
  const key = `${metric} ${w} ${h}`, known = made.get(node);
  if (known?.key === key) return known;
  const all = pairOf(node, metric)[1], pods = [...node.blocks || []].sort(order);
  const weights = pods.map((b) => weightOf(b, metric)), sum = weights.reduce((a, b) => a + b, 0);
  const level = all > 0 ? Math.min(1, sum / all) : 0, tall = level * h;
  const list = strips(pods, weights, w, tall, h);
  idle(list, pods.filter((b, i) => !weights[i]), w, h - tall);
  const result = {key, list, level};
  made.set(node, result);
  return result;
}

// strips fills the lower part of a box, strip by strip, each as high as makes its blocks least slim.
function strips(pods, weights, w, tall, h) {
  const list = [], sum = weights.reduce((a, b) => a + b, 0);
  if (!sum || tall < 1) return list;
  const scale = w * tall / sum;
  const worst = (from, to, total) => {
    const high = total * scale / w;
    let most = 0;
    for (let i = from; i < to; i++) if (weights[i]) most = Math.max(most, ratio(weights[i] * scale / high, high));
    return most;
  };
  let bottom = h;
  for (let from = 0; from < pods.length;) {
    let to = from + 1, total = weights[from];
    while (to < pods.length && (!total || worst(from, to + 1, total + weights[to]) <= worst(from, to, total))) total += weights[to++];
    const high = total * scale / w;
    let x = 0;
    for (let i = from; i < to; i++) {
      if (!weights[i]) continue;
      const wide = weights[i] * scale / high;
      list.push({x, y: bottom - high, w: wide, h: high, pod: pods[i]});
      x += wide;
    }
    bottom -= high;
    from = to;
  }
  return list;
}

const ratio = (a, b) => Math.max(a / b, b / a);

// idle puts the pods that request nothing into the free room above, as small squares at its top.
function idle(list, pods, w, room) {
  const side = 5, each = side + 2;
  const columns = Math.floor((w - 2) / each), rows = Math.floor((room - 3) / each);
  pods.slice(0, Math.max(0, columns * rows)).forEach((pod, i) => {
    list.push({x: 2 + (i % columns) * each, y: 2 + Math.floor(i / columns) * each, w: side + 1, h: side + 1, pod});
  });
}

// tally is what the pods of all nodes are of: their workloads and namespaces, the ones that request most first, and their priorities.
export function tally(nodes) {
  const workloads = new Map(), namespaces = new Map(), priorities = new Map();
  for (const node of nodes) for (const b of node.blocks || []) {
    const key = workloadKey(b);
    workloads.set(key, (workloads.get(key) || 0) + (b.c || 0) + 1);
    namespaces.set(b.ns, (namespaces.get(b.ns) || 0) + (b.c || 0) + 1);
    priorities.set(b.p || 0, (priorities.get(b.p || 0) || 0) + 1);
  }
  const largest = (sums) => [...sums].sort((a, b) => b[1] - a[1] || compare(a[0], b[0])).map(([key]) => key);
  return {
    workloads: largest(workloads), namespaces: largest(namespaces),
    priorities: [...priorities.keys()].sort((a, b) => b - a),
  };
}

// priorityColour goes from pale to deep with the rank of a priority among all there are.
export function priorityColour(priority, priorities) {
  const rank = priorities.indexOf(priority);
  return fill(rank < 0 || priorities.length < 2 ? 0.45 : 0.95 - 0.75 * rank / (priorities.length - 1));
}

function colourOf(b, view, ofNode) {
  if (view.colour === 'workload') return b.w ? workloadColour(workloadKey(b)) : freeColour();
  if (view.colour === 'namespace') return workloadColour(b.ns);
  if (view.colour === 'priority') return priorityColour(b.p || 0, view.tally?.priorities || []);
  return ofNode;
}

// drawBlocks draws the pods of a node into a box. Those that leave are struck out in the colour that marks what leaves.
export function drawBlocks(pen, box, node, {view, ink, ofNode, faded, change, words}) {
  pen.fillStyle = ink.track;
  pen.fillRect(box.x, box.y, box.w, box.h);
  const {list, level} = blocksOf(node, view.metric, box.w, box.h), seam = Math.min(box.w, box.h) > 40 ? 1 : 0.5;
  for (const {x, y, w, h, pod} of list) {
    let colour = colourOf(pod, view, ofNode);
    const leaves = pod.l || change?.leavers?.has(pod.ns + '/' + pod.n);
    if (faded || view.only && !view.only(pod)) colour = mixed(colour, ink.ground, 0.2);
    const left = box.x + x, top = box.y + y, wide = Math.max(1, w - seam), tall = Math.max(1, h - seam);
    pen.fillStyle = leaves ? mixed(colour, ink.track, 0.35) : colour;
    pen.fillRect(left, top, wide, tall);
    const ground = pen.fillStyle, named = words && label(pen, pod, left, top, wide, tall, ground);
    if (leaves) strike(pen, left, top, wide, tall, ink.mark, named);
  }
  if (change) comes(pen, box, node, level, change, view, ink);
}

// strike marks a pod that leaves: framed and, unless its name is there to be read, struck out.
function strike(pen, x, y, w, h, colour, named) {
  pen.strokeStyle = colour;
  pen.lineWidth = Math.min(w, h) > 14 ? 2 : 1;
  const inset = pen.lineWidth / 2;
  pen.strokeRect(x + inset, y + inset, Math.max(0, w - 2 * inset), Math.max(0, h - 2 * inset));
  if (named) return;
  pen.beginPath();
  pen.moveTo(x, y + h);
  pen.lineTo(x + w, y);
  pen.stroke();
}

// label writes the name by which people know a pod, where a block has room for enough of it, and tells whether it did.
function label(pen, pod, x, y, w, h, ground) {
  if (w < 46 || h < 16) return false;
  const name = pod.w ? pod.w.slice(pod.w.indexOf('/') + 1) : pod.n, room = w - 10;
  pen.font = '500 11px ' + font;
  const wide = pen.measureText(name).width, most = Math.floor(name.length * room / wide);
  if (wide > room && most < 6) return false;
  pen.fillStyle = contrast(ground);
  pen.textAlign = 'left';
  pen.textBaseline = 'alphabetic';
  pen.fillText(wide > room ? name.slice(0, most - 1) + '…' : name, x + 5, y + (h >= 22 ? 15 : h / 2 + 4));
  return true;
}

// comes is the room that pods of a forecast would take, above what is there.
function comes(pen, box, node, level, change, view, ink) {
  const then = change.then && pairOf({...node, ...change.then}, view.metric), [now, all] = pairOf(node, view.metric);
  if (!then || !change.in || !all) return;
  const gone = (node.blocks || []).reduce((sum, b) => sum + (change.leavers?.has(b.ns + '/' + b.n) ? weightOf(b, view.metric) : 0), 0);
  const more = then[0] - now + gone;
  if (more <= 0) return;
  const tall = Math.max(3, Math.min(box.h * more / all, box.h * (1 - level) || box.h));
  const y = Math.max(box.y, box.y + box.h * (1 - level) - tall);
  pen.setLineDash([4, 3]);
  pen.strokeStyle = ink.come;
  pen.lineWidth = 1.5;
  pen.strokeRect(box.x + 1, y + 1, box.w - 2, tall - 2);
  pen.setLineDash([]);
}
