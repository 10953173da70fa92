// The page: what is where, and what follows from what.

import {h, known, link, paced, radios, remembered, replace, text} from './dom.js';
import {count, natural} from './format.js';
import {Connection} from './connection.js';
import {podColours, tally} from './blocks.js';
import {settleWorkloads} from './colours.js';
import {describe, describePod} from './describe.js';
import {Filters} from './filters.js';
import {Keys} from './keys.js';
import {GroupView} from './group.js';
import {Grouping} from './grouping.js';
import {History} from './history.js';
import {drawLegend, drawUnseen} from './legend.js';
import {Events, Evictions, NodeTable, blank, tabs} from './lists.js';
import {Map2D} from './map.js';
import {NodeView} from './node.js';
import {PodView} from './pod.js';
import {Queue} from './queue.js';
import {read, write} from './address.js';
import {Search} from './search.js';
import {Store} from './store.js';
import {Strip} from './strip.js';
import {drawSummary, problems, wall} from './summary.js';
import {themed} from './theme.js';
import {WorkloadView} from './workload.js';
import {WhatIf} from './whatif.js';
import {ask} from './stream.js';

const $ = (id) => document.getElementById(id);
const store = new Store();
known.node = (name) => !store.summary || store.nodes.has(name);
const choices = {colour: 'workload', metric: 'cpu', shape: 'map'};
const view = {blocks: false, tally: null, plan: null, marked: null, selected: null, chosen: '', chosenPod: '', only: null, holders: null};
for (const [key, usual] of Object.entries(choices)) view[key] = read(key) || remembered.get(key, usual);

const filters = new Filters(store);
const grouping = view.grouping = new Grouping(store);
const map = new Map2D($('map'), store, view, {
  zoom: (name) => grouping.zoom(name),
  open: (name) => { location.hash = link('node', name); }, openPod: (namespace, name) => { location.hash = link('pod', namespace, name); }, hover: tip, named: () => legend(),
});
const table = new NodeTable(store, view, filters);
$('nodes').append(table.element);
$('node-filter').append(filters.nodeBar);
$('grouping').append(grouping.group, grouping.select);
grouping.addEventListener('change', () => { map.relayout(); table.update(); legend(); });
const strip = new Strip($('strip'), store, {list: (from, to) => { lists.history.at(from, to); location.hash = link('history'); }});
const keys = new Keys();
const whatIf = new WhatIf(store, view, {planned});
const lists = {queue: new Queue(store, filters), evictions: new Evictions(store, filters), history: new History(store, filters), events: new Events(store, filters), 'what-if': whatIf};
const connection = new Connection(store, strip, () => title());
let shown, shownTab, route = '';

// The stage: map or table, and what colours mean.

const chosen = {};
chosen.colour = radios($('colour'), [['workload', 'Workloads'], ['namespace', 'Namespaces'], ['priority', 'Priorities'], ['fill', 'Requested'], ['stranded', 'Stranded'], ['taint', 'Taints'], ['zone', 'Zones']], view.colour, (value) => { choose('colour', value); });
chosen.metric = radios($('metric'), [['cpu', 'CPU'], ['memory', 'Memory'], ['pods', 'Pods']], view.metric, (value) => { choose('metric', value); });
chosen.shape = radios($('shape'), [['map', 'Map'], ['table', 'Table']], view.shape, (value) => { choose('shape', value); });

function choose(what, value) {
  view[what] = value;
  remembered.set(what, value);
  write({[what]: value === choices[what] ? '' : value});
  stage();
}

// sayChoices puts what differs from the usual into the address, recall shows what it says.
function sayChoices() {
  write(Object.fromEntries(Object.entries(choices).map(([what, usual]) => [what, view[what] === usual ? '' : view[what]])));
}
function recall() {
  for (const [what, usual] of Object.entries(choices)) {
    view[what] = read(what) || usual;
    chosen[what](view[what], false);
  }
  stage();
}

// others offers the resources beside CPU, memory and pods that any node has.
function others() {
  const names = new Set();
  for (const node of store.nodes.values()) for (const name of Object.keys(node.others || {})) names.add(name);
  const list = [...names].sort(natural), box = $('others');
  box.hidden = !list.length || $('metric').hidden;
  const drawn = JSON.stringify([list, view.metric]);
  if (drawn === box.dataset.drawn) return;
  box.dataset.drawn = drawn;
  replace(box, h('option', {value: ''}, 'Others'), list.map((name) => h('option', {value: name, selected: name === view.metric}, name)));
  box.classList.toggle('on', names.has(view.metric));
  chosen.metric(view.metric, false);
}
$('others').addEventListener('change', (event) => choose('metric', event.target.value || 'cpu'));

filters.addEventListener('change', () => {
  narrowed();
  shown?.update?.();
  table.update();
  legend();
});

// narrowed puts what the filters choose, or the workload that is open, onto the map.
function narrowed() {
  view.selected = filters.nodes;
  view.holders = view.opened ? null : filters.holders;
  view.only = view.opened || filters.only;
  map.redraw();
}

function stage() {
  const known = store.summary !== null, empty = known && store.nodes.size === 0;
  $('map').hidden = !known || empty || view.shape !== 'map';
  $('nodes').hidden = !known || empty || view.shape !== 'table';
  $('blank').hidden = known && !empty;
  $('metric').hidden = view.shape !== 'map' || view.colour === 'stranded';
  others();
  $('colour').hidden = $('grouping').hidden = view.shape !== 'map';
  if (empty) replace($('blank'), blank('No nodes yet', 'They appear here as they register. On a machine to try: berth nodes --count 3'));
  legend();
  if (view.shape === 'table' && known) table.update();
  map.redraw();
}

function legend() {
  const before = JSON.stringify(view.tally?.priorities);
  filters.tally = view.tally = tally(store.nodes.values());
  settleWorkloads(view.tally.workloads.filter(Boolean));
  settleWorkloads(view.tally.namespaces);
  if (view.colour === 'priority' && JSON.stringify(view.tally.priorities) !== before) map.redraw();
  drawLegend($('legend'), store, view, filters);
  drawUnseen($('unseen'), store, view, () => { chosen.colour('fill', true); $('colour').querySelector('[aria-checked=true]').focus(); });
}

// tip says what is under the pointer: a node, or a pod in it.
function tip(node, event, pod) {
  const box = $('tip');
  box.hidden = !node;
  if (!node) return;
  const change = view.plan?.of(node.name);
  replace(box, h('b', {}, pod ? pod.n : node.name), h('span', {}, (pod ? describePod(pod, node) : describe(node, change).split(', ').slice(1)).join(' · ')));
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
      h('button', {type: 'button', class: 'small', onclick: () => { write({forecast: '', in: ''}); whatIf.forget(); planned(null); }}, 'Back to now'));
  }
  map.relayout();
}

// The panel: a list, or one node or pod.

const back = () => h('a', {class: 'back', href: '#/' + shownTab}, '‹ ' + (tabs(store).find((t) => t.id === shownTab)?.title || 'Back'));

function go() {
  const [kind = 'queue', ...rest] = location.hash.replace(/^#\/?/, '').split('/').map(decoded);
  if (route === location.hash && shown) return;
  route = location.hash;
  const within = $('body').contains(document.activeElement);
  shown?.close?.();
  view.chosen = kind === 'node' ? rest[0] : '';
  view.chosenPod = '';
  if (kind === 'pod' && rest[1]) find(rest[0], rest[1]);
  if (kind === 'node' && rest[0]) shown = new NodeView(store, rest[0], {back: back(), whatIf: foresee});
  else if (kind === 'pod' && rest[1]) shown = new PodView(store, rest[0], rest[1], {back: back(), whatIf: foresee, mark, locate});
  else if (kind === 'group' && rest[1]) shown = new GroupView(store, rest[0], rest[1], {back: back(), mark});
  else if (kind === 'workload' && rest[2]) shown = new WorkloadView(store, rest[0], rest[1] + '/' + rest[2], {back: back(), whatIf: foresee, mark: open});
  else {
    shownTab = Object.hasOwn(lists, kind) ? kind : 'queue';
    shown = lists[shownTab];
  }
  replace($('body'), Object.hasOwn(lists, kind) && kind !== 'what-if' || !rest.length && shownTab !== 'what-if' ? filters.bar : null, shown.element);
  if (within) $('panel').focus({preventScroll: true}); // from there Tab leads into what is shown
  if (shown === whatIf) whatIf.load();
  if (shown.update && store.summary) shown.update();
  drawTabs();
  pane(history.state?.pane || (route.length > 2 ? 'panel' : document.body.dataset.pane));
  map.overlay();
  title();
}

// title says where one is: what is shown, of which cluster.
function title() {
  const [kind = '', ...rest] = location.hash.replace(/^#\/?/, '').split('/').map(decoded);
  const n = {queue: store.summary?.pending, evictions: store.summary?.leaving}[shownTab];
  const what = kind === 'node' && rest[0] ? 'Node ' + rest[0] : kind === 'pod' && rest[1] ? `Pod ${rest[0]}/${rest[1]}` : kind === 'group' && rest[1] ? `Pod group ${rest[0]}/${rest[1]}` : kind === 'workload' && rest[2] ? `${rest[1]} ${rest[0]}/${rest[2]}`
    : (tabs(store).find((t) => t.id === shownTab)?.title || '') + (n ? ` (${count(n)})` : '');
  const wrong = problems(store, $('status').dataset.state === 'lost');
  const words = [...wall ? wrong.length ? ['⚠ ' + wrong.join(', ')] : ['OK'] : [what], connection.cluster, 'Berth'].filter(Boolean).join(' · ');
  if (document.title !== words) document.title = words;
  const icon = wrong.length ? '/icon-alert.svg' : '/icon.svg', shownIcon = document.querySelector('link[rel=icon]');
  if (shownIcon.getAttribute('href') !== icon) shownIcon.setAttribute('href', icon);
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

// locate rings the node of the pod that is open, and the pod in it.
function locate(node, pod) {
  view.chosen = node;
  view.chosenPod = pod;
  map.reveal(node);
}

// find locates a pod that the page knows; the explanation locates the others.
function find(namespace, name) {
  for (const node of store.nodes.values()) {
    if (node.blocks?.some((b) => b.n === name && b.ns === namespace)) { locate(node.name, namespace + '/' + name); return; }
  }
}

// open highlights the pods of a workload, and the nodes that have some; null ends that.
function open(nodes, only) {
  const before = JSON.stringify([...view.marked || []]);
  view.opened = only;
  view.marked = nodes;
  if (JSON.stringify([...nodes || []]) !== before || !only) narrowed();
  if (view.shape === 'table') table.update();
}

function mark(nodes) {
  view.marked = nodes;
  map.redraw();
  if (view.shape === 'table') table.update();
}

// On narrow screens one of the two is to be seen. The browser's history has which, so that the way back leads to it.
function pane(which) {
  document.body.dataset.pane = which;
  if (history.state?.pane !== which) history.replaceState({pane: which}, '');
  for (const b of document.querySelectorAll('.panes button')) b.setAttribute('aria-pressed', String(b.dataset.to === which));
}
for (const b of document.querySelectorAll('.panes button')) b.addEventListener('click', () => pane(b.dataset.to));

// What comes from the server.

let refresh = 0;
const retitle = paced(1000, title); // browsers announce each new title to all their windows
const due = {lists: false, table: false, legend: false};

store.addEventListener('change', ({detail}) => {
  if (detail.fresh) {
    document.body.dataset.states = String(Number(document.body.dataset.states || 0) + 1); // how often all had to be read anew
    stage();
  }
  map.changed(detail.nodes, detail.shape);
  shown?.changed?.(detail);
  due.lists ||= detail[shownTab === 'what-if' ? 'none' : shownTab] && lists[shownTab] === shown;
  due.table ||= detail.nodes.size > 0;
  due.others ||= detail.shape || detail.nodes.size > 0 && store.nodes.size < 500;
  due.legend ||= detail.nodes.size > 0 && view.colour !== 'fill' || detail.shape;
  if (detail.shape && !detail.fresh) stage();
  // Long lists are sorted anew twice a second at most, short ones at once.
  refresh ||= setTimeout(update, store.queue.size + store.evictions.size > 2000 || store.nodes.size > 1000 && !detail.fresh ? 500 : 0);
});

function update() {
  refresh = 0;
  drawSummary($('summary'), store);
  if (due.lists) shown?.update?.();
  if (due.table && view.shape === 'table') table.update();
  if (due.legend) legend();
  due.lists = due.table = due.legend = false;
  filters.update();
  grouping.update();
  if (due.others) others();
  due.others = false;
  strip.plan();
  drawTabs();
  retitle();
}

setInterval(() => { if (!document.hidden) { shown?.tick?.(); connection.tick(); } }, 250);
setInterval(() => { if (!document.hidden) strip.plan(); if (store.summary) { drawSummary($('summary'), store); title(); } }, 5000);
if (wall) setInterval(() => { if (store.summary) drawSummary($('summary'), store); }, 1000);
document.body.classList.toggle('wall', wall);

const theme = themed($('theme'), {redraw: () => { legend(); map.redraw(); strip.plan(); }, print: (on) => { map.all = true; map.draw(); shown?.list?.print(on); }});

addEventListener('hashchange', go);
// The way back may lead to another forecast, another filter, or other colours.
addEventListener('popstate', () => {
  filters.load();
  grouping.load();
  recall();
  if (history.state?.pane) pane(history.state.pane);
  if (shown === whatIf) whatIf.load();
});
const elsewhere = (event) => event.target.closest?.('input, textarea, select, dialog') || event.ctrlKey || event.metaKey || event.altKey;
// On release, so that the key itself is not typed into the field.
addEventListener('keyup', (event) => { if (event.key === '/' && !elsewhere(event)) $('search').focus(); });
addEventListener('keydown', (event) => {
  if (elsewhere(event)) return;
  if (event.key === '?') keys.open();
  if (event.key === 'm') { pane('stage'); $('map').querySelector('.scroller')?.focus(); }
  if ({j: 1, k: 1}[event.key]) shown.list?.step(0);
  if (event.key === 'Escape' && /^#\/(node|pod|group|workload)\//.test(route)) {
    const mapped = $('stage').contains(document.activeElement);
    location.hash = link(shownTab);
    go();
    if (!mapped) shown.list?.step(0);
  }
});

// The address says what is shown: a link to the lists would lead away from it.
document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault();
  pane('panel');
  $('panel').focus();
});
$('help').addEventListener('click', () => keys.open());
new Search($('search'), $('found'), {ask, open: (hash) => { location.hash = hash; }, filter: (values) => {
  filters.set(values);
  if (!values.labels && !values.taint && !['queue', 'evictions', 'history', 'events'].includes(shownTab)) location.hash = link('queue');
}});
shownTab = 'queue';
sayChoices(); // they may be those that this browser remembers
theme();
connection.show();
const first = history.state?.pane || (location.hash.length > 2 && innerWidth < 900 ? 'panel' : 'stage');
go();
if (read('forecast') && shown !== whatIf) whatIf.load();
pane(first);
connection.begin();
