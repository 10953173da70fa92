// The cluster in numbers, at the top.

import {h, text} from './dom.js';
import {count, cpu, memory, percent, share} from './format.js';

export function drawSummary(box, s) {
  const tiles = [
    ['Nodes', count(s.nodes), !s.nodes ? 'none' : s.ready === s.nodes ? 'all ready' : count(s.nodes - s.ready) + ' not ready', s.ready === s.nodes ? '' : 'bad'],
    ['Pods', count(s.pods), s.astray ? `on nodes, and ${count(s.astray)} on nodes that do not exist` : 'on nodes', s.astray ? 'bad' : ''],
    ['Pending', count(s.pending), s.pending ? 'to be placed' : 'none', s.pending ? 'warn' : ''],
    ['Leaving', count(s.leaving), s.leaving ? 'have to go' : 'none', s.leaving ? 'warn' : ''],
    ['CPU', percent(share(s.cpu)), `${cpu(s.cpu[0])} of ${cpu(s.cpu[1])}`, '', share(s.cpu)],
    ['Memory', percent(share(s.memory)), `${memory(s.memory[0])} of ${memory(s.memory[1])}`, '', share(s.memory)],
  ];
  while (box.children.length < tiles.length) {
    box.append(h('div', {class: 'tile'}, h('span', {class: 'label'}, '', h('span', {class: 'long'}, ' requested')), h('b', {}), h('span', {class: 'note'}), h('span', {class: 'meter', 'aria-hidden': 'true'}, h('i', {}))));
  }
  tiles.forEach(([label, value, note, kind, part], i) => {
    const [l, v, n, m] = box.children[i].children;
    text(l.firstChild, label); text(v, value); text(n, note);
    box.children[i].className = 'tile ' + kind;
    box.children[i].title = `${label}: ${value} ${note}`;
    m.hidden = l.lastChild.hidden = part === undefined;
    if (part !== undefined) m.firstChild.style.setProperty('width', Math.min(100, part * 100) + '%');
  });
}
