// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// GuardOptions configure a Guard.
type GuardOptions struct {
	// Options are the webhook's.
	evictionguard.Options
	// Wall has the same meaning as in Options.
	Wall pacing.Wall
}

// Bounds of a Guard.
const (
	fewestSurges = 30                     // concurrent surges of a small cluster: the pods of a node
	plansAgain   = 5 * time.Second        // between plans without a new request
	plansSoon    = time.Second            // between plans with a new request
	collectsFor  = 200 * time.Millisecond // from a new request to its plan: an evictor sends many at a time
	mostPlanned  = 200                    // pods of a plan
	// statusAfter is the age of a request at which its pod gets the status Held. Evictors usually
	// retry after 5 s, and until then most pods are replaced.
	statusAfter = 4 * time.Second
	// statusAgain is the time between two statuses Held of a pod. In a mass eviction the reasons
	// change with each plan.
	statusAgain = 30 * time.Second
	// recoversAfter is the pause before an attempt to restore a scale is repeated.
	recoversAfter = time.Minute
)

// Guard replaces pods whose evictions the webhook holds. Like a Drainer it surges pods by a plan,
// but it neither cordons nor evicts: the controller of the workload removes the pod once its
// replacement is ready. Pods that cannot surge are admitted, so that their evictors evict them.
//
// Guard runs until its process ends, and keeps no state of its own: the requests are annotations of
// pods, and surges are labels of workloads.
type Guard struct {
	mover
	options GuardOptions
	listed  bool

	held     map[types.UID]*heldPod
	order    []*heldPod // by their last plan; advance removes pods that are no longer held
	planning bool       // a plan has been requested
	planned  time.Time  // time of the last plan
	fresh    time.Time  // time of the first refresh since the last plan; zero without one
	// ended holds the surges of this process that are over, with the times of their ends. Their
	// scale may not be restored: a request may have been refused, or a raise carried out late. A
	// note with only the pod stands for the pod's deletion cost.
	ended map[surgeNote]time.Time
}

// heldPod is a pod whose eviction is held, or is due later.
type heldPod struct {
	namespace, name string
	uid             types.UID
	requested       time.Time
	repeated        time.Time // the last request
	due             time.Time // time of an eviction for a taint, which is not held; zero for a request
	rule            evictionguard.Rule
	status          string    // as observed
	wanted          string    // as decided; "" before the first plan
	written         time.Time // the last status
	failed          int       // surges given up
	next            time.Time
	final           bool // no further plan is needed
}

// NewGuard returns a Guard without any cluster state.
func NewGuard(options GuardOptions) *Guard {
	g := &Guard{options: options, held: map[types.UID]*heldPod{}, ended: map[surgeNote]time.Time{}}
	g.init(g, newCluster(), options.Wall)
	return g
}

// Step applies an event and returns the actions caused by the event and by the passing of time.
func (g *Guard) Step(now time.Time, event Event) []Action {
	g.beginStep(now)
	switch e := event.(type) {
	case Seen:
		if _, ok := e.Object.(*appsv1.Deployment); ok {
			g.refresh() // pods may wait for a rollout or for the end of a surge
		}
		if pod, ok := e.Object.(*v1.Pod); ok {
			g.seePod(pod)
		} else if node, ok := e.Object.(*v1.Node); ok {
			g.seeNode(node)
		} else if note, ok := readNote(e.Object.GetLabels()[rebalance.SurgeLabel]); ok &&
			!slices.ContainsFunc(g.surges.list, func(s *surge) bool { return s.note == note }) {
			g.recoverLater() // a request of an earlier process may be carried out late
		}

	case Gone:
		delete(g.held, e.Object.GetUID())
	case Listed:
		g.listed = true
		for _, h := range g.order {
			if pod := g.cluster.pod(h.namespace, h.name, h.uid); pod != nil {
				g.judge(h, pod)
			}
		}
		g.recover()
	}
	g.take(event)
	if e, ok := event.(DrainPlanned); ok {
		g.carryOut(e.Plan)
	}
	g.advance()
	return g.actions
}

// Wake returns the time of the next Tick, unless an event arrives first.
func (g *Guard) Wake() (at time.Time, ok bool) { return g.at, !g.at.IsZero() }

// seePod updates the request in a pod. A second request for the same pod counts as a new one.
func (g *Guard) seePod(pod *v1.Pod) {
	at, ok := evictionguard.Requested(pod, g.wall(), g.options.Deadline)
	h := g.held[pod.UID]
	switch {
	case pod.DeletionTimestamp != nil, !ok && h != nil && h.due.IsZero():
		delete(g.held, pod.UID)
		return
	case !ok:
		if node := g.cluster.node(pod.Spec.NodeName); node != nil {
			g.seeTaints(pod, evictingTaints(node, g.wall()))
		}
		return
	case h == nil || !h.requested.Equal(at) || !h.due.IsZero():
		h = g.hold(pod, at)
	}

	h.status = pod.Annotations[evictionguard.StatusAnnotation]
	last := evictionguard.LastRequested(pod, g.wall(), at)
	if g.abandoned(h) && !last.Equal(h.repeated) {
		g.refresh()
	}
	h.repeated = last
}

// abandoned reports whether the evictor of a pod seems to have given up. A surge is not begun then.
func (g *Guard) abandoned(h *heldPod) bool {
	return h.due.IsZero() && g.wall().Sub(h.repeated) >= evictionguard.RepeatsWithin
}

// refresh notes that a plan may help a pod now: a request has arrived, or an obstacle has gone.
func (g *Guard) refresh() {
	if g.fresh.IsZero() {
		g.fresh = g.now
	}
}

// hold adds a held pod.
func (g *Guard) hold(pod *v1.Pod, requested time.Time) *heldPod {
	h := &heldPod{namespace: pod.Namespace, name: pod.Name, uid: pod.UID, requested: requested, repeated: requested}
	g.held[pod.UID], g.order = h, append(g.order, h)
	g.refresh()
	if g.listed {
		g.judge(h, pod)
	}
	return h
}

// recover gives up surges left behind: initially the surges of an earlier process for held pods,
// and later the surges of this process whose scale was not restored, or was raised belatedly.
func (g *Guard) recover() {
	first := g.planned.IsZero() && !g.planning
	maps.DeleteFunc(g.ended, func(_ surgeNote, at time.Time) bool { return g.now.Sub(at) >= surgesFor })
	g.surges.recover(func(p *v1.Pod, note surgeNote) bool { return first && g.held[p.UID] != nil || !g.ended[note].IsZero() })
}

// recoverLater schedules recover.
func (g *Guard) recoverLater() {
	g.surges.expires = pacing.Sooner(g.surges.expires, g.now.Add(recoversAfter))
}

// advance follows the surges, and requests a plan if a held pod waits for one.
func (g *Guard) advance() {
	g.at = time.Time{}
	if !g.listed {
		return
	}
	if at := g.surges.expires; !at.IsZero() && !g.now.Before(at) {
		g.recover()
	}
	why := ""
	if g.stopping {
		why = interrupted
	}
	g.surges.follow(why)
	if at := g.surges.expires; !at.IsZero() { // also set by surges that have just ended
		g.wake(at)
	}
	g.order = slices.DeleteFunc(g.order, func(h *heldPod) bool {
		if g.held[h.uid] == h && g.wall().Sub(h.requested) >= 2*g.options.Deadline {
			delete(g.held, h.uid) // the webhook ignores the request
		}
		return g.held[h.uid] != h
	})
	for _, h := range g.order {
		g.expire(h)
		if g.abandoned(h) && !h.final && strings.HasPrefix(h.wanted, evictionguard.Admitted) {
			h.wanted = evictionguard.Held + "looking for a place" // plans no longer prove the place
		}
		g.writeStatus(h)
	}

	if g.planning || g.stopping {
		return
	}
	due := g.planned.Add(plansAgain)
	if !g.fresh.IsZero() {
		due = pacing.Later(g.planned.Add(plansSoon), g.fresh.Add(collectsFor))
	}
	var waiting []*heldPod
	for _, h := range g.order {
		switch {
		case h.final || g.surging(h.uid) || g.abandoned(h):
		case g.now.Before(h.next):
			g.wake(h.next)
		default:
			waiting = append(waiting, h)
		}
	}
	switch {
	case len(waiting) == 0:
		g.fresh = time.Time{}
	case g.now.Before(due):
		g.wake(due)
	default:
		g.plan(waiting)
	}
}

// plan requests a plan for waiting pods. A plan for all pods of a mass eviction would take too
// long. It includes the least recently planned pods, and namespaces take turns.
func (g *Guard) plan(waiting []*heldPod) {
	if len(waiting) > mostPlanned {
		rank, count := map[*heldPod]int{}, map[string]int{}
		for _, h := range waiting {
			rank[h] = count[h.namespace]
			count[h.namespace]++
		}
		slices.SortStableFunc(waiting, func(a, b *heldPod) int { return cmp.Compare(rank[a], rank[b]) })
		waiting = waiting[:mostPlanned]
	}
	planned, placed := map[types.UID]bool{}, map[types.UID]bool{}
	for _, h := range waiting {
		planned[h.uid], placed[h.uid] = true, h.rule.Policy == evictionguard.Place
	}

	g.order = append(slices.DeleteFunc(g.order, func(h *heldPod) bool { return planned[h.uid] }), waiting...)
	g.planning, g.fresh = true, time.Time{}
	leaving := rebalance.Leaving{
		Only: planned, Surge: true, Fitting: true, Begun: true, Surging: map[types.UID]bool{}, Placed: placed,
		DrainRules: disruption.DrainRules{IgnoreDaemonSets: true, DeleteEmptyDirData: true, Force: true},
	}
	for _, s := range g.surges.list {
		for _, p := range s.all() {
			leaving.Surging[p.UID] = true
		}
	}
	g.addAction(PlanDrain{State: &rebalance.State{AsOf: g.wall(), World: g.cluster.Fork()}, Leaving: &leaving})
}

// surging reports whether the pod has a surge.
func (g *Guard) surging(uid types.UID) bool {
	return slices.ContainsFunc(g.surges.list, func(s *surge) bool { return s.removes(uid) })
}

// setStatus decides the status of a held pod, until its deadline. It is written by advance.
func (g *Guard) setStatus(uid types.UID, status string) {
	if h := g.held[uid]; h != nil && !h.final {
		h.wanted = status
	}
}

// settle decides the last status of a held pod.
func (g *Guard) settle(uid types.UID, status string) {
	g.setStatus(uid, status)
	if h := g.held[uid]; h != nil {
		h.final = true
	}
}

// writeStatus writes the status of a pod if it differs from the observed one. A status that is not
// stored is written again at increasing intervals.
func (g *Guard) writeStatus(h *heldPod) {
	next := g.nextFor(h.uid)
	switch holds := strings.HasPrefix(h.wanted, evictionguard.Held); {
	case holds && strings.HasPrefix(h.status, evictionguard.Admitted):
		next = pacing.Sooner(next, h.written.Add(plansAgain)) // the place is no longer proven
	case holds:
		next = pacing.Later(next, g.now.Add(statusAfter-g.wall().Sub(h.requested)))
		if h.status != "" {
			next = pacing.Later(next, h.written.Add(statusAgain))
		}
	}

	switch {
	case h.wanted == "" || h.wanted == h.status || !h.due.IsZero():
	case g.now.Before(next):
		g.wake(next)
	default:
		g.wake(g.paced(h.uid))
		h.written = g.now
		g.addAction(SetStatus{Namespace: h.namespace, Name: h.name, UID: h.uid, Status: h.wanted})
	}
}

// report reports the progress of a departure, also in the status of its pod.
func (g *Guard) report(p *departure, result Result, node, message string) {
	a := DrainProgress{Result: result, Node: node, Message: message}
	if p != nil {
		a.Pod = &p.Departure
		switch result {
		case Arrived:
			g.setStatus(p.UID, evictionguard.Held+"waiting until the replacement "+message+" on "+node+" is ready")
		case Awaited:
			g.setStatus(p.UID, evictionguard.Held+message)
		}
	}
	g.addAction(a)
}

// surgeEnded plans again for the pods that stay, unless that would not help. Such a pod is held
// until the deadline, and then evicted without a replacement.
func (g *Guard) surgeEnded(s *surge) {
	g.ended[s.note] = g.now
	g.recoverLater()
	g.refresh()
	for _, p := range s.all() {
		g.ended[surgeNote{pod: p.UID}] = g.now
		h := g.held[p.UID]
		if h == nil || h.final || s.why == "" {
			continue
		}
		if !s.outdated {
			h.failed++
		}
		h.wanted = evictionguard.Held + "no replacement: " + s.why
		h.final, h.next = s.final && len(s.also) == 0 || h.failed >= mostSurges, g.now.Add(lastPause)
	}
}

// leaving, vanished, putOff and refused need no action: the workload's controller removes the pods.
func (g *Guard) leaving(*departure)           {}
func (g *Guard) vanished(*departure)          {}
func (g *Guard) putOff(*departure, Answered)  {}
func (g *Guard) refused(*departure, Answered) {}
