package plugins

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Requeuer is a plugin that knows which events can help the pods that it rejected. Pods rejected by
// a plugin that is no Requeuer are retried after every event.
//
// Upstream's plugins state the same (EventsToRegister, isSchedulableAfter…), but not exactly: here,
// an event that can help counts even if upstream ignores it, and where upstream wakes every pod,
// only those are woken that the event can help.
type Requeuer interface {
	Name() string
	// Interests lists the events that can help, each with a hint that reports whether it helps a
	// given pod. A hint may be called after further events have happened. It looks at the current
	// state: if that does not help, a later event that does will be asked about on its own.
	Interests(in Setting) []queue.Interest
}

// Setting is what a plugin's interests depend on.
type Setting struct {
	Cluster *cluster.Cluster
	Profile *Profile
	// Filter is the plugin as the profile enables it, perhaps at one extension point only. Nil if
	// it is not enabled as a filter.
	Filter Filter
	// Displaces reports whether an item's pod could preempt a pod if it helped. Nil: all pods of
	// lower priority, and nothing else.
	Displaces Displaces
}

// Displaces tells which pods the pod of an item could preempt. It is asked by hints, and so about
// the cluster as it is then.
type Displaces func(item *queue.Item, p *cluster.Pod) bool

// mayDisplace reports whether preemption for the item could take the pod. Budgets are not asked.
func (in Setting) mayDisplace(item *queue.Item, p *cluster.Pod) bool {
	if in.Displaces != nil {
		return in.Displaces(item, p)
	}
	return p.Class.Priority < item.Class.Priority
}

// couldRemove reports whether the pod of an item had the room of p within reach while p was there:
// that p leaves then is no news to it. What a budget covers may have been out of its reach.
func (in Setting) couldRemove(item *queue.Item, p *cluster.Pod) bool {
	return in.mayDisplace(item, p) && !in.isKept(p)
}

// isKept reports whether the profile keeps a budget that covers the pod. Whether that budget allows
// it to leave is not asked: the answer may have been another one when the item was decided.
func (in Setting) isKept(p *cluster.Pod) bool {
	return in.Profile.KeepBudgets && len(in.Cluster.BudgetsOf(p.Class)) > 0
}

// Interests returns what can help pods of the profile, by the plugin that rejected them. displaces
// may be nil; see [Setting].
func (p *Profile) Interests(c *cluster.Cluster, displaces Displaces) queue.Interests {
	all := queue.Interests{}
	for name, plugin := range p.made {
		r, ok := plugin.(Requeuer)
		if !ok {
			continue
		}
		filter := p.filterNamed(name)
		if _, filters := plugin.(Filter); filters && filter == nil && !p.Has(PreEnqueue, name) {
			continue // it rejects no pods now; those that it rejected before a reload are retried after every event
		}
		all[name] = r.Interests(Setting{Cluster: c, Profile: p, Filter: filter, Displaces: displaces})
		if p.KeepBudgets && filter != nil { // victims that a budget kept may go now, whatever they are in the way of
			all[name] = append(all[name], queue.Interest{Resource: queue.Budget, Action: queue.All})
		}
	}
	return all
}

// filterNamed returns the filter of that name as the profile enables it, or nil.
func (p *Profile) filterNamed(name string) Filter {
	for _, f := range p.Filters {
		if f.Name() == name {
			return f
		}
	}
	return nil
}

// Own is the hint for events of the pending pod itself.
func Own(item *queue.Item, e *queue.Event) bool { return e.Own == item }

// ownSpec is the hint for changes of the pending pod's spec: the generation counts these. Objects
// from files have no generation, so that any update counts.
func ownSpec(item *queue.Item, e *queue.Event) bool {
	old, known := e.Old.(*v1.Pod)
	return Own(item, e) && !(known && old.Generation == item.Pod.Generation && old.Generation > 0)
}

// isOthers reports whether an event is of a placed pod, and not of the pending pod itself. An event
// of a pending pod concerns no other pod.
func isOthers(e *queue.Event) bool { return e.Own == nil }

// askedPod returns the pod that a filter is asked about for an item: its class, name and UID. It
// has no node, as every pending pod.
func askedPod(item *queue.Item) *cluster.Pod {
	return cluster.NewPod(item.Class, item.Pod.Name, item.Pod.UID)
}

// NodeNowPasses is the hint of a filter that looks at the node alone: the filter lets the pod pass
// now, and did not before.
func (in Setting) NodeNowPasses(item *queue.Item, e *queue.Event) bool {
	if e.Node == nil {
		return false
	}
	judge := in.Filter.Filter(in.Cluster, askedPod(item))
	if judge.Err != nil || judge.All != nil {
		return true // retried, so that the new reason is reported
	}
	passes := func(n *cluster.Node) bool {
		return (judge.Only == nil || judge.Only[n.Name]) && (judge.Node == nil || judge.Node(n) == nil)
	}
	return passes(e.Node) && (e.NodeBefore == nil || !passes(e.NodeBefore))
}

// fitsOn reports whether the filter lets the pod pass on the node, which may be a copy with fewer
// pods than the cluster has there. It looks at Judge.Node alone: it is for NodeResourcesFit, which
// never rejects a pod as a whole nor narrows the nodes.
func (in Setting) fitsOn(item *queue.Item, n *cluster.Node) bool {
	judge := in.Filter.Filter(in.Cluster, askedPod(item))
	return judge.Node == nil || judge.Node(n) == nil
}
