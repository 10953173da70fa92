// Names as the map writes them: without what all have in common, so that what tells them apart is seen.

const edge = /[-._/:]/;

// common is what all names begin and end with, up to a separator: {before, after}.
export function common(names) {
  if (names.length < 2) return {before: '', after: ''};
  const [a, b] = [names.reduce((x, y) => (x < y ? x : y)), names.reduce((x, y) => (x > y ? x : y))]; // the others lie between
  let n = 0;
  while (n < a.length && a[n] === b[n]) n++;
  while (n > 0 && !edge.test(a[n - 1])) n--;
  const shortest = Math.min(...names.map((name) => name.length)) - n;
  let m = 0;
  const same = (k) => names.every((name) => name[name.length - k] === a[a.length - k]);
  while (m < shortest - 1 && same(m + 1)) m++;
  while (m > 0 && !edge.test(a[a.length - m])) m--;
  return {before: a.slice(0, n), after: m ? a.slice(-m) : ''};
}

// without takes off what all have in common.
export function without(name, {before, after}) {
  return name.slice(name.startsWith(before) ? before.length : 0, after && name.endsWith(after) ? -after.length : undefined);
}
