package simulate

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// World is a cluster in virtual time, with the outcome so far. It is not safe for concurrent use.
type World struct {
	options   Options
	gangs     bool // Jobs become gangs
	c         *cluster.Cluster
	set       *manifest.Set // what the world was made from, with the workloads that can make pods
	origin    manifest.Set  // set as it was at the beginning, for a twin
	catalog   *admission.Catalog
	machines  map[string]*machine // the nodes, by name
	scheduler scheduler
	bounds    *bounds
	budgets   budgets
	claims    claims
	clock     clock
	report    report

	evictions evictions
	// placed has pods on nodes: all of them if the world is lasting, and otherwise those that a
	// taint evicts.
	placed  map[types.UID]*pod
	entered int // how many pods have been added
	homed   int // how many pods had a node when they were added

	// lasting is set if time may pass: pods and their objects are kept.
	lasting bool
	health  *health // nil until begin, and if node health cannot have any effect
	// pods are all pods by name, if the world is lasting.
	pods     map[Name]*pod
	departed []*Departure
	deleted  map[string]bool // the workloads that were deleted, by controllerName
	// touched is set when something has changed that the cluster's log does not show.
	touched  bool
	refusals []string // why pods could not be created, since manifests were last applied
	allowed  allowed
}

// pod is a pod that is pending, or may have to leave its node.
type pod struct {
	*cluster.Pod
	// number is its position in the order in which pods were added.
	number int
	// object is the pod as the API server would have it; nil if it will not be needed.
	object *v1.Pod
	// fresh is the same object until the core has seen it.
	fresh *v1.Pod
	// refused is why the API server refuses to create it, or empty.
	refused string
	charged bool         // it counts in the quotas of its namespace
	due     eviction.Due // when it has to leave
	since   time.Time    // when it came to its node
	refusal string       // why it could not be placed, the last time it was tried
	unready bool         // counts in budgets.unready
	// again is set if it is the replacement of a pod that a taint evicted.
	again bool
	// departure is set while the pod is stuck on a node that does not respond.
	departure *Departure
	leaves    *Departure // set while it is terminating on its node
	turn      int        // its place in World.turn, from 1; 0 if it is not there
	tried     bool       // the scheduler has decided it
	listed    bool       // it is in the answer as pending
	quiet     bool       // it is never listed
	reasons   map[string]int
	gone      bool
}

// queued sorts pods in the order in which the scheduler takes them: by priority, then by age, then
// in the order in which they were added.
func queued(pods []*pod) {
	slices.SortFunc(pods, order)
}

func order(a, b *pod) int {
	return cmp.Or(cmp.Compare(b.Class.Priority, a.Class.Priority), a.Created.Compare(b.Created), cmp.Compare(a.number, b.number))
}

// enter adds a pod as the API server has it, or would have it if it did not refuse it.
func (w *World) enter(object *v1.Pod, refusal string) *pod {
	w.entered++
	p := &pod{number: w.entered, refused: refusal, charged: refusal == "" && !rules.IsTerminal(object)}
	if w.lasting || len(w.evictions.held) > 0 {
		p.object = object
	}
	if w.lasting {
		defer func() { w.know(p) }()
	}
	if object.Spec.NodeName == "" {
		if rules.IsTerminal(object) || object.DeletionTimestamp != nil {
			return p // no scheduler will place it
		}
		w.scheduler.add(p, object)
		return p
	}
	w.scheduler.show(cycle.Pods, object)
	if p.Pod = w.c.Pod(object.UID); p.Pod != nil {
		w.homed++
		if saysNotReady(object) && !p.Terminating {
			w.budgets.unready[p.Class]++
			p.unready = true
		}
		w.settled(p, eviction.PodOf(object).Bound)
		if w.lasting && p.Terminating {
			w.clock.at(object.DeletionTimestamp.Sub(w.clock.start), func() { w.terminated(p) })
		}
	}
	return p
}

// settled records that a pod has been on its node since then, and drops what will not be needed of
// it.
func (w *World) settled(p *pod, since time.Time) {
	p.since = since
	w.evictions.watch(p, since)
	if p.due.Stays() && !w.lasting {
		p.object = nil
		return
	}
	w.placed[p.UID] = p
}

// landed records that a pod has got a node.
func (w *World) landed(p *pod) {
	w.settled(p, w.clock.time())
	if w.lasting {
		w.budgets.joined(p.Pod)
	}
}

// remove removes a pod from the world, with what it held.
func (w *World) remove(p *cluster.Pod) {
	known, terminating := w.placed[p.UID], p.Terminating
	w.scheduler.showGone(cycle.Pods, stub(p))
	switch {
	case known != nil && known.unready:
		w.budgets.unready[p.Class]--
	case !terminating: // a terminating pod has been subtracted already
		w.budgets.left(p)
	}
	w.scheduler.standin.Gone(p)
	if known != nil {
		known.gone = true
		w.forget(known)
		delete(w.placed, p.UID)
	}
}

// saysNotReady reports whether a kubelet has reported the pod as not ready. A pod in a hand-written
// manifest has no report, and is assumed to be fine.
func saysNotReady(p *v1.Pod) bool {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == v1.PodReady {
			return c.Status != v1.ConditionTrue
		}
	}
	return false
}
