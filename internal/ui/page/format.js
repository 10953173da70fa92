// Numbers and times as people read them.

const plain = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
export const count = (n) => plain.format(n);

export function plural(n, one, many) {
  return count(n) + ' ' + (n === 1 ? one : many || one + 's');
}

export function cpu(milli) {
  const cores = milli / 1000;
  return cores === Math.round(cores) || cores >= 100 ? count(cores) : cores.toFixed(cores < 1 ? 3 : 2).replace(/0+$/, '').replace(/\.$/, '');
}

export function memory(bytes) {
  for (const [unit, size] of [['Ti', 2 ** 40], ['Gi', 2 ** 30], ['Mi', 2 ** 20], ['Ki', 2 ** 10]]) {
    if (Math.abs(bytes) >= size) {
      const n = bytes / size;
      return (n >= 100 ? count(n) : n.toFixed(1).replace(/\.0$/, '')) + ' ' + unit;
    }
  }
  return Math.round(bytes) ? count(bytes) + ' B' : '0';
}

// amount is so much of a resource, in its unit.
export const amount = (name, n) => (name === 'cpu' ? cpu(n) : /^(memory|ephemeral-storage|hugepages-.*)$/.test(name) ? memory(n) : count(n));

export const share = ([requested, all]) => (all > 0 ? requested / all : 0);

// pairOf is what is requested and what there is of a resource: cpu, memory, pods, or one of the others.
export const pairOf = (node, metric) => (['cpu', 'memory', 'pods'].includes(metric) ? node[metric] : node.others?.[metric] || [0, 0]);

// stranded is the room that is left of CPU and memory but that no pod can get, because there is less of another resource: what goes
// beyond the smallest share that is left of any. {part, cpu, memory}; part is the larger share of the two.
export function stranded(node) {
  const left = (pair) => (pair?.[1] > 0 ? Math.max(0, 1 - pair[0] / pair[1]) : 1);
  const cpuLeft = left(node.cpu), memoryLeft = left(node.memory), least = Math.min(cpuLeft, memoryLeft, left(node.pods));
  return {part: Math.max(cpuLeft, memoryLeft) - least, cpu: (cpuLeft - least) * (node.cpu?.[1] || 0), memory: (memoryLeft - least) * (node.memory?.[1] || 0)};
}

export function percent(fraction) {
  const p = fraction * 100;
  return (p > 0 && p < 9.95 ? p.toFixed(1) : Math.round(p)) + ' %';
}

// span is a length of time in its two largest units.
export function span(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 60) return s + ' s';
  if (s < 3600) return Math.floor(s / 60) + ' min ' + pad(s % 60) + ' s';
  if (s < 86400) return Math.floor(s / 3600) + ' h ' + pad(Math.floor(s / 60) % 60) + ' min';
  return Math.floor(s / 86400) + ' d ' + Math.floor(s / 3600) % 24 + ' h';
}

const pad = (n) => String(n).padStart(2, '0');

// clock is mm:ss or longer, for countdowns: its width does not jump.
export function clock(ms) {
  const s = Math.max(0, Math.ceil(ms / 1000));
  if (s >= 86400) return span(ms);
  const minutes = Math.floor(s / 60) % 60;
  return (s >= 3600 ? Math.floor(s / 3600) + ':' + pad(minutes) : minutes) + ':' + pad(s % 60);
}

// age is how long ago something was, in one unit.
export function age(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 120) return s + 's';
  if (s < 7200) return Math.floor(s / 60) + 'm';
  if (s < 172800) return Math.floor(s / 3600) + 'h';
  return Math.floor(s / 86400) + 'd';
}

export function time(ms) {
  return new Date(ms).toLocaleTimeString('en-GB');
}

export function moment(ms) {
  const d = new Date(ms);
  const day = new Date().toDateString() === d.toDateString() ? '' : d.toLocaleDateString('en-GB', {day: 'numeric', month: 'short', year: 'numeric'}) + ' ';
  return day + time(ms);
}

const collator = new Intl.Collator('en', {numeric: true});
export const natural = (a, b) => collator.compare(a, b);

// stopped says which schedulers of an answer's source no longer run, a sentence each.
export function stopped(source) {
  return (source.stopped || []).map((s) => `No scheduler is running for ${s.names.join(', ')}: the Lease ${s.lease} was ` +
    (s.holder ? `last renewed, by ${s.holder}, at ` : 'released at ') + moment(Date.parse(s.since)) + '.');
}
