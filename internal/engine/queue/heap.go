// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"container/heap"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// ordered is a heap of items for container/heap, ordered by before. Each item stores its index in
// the heap, so that any item can be removed without a search.
type ordered struct {
	items  []*Item
	before func(a, b *Item) bool
}

func (o *ordered) Len() int           { return len(o.items) }
func (o *ordered) Less(i, j int) bool { return o.before(o.items[i], o.items[j]) }
func (o *ordered) Swap(i, j int) {
	o.items[i], o.items[j] = o.items[j], o.items[i]
	o.items[i].index, o.items[j].index = i, j
}
func (o *ordered) Push(x any) {
	item := x.(*Item)
	item.index = len(o.items)
	o.items = append(o.items, item)
}
func (o *ordered) Pop() any {
	last := len(o.items) - 1
	item := o.items[last]
	o.items[last] = nil
	o.items = cluster.ShrunkList(o.items[:last])
	item.index = -1
	return item
}

func (o *ordered) rebuildHeap() { heap.Init(o) }
