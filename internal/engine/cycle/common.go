// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// common is the state shared by all components of the core: the model of the cluster, the queue,
// and the current step with its actions. Each component embeds a pointer to the same instance.
//
// handlers holds the handlers of the actions whose outcomes have not arrived yet. The executor of
// the actions reports an outcome for every action, including cancelled ones.
type common struct {
	options Options    // set by newCommon and never changed
	rng     *rand.Rand // the only source of randomness; an additional or missing draw changes all later draws

	cluster *cluster.Cluster
	queue   *queue.Queue
	groups  *groups.Set // empty if pod groups are disabled

	now      time.Time     // time of the current step
	ahead    time.Duration // how far the wall clock is ahead of now; see WallSet
	actions  []Action      // actions of the current step
	tickets  Ticket        // the last ticket issued
	handlers map[Ticket]handler

	shadow       Shadow // nil if this core makes the decisions
	mostHandlers int    // largest number of handlers; see cluster.Shrunk
}

// handler handles the outcome of one action. handle is called once, in the step of the [Answered].
// The reason for the action may no longer exist by then, so handle first checks whether the outcome
// is still relevant.
type handler struct {
	placement *placement // the placement that the action works for, or nil
	handle    func(o Outcome)
}

// beginStep begins a step: it drops the actions of the previous step and reuses their slice.
func (s *common) beginStep(now time.Time) {
	clear(s.actions)
	s.now, s.actions = now, s.actions[:0]
}

// addAction adds an action to the result of the current step.
func (s *common) addAction(a Action) { s.actions = append(s.actions, a) }

// issueTicket issues a ticket for an action without an outcome. Such a ticket links a Hold to its
// Release.
func (s *common) issueTicket() Ticket {
	s.tickets++
	return s.tickets
}

// issueHandled issues a ticket for an action of a placement, if any, and registers the handler of
// its outcome.
func (s *common) issueHandled(b *placement, handle func(o Outcome)) Ticket {
	t := s.issueTicket()
	s.handlers[t] = handler{b, handle}
	s.handlers = cluster.Shrunk(s.handlers, &s.mostHandlers)
	return t
}

// routeAnswer passes an outcome to its handler. A second outcome of the same action is ignored.
func (s *common) routeAnswer(a Answered) {
	if h, ok := s.handlers[a.Ticket]; ok {
		delete(s.handlers, a.Ticket)
		s.handlers = cluster.Shrunk(s.handlers, &s.mostHandlers)
		h.handle(a.Outcome)
	}
}

// observer returns the observer, which is never nil.
func (s *common) observer() Observer { return s.options.Observer }

// wallTime returns the time of the current step on the clock of API objects.
func (s *common) wallTime() time.Time { return s.now.Add(s.ahead) }

// clock returns the time for measuring durations in metrics. Unlike s.now, it may advance within a
// step. Decisions must not depend on it.
func (s *common) clock() time.Time { return s.options.Stopwatch() }

// groupOf returns the group with which an item is decided, or nil. A resize is decided alone.
func (s *common) groupOf(item *queue.Item) *groups.Group {
	if item.Resizes() {
		return nil
	}
	return s.groups.GroupOf(item.Pod.UID)
}

// pendingItem returns the item of a pending pod, or nil. A placed pod with a deferred resize is not
// pending.
func (s *common) pendingItem(uid types.UID) *queue.Item {
	if item := s.queue.Get(uid); item != nil && !item.Resizes() {
		return item
	}
	return nil
}

// readiness tracks whether the core may decide: every followed kind has been listed, and this
// scheduler leads. Both conditions stay true, except that a newly added kind must first be listed.
type readiness struct {
	unlisted map[Kind]bool // kinds not listed yet
	follows  bool          // Follows was received
	leads    bool
	begun    bool // Ready was returned
}

// followKinds adds kinds that must be listed before any decision. It may be called again for kinds
// followed later.
func (r *readiness) followKinds(kinds []Kind) {
	r.follows = true
	for _, kind := range kinds {
		r.unlisted[kind] = true
	}
}

// hasSynced reports whether every followed kind has been listed.
func (r *readiness) hasSynced() bool { return r.follows && len(r.unlisted) == 0 }

// mayDecide reports whether the core may decide pods yet.
func (r *readiness) mayDecide() bool { return r.leads && r.hasSynced() }

// nameOf returns the key of an object in the cluster model's tables; for a cluster-scoped object,
// the namespace is empty.
func nameOf(object metav1.Object) cluster.Name {
	return cluster.Name{Namespace: object.GetNamespace(), Name: object.GetName()}
}

// compareNames orders by namespace, then by name.
func compareNames(a, b cluster.Name) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// sameVersion reports whether a and b are the same version of the same object. It returns false for
// objects without a resource version.
func sameVersion(a, b metav1.Object) bool {
	return a.GetUID() == b.GetUID() && a.GetResourceVersion() == b.GetResourceVersion() && a.GetResourceVersion() != ""
}
