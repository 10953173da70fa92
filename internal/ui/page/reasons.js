// Why pods are pending, out of the scheduler's message: the decisive reason first, which is the one of most nodes.

import {count} from './format.js';

const parsed = new Map(); // messages are shared by many pods

// reasonsOf takes a message apart: {total, list: [{n, words}]}, the reason of most nodes first; without a list if it has another form.
function reasonsOf(message) {
  let known = parsed.get(message);
  if (known) return known;
  const m = /^0\/(\d+) nodes are available: (.*)$/s.exec(message);
  known = {total: m ? Number(m[1]) : 0, list: []};
  if (m) {
    const body = m[2].replace(/\.? ?(preemption:|no new claims).*$/s, '');
    known.list = body.split(/, (?=\d+ )/).map((part) => {
      const [, n, words] = /^(\d+) (.*)$/s.exec(part) || [null, '0', part];
      return {n: Number(n), words: words.replace(/^node\(s\) /, '').replace(/[.\s]+$/, '')};
    }).sort((a, b) => b.n - a.n);
  }
  if (parsed.size > 5000) parsed.clear();
  parsed.set(message, known);
  return known;
}

// decisive says first what stops most nodes, and then the rest.
export function decisive(p) {
  if (!p.message) return p.reason || 'not tried yet';
  const {total, list} = reasonsOf(p.message);
  if (!list.length) return p.message;
  const [first, ...rest] = list;
  const nodes = first.n === total ? (total === 1 ? 'the only node' : `all ${count(total)} nodes`) : `${count(first.n)} of ${count(total)} nodes`;
  return first.words + (first.n ? ` (${nodes})` : '') + (rest.length ? '; ' + rest.map((r) => `${r.words} (${count(r.n)})`).join('; ') : '');
}

// reasonOf is what a message has in common with others: the decisive reason, without numbers and names.
export function reasonOf(p) {
  if (!p.message) return p.reason || 'not tried yet';
  const known = reasonsOf(p.message);
  known.common ??= (known.list.length ? known.list[0].words : p.message).replace(/\{[^}]*\}|"[^"]*"/g, '').replace(/\s+/g, ' ').replace(/[.\s]+$/, '').trim();
  return known.common;
}
