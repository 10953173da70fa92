// Elements are made here and nowhere else. Children are nodes or text, never markup.

// h makes an element: h('a', {class: 'x', href: '#/y', onclick: f}, 'text', node, null, [more]).
export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (name === 'style') for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
    else element.setAttribute(name, value === true ? '' : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) append(element, child);
    else element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

// keepFocus changes what is in an element, and gives the focus back to the control that had it: the one with the same words, or else in
// the same place.
export function keepFocus(element, change) {
  if (!element.contains(document.activeElement)) { change(); return; }
  const controls = () => [...element.querySelectorAll('a, button, summary, input, select')], words = (e) => e.tagName + (e.getAttribute('aria-label') || e.textContent);
  const focused = document.activeElement, name = words(focused), before = controls(), at = before.indexOf(focused);
  const nth = before.filter((e) => words(e) === name).indexOf(focused);
  change();
  const after = controls();
  if (at >= 0) (after.filter((e) => words(e) === name)[nth] || after[at])?.focus({preventScroll: true});
}

// text sets the text of an element if it differs: what does not change is not laid out again.
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

// radios makes a group of buttons of which one is chosen; arrow keys move the choice.
export function radios(group, options, chosen, choose) {
  const buttons = options.map(([value, label]) => h('button', {
    type: 'button', role: 'radio', 'data-value': value, onclick: () => set(value, true),
  }, label));
  function set(value, tell) {
    for (const b of buttons) {
      const on = b.dataset.value === value;
      b.setAttribute('aria-checked', String(on));
      b.tabIndex = on ? 0 : -1;
    }
    if (!options.some(([known]) => known === value)) buttons[0].tabIndex = 0; // none is chosen, and one must be within reach
    if (tell) choose(value);
  }
  group.addEventListener('keydown', (event) => {
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (!step) return;
    event.preventDefault();
    const at = buttons.findIndex((b) => b.getAttribute('aria-checked') === 'true');
    const next = buttons[(at + step + buttons.length) % buttons.length];
    next.focus();
    set(next.dataset.value, true);
  });
  replace(group, buttons);
  set(chosen, false);
  return set;
}

// paced calls run at most once in so many milliseconds: a call that comes too early is made up for.
export function paced(ms, run) {
  let last = -Infinity, timer = 0;
  return () => {
    const wait = last + ms - performance.now(), now = () => { timer = 0; last = performance.now(); run(); };
    if (wait <= 0) now();
    else timer ||= setTimeout(now, wait);
  };
}

// link is the address of a view within the page.
export function link(...parts) {
  return '#/' + parts.map(encodeURIComponent).join('/');
}

export function podLink(namespace, name, words) {
  return h('a', {href: link('pod', namespace, name), class: 'name wraps'},
    namespace === 'default' ? null : h('span', {class: 'space'}, namespace + '/'), words || whole(name, namespace === 'default' ? longest : longest - namespace.length - 1));
}

// known tells whether a node exists: forecasts and suggestions name some that do not.
export const known = {node: () => true};

// nodeLink is the name of a node, which leads to the node if it exists; words are what stands for the name.
export function nodeLink(name, words = name) {
  return known.node(name) ? h('a', {href: link('node', name), class: 'name'}, words) : h('span', {class: 'name'}, words);
}

// tail is a name of which the end is kept where there is no room for all of it: names of nodes and zones differ there.
export const tail = (name) => h('span', {class: 'tail', title: name.length > 12 ? name : null}, h('bdi', {}, name));

// whole is a name that is broken into two lines where it does not fit into one, in smaller letters if it is long. What is longer than
// two lines is cut in its middle: names of workloads and pods differ at either end.
const longest = 60, end = 26;
export function whole(name, most = longest) {
  const kind = name.length > 30 ? 'fine' : null;
  if (name.length <= most) return h('bdi', {class: kind}, name);
  return h('span', {class: kind, title: name}, name.slice(0, Math.max(8, most - end - 1)) + '…', h('bdi', {}, name.slice(-end)));
}

// narrow tells whether the screen is a phone's: there, lists give names more lines.
export const narrow = matchMedia('(max-width: 899px)');

// nodeTail is a link to a node in a column.
export const nodeTail = (name) => nodeLink(name, tail(name));

// breakable lets long words such as taints be broken behind their separators.
export const breakable = (words) => words.split(/(?<=[/:=])/).flatMap((part, i) => (i ? [h('wbr'), part] : [part]));

// remembered is a choice that lasts on this machine. Without storage it lasts as long as the page.
export const remembered = {
  get(key, fallback) {
    try { return localStorage.getItem('berth.' + key) || fallback; } catch { return fallback; }
  },
  set(key, value) {
    try { localStorage.setItem('berth.' + key, value); } catch { /* a private window */ }
  },
};
