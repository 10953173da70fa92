// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"slices"
)

// mostWaits bounds the shown waits of a node.
const mostWaits = 20

// noteWait keeps the reason that a drain waits for a pod. Lists of events are not ordered by time.
func (c *Cluster) noteWait(e *Event) {
	if e.Reason != "DrainWaiting" && e.Reason != "SurgeGivenUp" || e.pod == "" || e.At < c.waits[e.pod].At {
		return
	}
	c.waits[e.pod] = *e
	if p := c.pods[e.pod]; p != nil && p.eviction.Node != "" {
		c.dirtyNodes[p.eviction.Node] = true
	}
}

// waitsOn returns the waits for pods of a cordoned node, sorted by name. On other nodes, the drain
// has ended.
func (c *Cluster) waitsOn(n *node) (list []Event) {
	if !n.info.cordoned {
		return nil
	}
	for uid := range n.pods {
		if w, ok := c.waits[uid]; ok {
			list = append(list, w)
		}
	}
	slices.SortFunc(list, func(a, b Event) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return list[:min(len(list), mostWaits)]
}
