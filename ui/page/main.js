// The page: what is where, and what follows from what.

import {h, link, radios, remembered, replace, text} from './dom.js';
import {count, cpu, memory, natural, percent, plural, share} from './format.js';
import {contrast, fill, kindColour, kindNames, kindOf, setDark, signs, zoneColour} from './colours.js';
import {describe} from './describe.js';
import {Events, Evictions, NodeTable, Queue, blank, tabs} from './lists.js';
import {Map2D} from './map.js';
import {NodeView} from './node.js';
import {PodView} from './pod.js';
import {Search} from './search.js';
import {Store} from './store.js';
import {WhatIf} from './whatif.js';
import {ask, follow} from './stream.js';

const $ = (id) => document.getElementById(id);
const store = new Store();
const view = {colour: remembered.get('colour', 'fill'), metric: remembered.get('metric', 'cpu'), shape: remembered.get('shape', 'map'), plan: null, marked: null, chosen: ''};

const map = new Map2D($('map'), store, view, {open: (name) => { location.hash = link('node', name); }, hover: tip});
const table = new NodeTable(store, view);
$('nodes').append(table.element);
const whatIf = new WhatIf(store, view, {planned});
const lists = {queue: new Queue(store), evictions: new Evictions(store), events: new Events(store), 'what-if': whatIf};
let shown, shownTab, route = '';

// The stage: map or table, and what colours mean.

radios($('colour'), [['fill', 'Fill'], ['taint', 'Taints'], ['zone', 'Zones']], view.colour, (value) => { choose('colour', value); });
radios($('metric'), [['cpu', 'CPU'], ['memory', 'Memory'], ['pods', 'Pods']], view.metric, (value) => { choose('metric', value); });
radios($('shape'), [['map', 'Map'], ['table', 'Table']], view.shape, (value) => { choose('shape', value); });

function choose(what, value) {
  view[what] = value;
  remembered.set(what, value);
  stage();
}

function stage() {
  const known = store.summary !== null, empty = known && store.nodes.size === 0;
  $('map').hidden = !known || empty || view.shape !== 'map';
  $('nodes').hidden = !known || empty || view.shape !== 'table';
  $('blank').hidden = known && !empty;
  $('metric').hidden = view.colour !== 'fill' || view.shape !== 'map';
  $('colour').hidden = view.shape !== 'map';
  if (empty) replace($('blank'), blank('No nodes yet', 'They appear here as they register. On a machine to try: berth nodes --count 3'));
  legend();
  if (view.shape === 'table' && known) table.update();
  map.redraw();
}

function legend() {
  const box = $('legend');
  box.hidden = view.shape !== 'map' || !store.nodes.size;
  if (box.hidden) return;
  const entry = (colour, words, sign) => h('span', {class: 'entry'}, h('i', {class: 'swatch', style: {background: colour, color: contrast(colour)}}, sign || ''), words);
  const also = [h('span', {class: 'entry'}, h('i', {class: 'swatch corner'}), 'pods leaving'), h('span', {class: 'entry'}, h('i', {class: 'swatch hatched'}), 'not ready'), h('span', {class: 'entry'}, h('i', {class: 'swatch struck'}), 'cordoned')];
  if (view.colour === 'fill') {
    const ramp = Array.from({length: 24}, (_, i) => h('i', {style: {background: fill(i / 23)}}));
    replace(box, h('span', {class: 'entry'}, '0 %', h('span', {class: 'ramp', 'aria-hidden': 'true'}, ramp), '100 % requested'), also);
  } else if (view.colour === 'taint') {
    const counts = new Map();
    for (const node of store.nodes.values()) counts.set(kindOf(node), (counts.get(kindOf(node)) || 0) + 1);
    replace(box, Object.entries(kindNames).map(([kind, words]) => entry(kindColour(kind), `${words} ${count(counts.get(kind) || 0)}`, signs[kind])), also[0]);
  } else {
    const zones = [...new Set([...store.nodes.values()].map((n) => n.zone))].sort(natural);
    replace(box, zones.slice(0, 12).map((zone, i) => entry(zoneColour(i), zone || 'no zone')), zones.length > 12 ? h('span', {class: 'entry'}, `and ${zones.length - 12} more`) : null, also);
  }
}

function tip(node, event) {
  const box = $('tip');
  box.hidden = !node;
  if (!node) return;
  const change = view.plan?.of(node.name);
  replace(box, h('b', {}, node.name), h('span', {}, describe(node, change).split(', ').slice(1).join(' · ')));
  const width = box.offsetWidth, height = box.offsetHeight;
  box.style.setProperty('left', Math.max(8, Math.min(innerWidth - width - 8, event.clientX + 14)) + 'px');
  box.style.setProperty('top', (event.clientY + height + 24 > innerHeight ? event.clientY - height - 12 : event.clientY + 18) + 'px');
}

// A forecast on the map, until it is taken off.

function planned(plan) {
  view.plan = plan;
  const box = $('overlay');
  box.hidden = !plan;
  if (plan) {
    replace(box, h('b', {}, 'What if'), h('code', {}, plan.forecast.operations.join('; ')), h('span', {class: 'grow'}),
      h('button', {type: 'button', class: 'small', onclick: () => planned(null)}, 'Back to now'));
  }
  map.relayout();
}

// The panel: a list, or one node or pod.

const back = () => h('a', {class: 'back', href: '#/' + shownTab}, '‹ ' + (tabs(store).find((t) => t.id === shownTab)?.title || 'Back'));

function go() {
  const [kind = 'queue', ...rest] = location.hash.replace(/^#\/?/, '').split('/').map(decoded);
  if (route === location.hash && shown) return;
  route = location.hash;
  shown?.close?.();
  view.chosen = kind === 'node' ? rest[0] : '';
  if (kind === 'node' && rest[0]) shown = new NodeView(store, rest[0], {back: back(), whatIf: foresee});
  else if (kind === 'pod' && rest[1]) shown = new PodView(store, rest[0], rest[1], {back: back(), whatIf: foresee, mark});
  else {
    shownTab = lists[kind] ? kind : 'queue';
    shown = lists[shownTab];
  }
  replace($('body'), shown.element);
  if (shown.update && store.summary) shown.update();
  drawTabs();
  if (route.length > 2) pane('panel');
  map.overlay();
  document.title = (rest.length ? rest[rest.length - 1] + ' · ' : '') + 'Berth';
}

function decoded(words) {
  try { return decodeURIComponent(words); } catch { return words; }
}

function drawTabs() {
  const box = $('tabs');
  if (!box.firstChild) {
    replace(box, tabs(store).map((t) => h('a', {role: 'tab', href: t.href, 'aria-controls': 'body', 'data-tab': t.id}, t.title, h('span', {class: 'badge', hidden: true}))));
  }
  const on = lists[shownTab] === shown ? shownTab : '';
  tabs(store).forEach((t, i) => {
    const tab = box.children[i], badge = tab.lastChild;
    tab.setAttribute('aria-selected', String(t.id === on));
    tab.tabIndex = t.id === shownTab ? 0 : -1;
    badge.hidden = !t.n();
    text(badge, count(t.n()));
  });
}

$('tabs').addEventListener('keydown', (event) => {
  const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
  if (!step) return;
  const all = tabs(store), at = all.findIndex((t) => t.id === document.activeElement.dataset.tab);
  event.preventDefault();
  location.hash = all[(at + step + all.length) % all.length].href;
  go();
  $('tabs').querySelector('[aria-selected=true]')?.focus();
});

function foresee(words) {
  location.hash = link('what-if');
  whatIf.preset(words);
}

function mark(nodes) {
  view.marked = nodes;
  map.redraw();
  if (view.shape === 'table') table.update();
}

// On narrow screens one of the two is to be seen.
function pane(which) {
  document.body.dataset.pane = which;
  for (const b of document.querySelectorAll('.panes button')) b.setAttribute('aria-pressed', String(b.dataset.to === which));
}
for (const b of document.querySelectorAll('.panes button')) b.addEventListener('click', () => pane(b.dataset.to));

// Numbers at the top.

function summary() {
  const s = store.summary;
  const tiles = [
    ['Nodes', count(s.nodes), s.ready === s.nodes ? 'all ready' : count(s.nodes - s.ready) + ' not ready', s.ready === s.nodes ? '' : 'bad'],
    ['Pods', count(s.pods), 'on nodes', ''],
    ['Waiting', count(s.pending), s.pending ? 'without a node' : 'none', s.pending ? 'warn' : ''],
    ['Leaving', count(s.leaving), s.leaving ? 'have to go' : 'none', s.leaving ? 'warn' : ''],
    ['CPU', percent(share(s.cpu)), `${cpu(s.cpu[0])} of ${cpu(s.cpu[1])}`, '', share(s.cpu)],
    ['Memory', percent(share(s.memory)), `${memory(s.memory[0])} of ${memory(s.memory[1])}`, '', share(s.memory)],
  ];
  const box = $('summary');
  while (box.children.length < tiles.length) {
    box.append(h('div', {class: 'tile'}, h('span', {class: 'label'}), h('b', {}), h('span', {class: 'note'}), h('span', {class: 'meter', 'aria-hidden': 'true'}, h('i', {}))));
  }
  tiles.forEach(([label, value, note, kind, part], i) => {
    const [l, v, n, m] = box.children[i].children;
    text(l, label); text(v, value); text(n, note);
    box.children[i].className = 'tile ' + kind;
    m.hidden = part === undefined;
    if (part !== undefined) m.firstChild.style.setProperty('width', Math.min(100, part * 100) + '%');
  });
}

// What comes from the server.

let refresh = 0;
const due = {lists: false, table: false, legend: false};

store.addEventListener('change', ({detail}) => {
  if (detail.fresh) {
    document.body.dataset.states = String(Number(document.body.dataset.states || 0) + 1); // how often all had to be read anew
    stage();
  }
  summary();
  map.changed(detail.nodes, detail.shape);
  shown?.changed?.(detail);
  due.lists ||= detail[shownTab === 'what-if' ? 'none' : shownTab] && lists[shownTab] === shown;
  due.table ||= detail.nodes.size > 0;
  due.legend ||= detail.nodes.size > 0 && view.colour !== 'fill' || detail.shape;
  if (detail.shape && !detail.fresh) stage();
  // Long lists are sorted anew twice a second at most, short ones at once.
  refresh ||= setTimeout(update, store.queue.size + store.evictions.size > 2000 || store.nodes.size > 1000 ? 500 : 0);
});

function update() {
  refresh = 0;
  if (due.lists) shown?.update?.();
  if (due.table && view.shape === 'table') table.update();
  if (due.legend) legend();
  due.lists = due.table = due.legend = false;
  drawTabs();
}

let connected = false, watches = null;

function status() {
  const box = $('status');
  const lost = Object.entries(watches?.lost || {}), blind = lost.some(([what]) => what !== 'events');
  const state = !connected ? (store.summary ? 'lost' : 'connecting') : !watches?.listed ? 'reading' : blind ? 'lost' : 'live';
  box.dataset.state = state;
  text(box, {lost: connected ? 'Cluster not seen' : 'Connection lost', connecting: 'Connecting', reading: `Reading ${count(watches?.read || 0)}`, live: 'Live'}[state]);
  const notice = $('notice');
  notice.hidden = true;
  if (!connected && store.summary) say(notice, 'The connection to berth is lost. What is shown may be outdated; it goes on by itself as soon as berth answers.');
  else if (lost.length && connected) say(notice, lost.map(([what, why]) => `No changes of ${what} are seen: ${why}.`).join(' '));
  if (!store.summary) {
    $('blank').hidden = false;
    replace($('blank'), state === 'reading' ? blank('Reading the cluster', plural(watches?.read || 0, 'object') + ' so far') : blank('Connecting', 'to the server of this page'));
  }
}

function say(notice, words) {
  notice.hidden = false;
  text(notice, words);
}

follow({
  onDelta: (delta) => store.apply(delta),
  onWatch: (w) => { watches = w; status(); },
  onBeat: (now) => store.tick(now),
  onStatus: (on) => { if (on !== connected) { connected = on; status(); } },
});

setInterval(() => { if (!document.hidden) shown?.tick?.(); }, 250);

// Light and dark.

const system = matchMedia('(prefers-color-scheme: dark)');
function theme() {
  const choice = remembered.get('theme', 'system');
  document.documentElement.dataset.theme = choice;
  setDark(choice === 'dark' || choice === 'system' && system.matches);
  const button = $('theme');
  text(button, {system: '◐', light: '☀', dark: '☾'}[choice]);
  button.setAttribute('aria-label', {system: 'Colours: as the system', light: 'Colours: light', dark: 'Colours: dark'}[choice]);
  button.title = button.getAttribute('aria-label');
  legend();
  map.redraw();
}
$('theme').addEventListener('click', () => {
  const order = ['system', 'light', 'dark'];
  remembered.set('theme', order[(order.indexOf(remembered.get('theme', 'system')) + 1) % 3]);
  theme();
});
system.addEventListener('change', theme);

addEventListener('hashchange', go);
const elsewhere = (event) => event.target.closest?.('input, textarea, select') || event.ctrlKey || event.metaKey || event.altKey;
// On release, so that the key itself is not typed into the field.
addEventListener('keyup', (event) => { if (event.key === '/' && !elsewhere(event)) $('search').focus(); });
addEventListener('keydown', (event) => {
  if (elsewhere(event)) return;
  if (event.key === 'm') { pane('stage'); $('map').querySelector('.scroller')?.focus(); }
  if (event.key === 'Escape' && (route.startsWith('#/node/') || route.startsWith('#/pod/'))) location.hash = link(shownTab);
});

new Search($('search'), $('found'), {ask, open: (hash) => { location.hash = hash; }});
shownTab = 'queue';
theme();
status();
go();
pane(location.hash.length > 2 && innerWidth < 900 ? 'panel' : 'stage');
ask('/api/about').then((about) => text($('where'), about.cluster.replace(/^https?:\/\//, ''))).catch(() => {});
