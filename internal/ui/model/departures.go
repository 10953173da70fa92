// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// Departure is a pod that is leaving its node or has left it before it ended, and its replacement.
type Departure struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Workload  string `json:"workload"`
	Priority  int32  `json:"priority"`
	Node      string `json:"node"`
	// Reason is the reason of the condition DisruptionTarget or of the event; empty: the pod was
	// deleted.
	Reason  string `json:"reason"`
	By      string `json:"by"`      // component that reported the event
	Message string `json:"message"` // message of the event, or the taint
	At      int64  `json:"at"`      // beginning of the departure
	Gone    int64  `json:"gone"`    // end of the departure; 0: the pod is leaving; -1: unknown
	// These fields describe the replacement, the next pod of the same controller.
	Next       string `json:"next"`       // name
	NextNode   string `json:"nextNode"`   // empty: pending
	NextPlaced int64  `json:"nextPlaced"` // time at which the pod got the node; 0: unknown

	owner string    // Kind/name of the controller; of an event about an unknown pod only the name
	next  types.UID // UID of the replacement

	changed bool // changed since the last Changes
}

// mostDepartures bounds the kept departures.
const mostDepartures = 1000

// departures holds the last departures by the UID of the pod.
type departures struct {
	byPod   map[types.UID]*Departure
	order   []types.UID // in the order in which they were added
	fresh   []types.UID // pods added since the last Changes: possible replacements
	foreign bool        // a departure was added for a pod that is not known
}

// departure returns the departure of a pod, adding it if needed, and marks it as changed.
func (d *departures) departure(uid types.UID, added Departure) *Departure {
	known := d.byPod[uid]
	if known == nil {
		known = &added
		known.UID = string(uid)
		d.byPod[uid], d.order = known, append(d.order, uid)
		if len(d.order) > 2*mostDepartures {
			for _, old := range d.order[:mostDepartures] {
				delete(d.byPod, old)
			}
			d.order = slices.Clone(d.order[mostDepartures:])
		}
	}
	known.changed = true
	return known
}

// notePod updates the departure of a pod.
func (d *departures) notePod(now int64, p *Pod, taint string) {
	if known := d.byPod[p.uid()]; p.takesRoom() && (p.cause != "" || p.going != 0 || known != nil) {
		row := d.departure(p.uid(), p.departure(now))
		row.Node, row.Workload, row.Priority, row.owner = p.eviction.Node, p.workload, p.priority, p.owner
		row.Reason, row.Message, row.Gone = cmp.Or(p.cause, row.Reason), cmp.Or(row.Message, taint), 0
	}
}

// Adopt adds the departures and moments of another cluster, which was followed earlier and is not
// used afterwards. The own ones take precedence, except for departures known from an event only.
func (c *Cluster) Adopt(earlier *Cluster) {
	d, order := &c.departures, []types.UID(nil)
	for _, uid := range earlier.departures.order {
		row, own := earlier.departures.byPod[uid], d.byPod[uid]
		if own == nil {
			order = append(order, uid)
		} else if row.By, row.Message = own.By, own.Message; own.Gone >= 0 {
			continue
		}
		// If the pod still exists, its next observation corrects the end.
		row.Gone, row.changed = cmp.Or(row.Gone, -1), true
		d.byPod[uid] = row
	}
	d.order, d.foreign = append(order, d.order...), true
	own, moments := c.history.moments, earlier.history.lastMoments()
	moments = slices.DeleteFunc(moments, func(m Moment) bool { return len(own) > 0 && m[momentAt] >= own[0][momentAt] })
	if len(moments) > 0 {
		c.since = moments[0][momentAt]
	}
	c.history.moments = append(moments, own...)
	c.history.unsent = len(c.history.moments)
}

// departure returns the departure of a pod that begins now, or began when its deletion was
// requested.
func (p *Pod) departure(now int64) Departure {
	return Departure{Namespace: p.eviction.Name.Namespace, Name: p.eviction.Name.Name, Workload: p.workload, Priority: p.priority,
		Node: p.eviction.Node, Reason: p.cause, At: cmp.Or(p.began, now), owner: p.owner}
}

// noteEvent adds the message of an event to the departure of its pod. After a restart, the event is
// all that is known of the departure.
func (d *departures) noteEvent(e *Event) {
	if e.Kind != "Pod" || e.pod == "" || strings.HasPrefix(e.Message, "Cancelling") {
		return
	}
	switch e.Reason {
	case "Preempted", "TaintManagerEviction", "DeviceTaintManagerEviction", "Evicted", "Rebalanced":
		_, node, _ := strings.Cut(e.Message, " on node ")
		d.foreign = d.foreign || d.byPod[e.pod] == nil
		row := d.departure(e.pod, Departure{Namespace: e.Namespace, Name: e.Name, Reason: e.Reason, Node: node, At: e.At, Gone: -1,
			owner: e.Name[:max(0, strings.LastIndexByte(e.Name, '-'))]})
		row.By, row.Message = e.By, e.Message
	}
}

// replacedBy returns the oldest departure without a replacement that a new pod may replace, or nil.
// Pods of StatefulSets keep their names.
func (d *departures) replacedBy(p *Pod) *Departure {
	kind, name, _ := strings.Cut(p.owner, "/")
	for _, uid := range d.order {
		row := d.byPod[uid]
		if row.Next == "" && row.Namespace == p.eviction.Name.Namespace && (row.owner == p.owner || row.owner == name) &&
			uid != p.uid() && p.created+999 >= row.At && (kind != "StatefulSet" || row.Name == p.eviction.Name.Name) {
			return row
		}
	}
	return nil
}

// news finds replacements among the new pods or, after departures of unknown pods, among all pods.
// It returns the departures changed since the last call.
func (d *departures) news(now int64, pods map[types.UID]*Pod) (list []Departure) {
	if d.foreign {
		d.fresh = slices.Collect(maps.Keys(pods))
	}
	used := map[types.UID]bool{}
	for _, row := range d.byPod {
		used[row.next] = true
		if p := pods[row.next]; p != nil && row.NextNode == "" && p.eviction.Node != "" {
			row.NextNode, row.NextPlaced, row.changed = p.eviction.Node, now, true
		}
	}
	d.fresh = slices.DeleteFunc(d.fresh, func(uid types.UID) bool { return pods[uid] == nil || pods[uid].owner == "" || used[uid] })
	slices.SortFunc(d.fresh, func(a, b types.UID) int {
		return cmp.Or(cmp.Compare(pods[a].created, pods[b].created), cmp.Compare(a, b))
	})

	for _, uid := range d.fresh {
		p := pods[uid]
		if row := d.replacedBy(p); row != nil {
			row.next, row.Next, row.NextNode, row.Workload, row.changed = uid, p.eviction.Name.Name, p.eviction.Node, p.workload, true
		}
	}
	for _, row := range d.byPod {
		if row.changed {
			row.changed = false
			list = append(list, *row)
		}
	}
	d.fresh, d.foreign = nil, false
	return list
}

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
