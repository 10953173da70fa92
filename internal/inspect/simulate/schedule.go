package simulate

import (
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/standin"
)

// scheduler drives the core that schedules the world's pods, and keeps what an answer says
// about each. The core is the one of the live scheduler: it takes events and returns actions.
// Here the events are made by the world, and the actions are carried out at once and succeed.
//
// A pod without a node is in created or late until the core has been shown it, and in pending from
// then on. One that is refused, or that no profile serves, is in neither.
type scheduler struct {
	clock   *clock
	report  *report
	allowed *allowed
	core    *cycle.Core
	c       *cluster.Cluster // of the core
	// api has what the API server has: the objects that the core was shown, and those that it is
	// not concerned with. Pods are in it where time may pass.
	api *world.World
	// behind is how far the core's clock is behind the world's until what is pending has been
	// tried once. A live scheduler has tried it before: its back-off is over. trySettled sets
	// it to 0.
	behind   time.Duration
	standin  standin.Controllers
	profiles map[string]*plugins.Profile // by scheduler name
	created  []*pod
	late     []*pod // shown once all others have been tried; see makeAgain
	pending  map[types.UID]*pod
	// tried is how many of the pending pods have been decided at least once, and decided is
	// how many attempts were made in all. Both only feed samples and progress.
	tried   int
	decided int // how many attempts were made
	// turn are the pods that were shown since the world last settled, in the order in which
	// they are taken, and passed is how many of them have had their turn. They let a pod that
	// is never tried appear in the answer where its turn would have been.
	turn   []*pod
	passed int
	// explains is set if verdicts are wanted. verdicts has those on every node for the pods
	// that are being decided; recordDecision takes them out.
	explains bool
	verdicts map[types.UID][]Node
	// preferred are the nodes that pods get if several are equally good; nil, except in
	// SettleAt.
	preferred map[types.UID]string
	gates     groups.Gates
	groups    *groups.Set // of the core; nil without the gates
	// lasting is set if time may pass. Where it does not, each pod is tried once.
	lasting bool
	// progress, if set, is called every progressEvery decisions.
	progress func(decided int)
	// landed is called when a pod has got a node, preempt to delete a victim, and remove to
	// remove a pod that was terminating before it became a victim. allow adds the pods that
	// are no longer refused. They are functions so that the scheduler does not depend on
	// those who react.
	landed  func(p *pod)
	allow   func()
	preempt func(victim types.UID, by *pod)
	remove  func(p *cluster.Pod)
}

// startCore makes the core. MaxWait is off: the retry of pods that have waited too long is
// there in case an event is lost, and here none is. Attempts for groups are not cut short for
// others either.
func (s *scheduler) startCore(seed uint64, profiles []*plugins.Profile) error {
	s.profiles, s.pending, s.verdicts = map[string]*plugins.Profile{}, map[types.UID]*pod{}, map[types.UID][]Node{}
	o := cycle.Options{
		Seed: seed, MaxWait: math.MaxInt64, Groups: s.gates, Unhurried: true,
		Prefer: func(p *cluster.Pod) string { return s.preferred[p.UID] },
	}

	for _, p := range profiles {
		s.profiles[p.SchedulerName] = p
		served := cycle.Profile{Profile: p}
		// witness is made for each profile, because each pod is decided by the one that
		// serves it.
		if s.explains {
			served.Extensions = []cycle.Extension{witness{s}}
		}
		o.Profiles = append(o.Profiles, served)
	}

	var err error
	if s.core, err = cycle.New(o); err != nil {
		return err
	}

	view := s.core.View()
	s.c, s.groups, s.api = view.Cluster, view.Groups, world.Over(view.Cluster)
	s.standin = standin.Controllers{
		Cluster: s.c, Feed: s.feedEvent, Named: s.nameClaim, Now: func() metav1.Time { return metav1.NewTime(s.clock.time()) },
	}
	// The world is complete before the first decision, so the core leads from the beginning.
	s.core.Step(s.coreClock(), cycle.Follows{})
	s.core.Step(s.coreClock(), cycle.Led{})
	return nil
}

// witness records every plugin's verdict on every node before a pod, or the first pod of a
// group, is decided. It has to ask before the decision: afterwards the pod itself takes room
// on its node.
type witness struct{ *scheduler }

// Name implements [cycle.Extension].
func (witness) Name() string { return "Explain" }

// Begin implements [cycle.Beginner].
func (s witness) Begin(a *cycle.Attempt) { s.verdicts[a.Pod.UID] = s.explainPod(a.Profile, a.Waiting) }

// showObject gives the core an object as the API has it now.
func (s *scheduler) showObject(kind cycle.Kind, object metav1.Object) {
	s.feedEvent(cycle.Seen{Kind: kind, Object: object})
}

// showChanged shows the core an object that it may know, and that has changed. The caller
// owns the object, and gives it away. Its resourceVersion is cleared: the core takes an
// object of a version that it knows for one that is only listed again, and would ignore the
// change.
func (s *scheduler) showChanged(kind cycle.Kind, object metav1.Object) {
	object.SetResourceVersion("")
	s.showObject(kind, object)
}

// showGone tells the core that an object was deleted. Of a pod, its namespace, name and UID
// are enough; see stubPod.
func (s *scheduler) showGone(kind cycle.Kind, last metav1.Object) {
	s.feedEvent(cycle.Gone{Kind: kind, Object: last})
}

// feedEvent gives the core an event, and carries out the actions that follow. These feed the
// core again, so feedEvent calls itself, and everything that an event entails has happened
// when it returns.
//
// Where no time passes, pods that could not make room for themselves are not retried. One
// that keeps its nomination stays pending: as in a cluster, the room that it was promised is
// not given to others.
func (s *scheduler) feedEvent(e cycle.Event) {
	actions := slices.Clone(s.core.Step(s.coreClock(), e)) // the core's own until the next step
	s.followEvent(e)
	decided := s.core.Decided()
	// Decisions are listed before the actions are carried out: a binding takes the pod out of
	// pending, where hearTogether looks it up.
	heard := s.hearTogether(decided)
	for _, action := range actions {
		s.carryOut(action)
	}
	if s.lasting {
		return
	}
	makesRoom := slices.ContainsFunc(decided, func(d *decision.Decision) bool {
		return len(d.Victims) > 0 ||
			d.Group != nil && d.NominatedNode != ""
	})
	for i, d := range decided {
		switch p := heard[i]; {
		case p == nil || d.Result == decision.Placed:
		case makesRoom:
			s.completePreemption(d)
		case s.c.Nominated(p.UID) != nil:
		default:
			s.withdrawPod(p)
		}
	}
}

// followEvent records what the core was shown. Pods and workloads are recorded by those who make
// them: the core is not shown all of them.
func (s *scheduler) followEvent(e cycle.Event) {
	kind, object, gone := cycle.Kind(""), metav1.Object(nil), false
	switch e := e.(type) {
	case cycle.Seen:
		kind, object = e.Kind, e.Object
	case cycle.Gone:
		kind, object, gone = e.Kind, e.Object, true
	}
	switch kind {
	case "", cycle.Pods, cycle.ReplicaSets, cycle.StatefulSets, cycle.ReplicationControllers:
	default:
		s.api.Follow(object, gone)
	}
}

// completePreemption completes an attempt that made room, where no time passes: victims that
// were terminating already are removed. The core asks for no deletion of these, and where no
// time passes their grace period would never end.
func (s *scheduler) completePreemption(d *decision.Decision) {
	n := s.c.Node(d.NominatedNode)
	if n == nil {
		return
	}
	for _, victim := range slices.Clone(n.Pods) {
		if victim.Terminating && (d.Group != nil ||
			slices.Contains(d.Victims, decision.Name{Namespace: victim.Namespace(), Name: victim.Name})) {
			s.remove(victim)
		}
	}
}

// coreClock is the core's time. It is the world's except before the first attempts; see
// behind.
func (s *scheduler) coreClock() time.Time { return s.clock.time().Add(-s.behind) }

// isAwake reports whether the core has a pod to try now.
func (s *scheduler) isAwake() bool { return !s.core.Wake(s.coreClock()).After(s.coreClock()) }

// trySettled tries pods until nothing is left to do at this time. Pods that an event has
// requeued are tried before those that controllers create because of the same event: in a
// cluster, a controller needs some time to react.
func (s *scheduler) trySettled() {
	s.tryUntil(func() bool { return false })
}

// tryUntil is trySettled, but ends before that when over returns true or an allowance is used
// up. over is asked before each attempt.
func (s *scheduler) tryUntil(over func() bool) {
	for !s.allowed.mustStop() && !over() {
		// Deletions may have freed a quota, and the pod that is created then may be the next
		// to try.
		if s.allow(); s.isAwake() {
			s.feedEvent(cycle.Tick{})
		} else if len(s.created) > 0 {
			s.showCreated()
		} else if len(s.late) > 0 {
			s.created, s.late = s.late, nil
		} else {
			break
		}
	}
	s.behind = 0
	s.listUntried(len(s.turn))
	for _, p := range s.turn {
		p.turn = 0
	}
	s.turn, s.passed = nil, 0
}

// addPending adds a pod without a node. The core is shown it when showCreated is next called,
// so that pods that are created together are tried in queue order, whoever was created first.
func (s *scheduler) addPending(p *pod, object *v1.Pod) {
	p.Pod, p.fresh = s.c.Pending(object), object
	s.created = append(s.created, p)
}

// renewPending records a change of a pod without a node. If the core has not been shown the
// pod yet, it will see the changed one.
func (s *scheduler) renewPending(p *pod, object *v1.Pod) {
	p.Pod = s.c.Pending(object)
	if s.pending[p.UID] == p {
		s.showObject(cycle.Pods, object)
	} else if p.fresh != nil {
		p.fresh = object
	}
}

// postponePod has a new pod shown later than all others that are created at this time.
func (s *scheduler) postponePod(p *pod) {
	s.created = slices.DeleteFunc(s.created, func(o *pod) bool { return o == p })
	s.late = append(s.late, p)
}

// progressEvery is how many pods are decided between two calls of Options.Progress: some
// milliseconds' worth, so that a progress bar moves smoothly and costs nothing.
const progressEvery = 1024

// recordDecision lists a decision about a pod, and returns the entry, which the caller may
// complete. A pod that stays pending is listed the first time only, unless it preempts; the
// result is then nil. together means that the pod waits with its group, which gets the event.
func (s *scheduler) recordDecision(p *pod, d *decision.Decision, together bool) (listed *Pod) {
	if s.decided++; s.progress != nil && s.decided%progressEvery == 0 {
		s.progress(s.decided)
	}
	if !p.tried {
		p.tried = true
		s.tried++
	}
	// Pods ahead of this one that will never be tried stand ahead of it in the answer, too.
	s.listUntried(p.turn - 1)
	said := Pod{Nodes: s.verdicts[p.UID]}
	delete(s.verdicts, p.UID)
	if d.Group != nil {
		said.Group = d.Group.Name
	}
	if d.Result == decision.Placed {
		said.Node = d.Node
		return s.report.addDecision(p, said, false)
	}
	if said.Nodes == nil { // a pod like it has just failed, so it was not decided itself
		said.Nodes = s.explainPod(p.Spec().SchedulerName, p.Pod)
	}
	said.Message, said.NominatedNode = d.Message, d.NominatedNode
	p.refusal, p.reasons = d.Message, d.Reasons
	for _, victim := range d.Victims {
		said.Victims = append(said.Victims, Name{victim.Namespace, victim.Name})
	}
	if len(said.Victims) > 0 || !p.listed {
		listed = s.report.addDecision(p, said, together)
	}
	p.listed = true
	return listed
}

// podBound records that a pending pod has got a node. The core has been shown the bound pod
// already.
func (s *scheduler) podBound(p *pod) {
	delete(s.pending, p.UID)
	if p.tried {
		s.tried--
	}
	// If it is evicted and pending again, that is worth another line.
	p.listed = false
	p.Pod = s.c.Pod(p.UID)
	s.landed(p)
}

// withdrawPod removes a pod without a node from scheduling: it was deleted, or is not to be
// tried again. Its entries in the answer stay.
func (s *scheduler) withdrawPod(p *pod) {
	p.gone = true
	if s.pending[p.UID] == p {
		delete(s.pending, p.UID)
		if p.tried {
			s.tried--
		}
		s.showGone(cycle.Pods, stubPod(p.Pod))
	}
	withdrawn := func(o *pod) bool { return o == p }
	s.created, s.late = slices.DeleteFunc(s.created, withdrawn), slices.DeleteFunc(s.late, withdrawn)
}
