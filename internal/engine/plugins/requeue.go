// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Requeuer is a plugin with a list of events that can help its rejected pods. Pods rejected by any
// other plugin are retried after every event.
//
// Upstream's plugins have such lists (EventsToRegister, isSchedulableAfter…), but they are less
// exact. Berth counts every event that can help, even if upstream ignores it, and wakes only the
// pods that an event can help, even if upstream wakes all pods.
type Requeuer interface {
	Name() string
	// Interests lists the events that can help, each with a hint that reports whether it helps a
	// given pod. A hint may run after further events, and reads the current state: a later event
	// that helps runs its own hint.
	Interests(setting Setting) []queue.Interest
}

// Setting is the input of a plugin's interests.
type Setting struct {
	Cluster *cluster.Cluster
	Profile *Profile
	// Filter is the plugin as enabled by the profile, perhaps at one extension point only. It is
	// nil if the profile does not enable the plugin as a filter.
	Filter Filter
	// Displaces reports whether an item's pod could preempt another pod if the preemption helped.
	// If Displaces is nil, an item's pod can preempt exactly the pods of lower priority.
	Displaces Displaces
}

// Displaces reports whether the pod of an item could preempt p. Hints call it, so it reads the
// cluster at the time of the hint.
type Displaces func(item *queue.Item, p *cluster.Pod) bool

// mayDisplace reports whether preemption for the item could take the pod, regardless of budgets.
func (setting Setting) mayDisplace(item *queue.Item, p *cluster.Pod) bool {
	if setting.Displaces != nil {
		return setting.Displaces(item, p)
	}
	return p.Class.Priority < item.Class.Priority
}

// couldRemove reports whether the pod of an item could have preempted p all along, so that p's
// departure cannot help the item. A pod covered by a budget may have been out of reach.
func (setting Setting) couldRemove(item *queue.Item, p *cluster.Pod) bool {
	return setting.mayDisplace(item, p) && !setting.isKept(p)
}

// isKept reports whether the profile honours a budget that covers the pod. It ignores the budget's
// current allowance, which may have differed at the time of the item's decision.
func (setting Setting) isKept(p *cluster.Pod) bool {
	return setting.Profile.KeepBudgets && len(setting.Cluster.BudgetsOf(p.Class)) > 0
}

// Interests returns the events that can help pods of the profile, keyed by the plugin that rejected
// the pod. displaces may be nil; see [Setting].
func (p *Profile) Interests(c *cluster.Cluster, displaces Displaces) queue.Interests {
	all := queue.Interests{}
	for name, plugin := range p.made {
		r, ok := plugin.(Requeuer)
		if !ok {
			continue
		}
		filter := p.filterNamed(name)
		if _, filters := plugin.(Filter); filters && filter == nil && !p.Has(PreEnqueue, name) {
			continue // it rejects no pods now; pods rejected before a reload are retried after every event
		}
		all[name] = r.Interests(Setting{Cluster: c, Profile: p, Filter: filter, Displaces: displaces})
		if p.KeepBudgets && filter != nil { // victims protected by a budget may be evictable now, whatever resource they block
			all[name] = append(all[name], queue.Interest{Resource: queue.Budget, Action: queue.All})
		}
	}
	return all
}

// filterNamed returns the named filter as enabled by the profile, or nil.
func (p *Profile) filterNamed(name string) Filter {
	if i := slices.IndexFunc(p.Filters, func(f Filter) bool { return f.Name() == name }); i >= 0 {
		return p.Filters[i]
	}
	return nil
}

// ReadsOthers reports whether one of the named plugins may judge a node by other nodes.
func (p *Profile) ReadsOthers(names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		f := p.filterNamed(name)
		return f == nil || f.Reads()&Others != 0
	})
}

// Own is the hint for events of the pending pod itself.
func Own(item *queue.Item, e *queue.Event) bool { return e.Own == item }

// ownSpec is the hint for changes of the pending pod's spec, counted by its generation. Objects
// from files lack a generation, so any update of such a pod counts.
func ownSpec(item *queue.Item, e *queue.Event) bool {
	old, known := e.Old.(*v1.Pod)
	return Own(item, e) && !(known && old.Generation == item.Pod.Generation && old.Generation > 0)
}

// isOthers reports whether an event is about a placed pod rather than the pending pod itself. An
// event of a pending pod concerns that pod only.
func isOthers(e *queue.Event) bool { return e.Own == nil }

// askedPod returns the pod of an item as input to a filter, with class, name and UID. Like every
// pending pod it has no node.
func askedPod(item *queue.Item) *cluster.Pod {
	return cluster.NewPod(item.Class, item.Pod.Name, item.Pod.UID)
}

// NodeNowPasses is the hint of a filter that reads nothing but the node. It reports whether the
// filter passes the node now and did not before.
func (setting Setting) NodeNowPasses(item *queue.Item, e *queue.Event) bool {
	if e.Node == nil {
		return false
	}
	judge := setting.Filter.Filter(setting.Cluster, askedPod(item))
	if judge.Err != nil || judge.All != nil {
		return true // retried, so that the new reason is reported
	}
	passes := func(n *cluster.Node) bool {
		return (judge.Only == nil || judge.Only[n.Name]) && (judge.Node == nil || judge.Node(n) == nil)
	}
	return passes(e.Node) && (e.NodeBefore == nil || !passes(e.NodeBefore))
}

// fitsOn reports whether the filter passes the node, which may be a copy with fewer pods than in
// the cluster. It reads only Judge.Node: it serves NodeResourcesFit, which never rejects a pod as a
// whole nor narrows the nodes. A resize fits only on the node of its pod, which need not have room
// for the pod twice.
func (setting Setting) fitsOn(item *queue.Item, n *cluster.Node) bool {
	if item.Resizes() && n.Name != item.Pod.Spec.NodeName {
		return false
	}
	isOwn := func(p *cluster.Pod) bool { return p.UID() == item.Pod.UID }
	if at := slices.IndexFunc(n.Pods, isOwn); item.Resizes() && at >= 0 {
		without := n.Copy(nil)
		without.Take(n.Pods[at])
		n = without
	}
	judge := setting.Filter.Filter(setting.Cluster, askedPod(item))
	return judge.Node == nil || judge.Node(n) == nil
}
