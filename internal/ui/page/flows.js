// What would happen, drawn on the map: which nodes lose pods and which get them, and the ways between.

// Plan is a forecast by node.
export class Plan {
  // What is zero, false or empty is left out of the nodes' states.
  constructor(forecast, changed = [], removed = []) {
    this.forecast = forecast;
    this.changes = new Map();
    this.added = new Map();
    this.flows = new Map(); // "from\nto" to how many
    for (const then of changed) {
      const change = this.#at(then.name);
      change.then = {cpu: amount(then.cpu), memory: amount(then.memory), pods: amount(then.pods), taints: then.taints || [], cordoned: Boolean(then.cordoned)};
      if (!then.added) continue;
      change.added = true;
      this.added.set(then.name, {name: then.name, zone: then.zone || '', trouble: [], leaving: 0, ...change.then});
    }
    for (const name of removed) this.#at(name).removed = true;
    for (const l of forecast.leaving) {
      if (l.node) {
        const change = this.#at(l.node);
        change.out++;
        (change.leavers ||= new Set()).add(l.namespace + '/' + l.name);
      }
      if (!l.next?.node) continue;
      this.#at(l.next.node).in++;
      if (l.node) this.#flow(l.node, l.next.node);
    }
    for (const p of forecast.placed) if (p.node && !p.anyway) this.#at(p.node).in++;
    for (const f of forecast.fills || []) for (const [name, n] of Object.entries(f.nodes || {})) {
      const change = this.#at(name);
      change.in = Math.max(change.in, n);
    }
  }

  #at(name) {
    if (!this.changes.has(name)) this.changes.set(name, {in: 0, out: 0});
    return this.changes.get(name);
  }

  #flow(from, to) {
    const key = from + '\n' + to;
    this.flows.set(key, (this.flows.get(key) || 0) + 1);
  }

  of(name) { return this.changes.get(name); }
}

// amount is what is requested and allocatable. JSON has them as strings, because they may be large.
const amount = ({requested = 0, allocatable = 0}) => [Number(requested), Number(allocatable)];

const most = 250; // more ways than this are a blur: the heaviest are drawn

export function drawFlows(pen, layout, plan, ink) {
  const flows = [...plan.flows].sort((a, b) => b[1] - a[1]).slice(0, most);
  const {w, h} = layout.size;
  for (const [key, n] of flows) {
    const [from, to] = key.split('\n').map((name) => layout.cells[layout.index.get(name)]);
    if (!from || !to || from === to) continue;
    const {x1, y1, x2, y2, cx, cy} = way(from, to, w, h);
    pen.strokeStyle = ink.come;
    pen.globalAlpha = flows.length > 60 ? 0.35 : 0.7;
    pen.lineWidth = Math.min(5, 1 + Math.log2(1 + n));
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.quadraticCurveTo(cx, cy, x2, y2);
    pen.stroke();
    head(pen, cx, cy, x2, y2, 5 + pen.lineWidth, ink.come);
  }
  pen.globalAlpha = 1;
}

// way is a curve from one cell to the other; between neighbours in a row, over their tops.
function way(from, to, w, h) {
  if (from.y === to.y && Math.abs(from.x - to.x) < 2 * w) {
    const x1 = from.x + w * 0.55, x2 = to.x + w * 0.45, y = from.y;
    return {x1, y1: y, x2, y2: y, cx: (x1 + x2) / 2, cy: y - Math.min(34, h)};
  }
  const [x1, y1] = edge(from, to, w, h), [x2, y2] = edge(to, from, w, h);
  const length = Math.hypot(x2 - x1, y2 - y1) || 1, bend = Math.min(60, length / 4);
  return {x1, y1, x2, y2, cx: (x1 + x2) / 2 - (y2 - y1) / length * bend, cy: (y1 + y2) / 2 + (x2 - x1) / length * bend};
}

// edge is where the way between the middles of two cells crosses the edge of the first: what is written in it stays readable.
function edge(from, to, w, h) {
  const dx = to.x - from.x, dy = to.y - from.y;
  const part = Math.min(w / 2 / Math.abs(dx || 1e-9), h / 2 / Math.abs(dy || 1e-9), 1);
  return [from.x + w / 2 + dx * part, from.y + h / 2 + dy * part];
}

function head(pen, fromX, fromY, x, y, size, colour) {
  const angle = Math.atan2(y - fromY, x - fromX);
  pen.fillStyle = colour;
  pen.beginPath();
  pen.moveTo(x, y);
  pen.lineTo(x - size * Math.cos(angle - 0.45), y - size * Math.sin(angle - 0.45));
  pen.lineTo(x - size * Math.cos(angle + 0.45), y - size * Math.sin(angle + 0.45));
  pen.fill();
}
