// The keys, in a list that "?" opens.

import {h} from './dom.js';

const keys = [
  ['/', 'Search nodes, pods, labels, taints, namespaces and workloads'],
  ['m', 'To the map'],
  ['Arrows', 'On the map, from node to node; in a list, from row to row; on the strip, through time'],
  ['j, k', 'In a list, to the next and to the previous row'],
  ['Page Up, Page Down', 'On the map, from zone to zone'],
  ['Home, End', 'To the first, to the last'],
  ['Enter', 'Open the node or pod'],
  ['Ctrl+Enter', 'Submit the form'],
  ['Escape', 'Back to the list and to the row that was opened; close what is open'],
  ['?', 'This list'],
];

export class Keys {
  constructor() {
    this.element = h('dialog', {class: 'keys', 'aria-labelledby': 'keys-title'},
      h('form', {method: 'dialog'}, h('h2', {id: 'keys-title'}, 'Keys'), h('button', {class: 'small'}, 'Close')),
      h('dl', {}, keys.map(([key, what]) => [h('dt', {}, key.split(', ').map((k, i) => [i ? ' ' : '', h('kbd', {}, k)])), h('dd', {}, what)])));
    document.body.append(this.element);
  }

  open() { if (!this.element.open) this.element.showModal(); }
}
