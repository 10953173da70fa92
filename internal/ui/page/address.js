// What the address says beside where one is: how nodes are shown, what is filtered, and the forecast. Whoever is sent the address sees
// the same.

// read is what the address says of a key, '' if nothing.
export function read(key) { return new URLSearchParams(location.search).get(key) || ''; }

// write puts values into the address, those that are '' out of it. The way back leads to other views, not to every choice.
export function write(values) {
  const words = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(values)) {
    if (value === '' || value === null || value === undefined) words.delete(key);
    else words.set(key, value);
  }
  const search = words.toString() ? '?' + words : '';
  if (search !== location.search) history.replaceState(history.state, '', location.pathname + search + location.hash);
}
