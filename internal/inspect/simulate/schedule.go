// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"math"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/claimcontrollers"
)

// scheduler drives the core that schedules the world's pods, and records its decisions in the
// result. The core is the live scheduler's: it takes events and returns actions. Here the world
// generates the events, and the actions are carried out immediately and succeed.
//
// A pod without a node is in the list created or late. Once showCreated has shown it to the core,
// it is in the map pending. A pod that is refused or has no profile is not shown, and is in none of
// them afterwards.
type scheduler struct {
	clock   *clock
	report  *report
	allowed *allowed
	core    *cycle.Core
	c       *cluster.Cluster // the core's cluster
	// api holds the API server's objects: those shown to the core, and those irrelevant to it. It
	// includes pods if time may pass.
	api *world.World
	// behind is the lag of the core's clock behind the world's until all pending pods have been
	// tried once. A live scheduler has already tried them, and their back-off is over. trySettled
	// sets it to 0.
	behind      time.Duration
	controllers claimcontrollers.Controllers
	profiles    map[string]*plugins.Profile // by scheduler name
	created     []*pod
	late        []*pod // shown after all other pods have been tried; see makeAgain
	pending     map[types.UID]*pod
	// tried counts the pending pods decided at least once, and decided counts all attempts. Both
	// only feed samples and progress.
	tried   int
	decided int // number of attempts
	// turn lists the pods shown since the world last settled, in scheduling order, and passed
	// counts the pods past their turn. They determine where the result lists a pod that is never
	// tried.
	turn   []*pod
	passed int
	// explains is set if the result includes verdicts. verdicts holds the verdicts on every node
	// for the pods being decided; recordDecision removes them.
	explains bool
	verdicts map[types.UID][]Node
	// preferred maps pods to the node preferred among equally good ones; nil, except in SettleAt.
	preferred map[types.UID]string
	gates     groups.Gates
	groups    *groups.Set // the core's groups; nil without the gates
	// lasting is set if time may pass. Otherwise each pod is tried once.
	lasting bool
	// progress, if set, is called every progressEvery decisions.
	progress  func(decided int)
	reactions *reactions
}

// attempts is the state of a pod in the scheduler.
type attempts struct {
	// fresh equals object until the core has seen the pod, and is nil afterwards.
	fresh *v1.Pod
	tried bool // the scheduler has tried the pod at least once
	// refusal is the reason the last attempt failed, and reasons counts the nodes by rejection
	// reason.
	refusal string
	reasons map[string]int
	// turn is the pod's 1-based position in scheduler.turn; 0 if absent.
	turn int
	// listed means that the result lists the pod as pending. A quiet pod is never listed: it only
	// serves to find out whether one more pod fits.
	listed, quiet bool
}

// startCore creates the core. MaxWait, which retries long-waiting pods in case an event was lost,
// is off, because no events are lost here. Unhurried is set, so that attempts for groups are not
// cut short in favour of other pods.
func (s *scheduler) startCore(seed uint64, profiles []*plugins.Profile) error {
	s.profiles, s.pending, s.verdicts = map[string]*plugins.Profile{}, map[types.UID]*pod{}, map[types.UID][]Node{}
	o := cycle.Options{
		Seed: seed, MaxWait: math.MaxInt64, Groups: s.gates, Unhurried: true,
		Prefer: func(p *cluster.Pod) string { return s.preferred[p.UID()] },
	}

	for _, p := range profiles {
		s.profiles[p.SchedulerName] = p
		served := cycle.Profile{Profile: p}
		// One decisionObserver per profile, because each pod is decided by its own profile.
		if s.explains {
			served.Extensions = []cycle.Extension{decisionObserver{s}}
		}
		o.Profiles = append(o.Profiles, served)
	}

	var err error
	if s.core, err = cycle.New(o); err != nil {
		return err
	}

	view := s.core.View()
	s.c, s.groups, s.api = view.Cluster, view.Groups, world.Over(view.Cluster)
	s.controllers = claimcontrollers.Controllers{
		Cluster: s.c, Feed: s.feedEvent, Named: s.nameClaim, Now: func() metav1.Time { return metav1.NewTime(s.clock.time()) },
	}
	// The world is complete before the first decision, so the core leads from the beginning.
	s.core.Step(s.coreClock(), cycle.Follows{})
	s.core.Step(s.coreClock(), cycle.Led{})
	return nil
}

// decisionObserver records every plugin's verdict on every node before the decision about a pod or
// the first pod of a group. After the decision, the pod itself would occupy room on its node.
type decisionObserver struct{ *scheduler }

// Name implements [cycle.Extension].
func (decisionObserver) Name() string { return "Explain" }

// Begin implements [cycle.Beginner].
func (s decisionObserver) Begin(a *cycle.Attempt) {
	s.verdicts[a.Pod.UID] = s.explainPod(a.Profile, a.Waiting)
}

// showObject shows the core the API's current version of an object.
func (s *scheduler) showObject(kind cycle.Kind, object metav1.Object) {
	s.feedEvent(cycle.Seen{Kind: kind, Object: object})
}

// showChanged shows the core a changed object. The caller gives up ownership of the object. Its
// resourceVersion is cleared, because the core considers an object with a known version as merely
// relisted and would ignore the change.
func (s *scheduler) showChanged(kind cycle.Kind, object metav1.Object) {
	object.SetResourceVersion("")
	s.showObject(kind, object)
}

// showGone shows the core the deletion of an object. For a pod, namespace, name and UID suffice;
// see stubPod.
func (s *scheduler) showGone(kind cycle.Kind, last metav1.Object) {
	s.feedEvent(cycle.Gone{Kind: kind, Object: last})
}

// feedEvent feeds an event to the core and carries out the resulting actions. Actions feed further
// events to the core, so feedEvent is recursive, and all effects of an event are complete on
// return.
//
// In a world that is not lasting, pods are not retried unless they made room for themselves. A pod
// that keeps its nomination stays pending: as in a cluster, its promised room is not given away.
func (s *scheduler) feedEvent(e cycle.Event) {
	actions := slices.Clone(s.core.Step(s.coreClock(), e)) // the core reuses its slice in the next step
	s.followEvent(e)
	decided := s.core.Decided()
	// List the decisions before the actions are carried out: a binding removes the pod from
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
		case s.c.Nominated(p.UID()) != nil:
		default:
			s.withdrawPod(p)
		}
	}
}

// followEvent records an object shown to the core. Pods and workloads are recorded by their
// creators, because the core does not see all of them.
func (s *scheduler) followEvent(e cycle.Event) {
	kind, object, gone := cycle.Kind(""), metav1.Object(nil), false
	switch e := e.(type) {
	case cycle.Seen:
		kind, object = e.Kind, e.Object
	case cycle.Gone:
		kind, object, gone = e.Kind, e.Object, true
	}
	switch kind {
	case "", cycle.Pods, cycle.ReplicaSets, cycle.StatefulSets, cycle.ReplicationControllers, cycle.MoveLeases:
	default:
		s.follow(object, gone)
	}
}

// follow records the current state of an object, or its deletion, in the API.
func (s *scheduler) follow(object metav1.Object, gone bool) {
	s.api.Follow(object, gone)
	s.reactions.follow(object, gone)
}

// completePreemption completes an attempt that made room in a world that is not lasting: it removes
// victims that were already terminating. The core does not request their deletion, and their grace
// period would never end.
func (s *scheduler) completePreemption(d *decision.Decision) {
	n := s.c.Node(d.NominatedNode)
	if n == nil {
		return
	}
	for _, victim := range slices.Clone(n.Pods) {
		if victim.Terminating && (d.Group != nil ||
			slices.Contains(d.Victims, decision.Name{Namespace: victim.Namespace(), Name: victim.Name()})) {
			s.reactions.controllers.pods.removePod(victim)
		}
	}
}

// coreClock returns the core's time: the world's, except before the first attempts; see behind.
func (s *scheduler) coreClock() time.Time { return s.clock.time().Add(-s.behind) }

// isAwake reports whether the core has a pod to try now.
func (s *scheduler) isAwake() bool { return !s.core.Wake(s.coreClock()).After(s.coreClock()) }

// trySettled tries pods until no work remains at this time. Of the pods affected by an event, it
// tries requeued pods before pods created by controllers: in a cluster, a controller needs some
// time to react.
func (s *scheduler) trySettled() {
	s.tryUntil(func() bool { return false })
}

// tryUntil is like trySettled, but also ends when over returns true. It calls over before each
// attempt.
func (s *scheduler) tryUntil(over func() bool) {
	for !s.allowed.mustStop() && !over() {
		// Deletions may have freed quota, and a pod created as a result may be the next to try.
		if s.reactions.controllers.pods.createAllowed(); s.isAwake() {
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

// addPending adds a pod without a node. The next showCreated shows it to the core, so pods created
// together are tried in queue order, regardless of their order of creation.
func (s *scheduler) addPending(p *pod, object *v1.Pod) {
	p.Pod, p.fresh = s.c.Pending(object), object
	s.created = append(s.created, p)
}

// progressEvery is the number of decisions between two calls of Options.Progress. 1,024 decisions
// take some milliseconds, so a progress bar moves smoothly at negligible cost.
const progressEvery = 1024

// recordDecision lists a decision about a pod, and returns the entry for the caller to complete. A
// pod that stays pending is listed only the first time, unless it preempts; otherwise the result is
// nil. together means that the pod waits with its group, and that the group gets the event.
func (s *scheduler) recordDecision(p *pod, d *decision.Decision, together bool) (listed *Pod) {
	if s.decided++; s.progress != nil && s.decided%progressEvery == 0 {
		s.progress(s.decided)
	}
	if !p.tried {
		p.tried = true
		s.tried++
	}
	// First list the pods that precede this one in the queue but are never tried.
	s.listUntried(p.turn - 1)
	said := Pod{Nodes: s.verdicts[p.UID()]}
	delete(s.verdicts, p.UID())
	if d.Group != nil {
		said.Group = d.Group.Name
	}
	awaited := ""
	if d.Result == decision.Placed {
		if awaited = plugins.AwaitedOf(s.c, p.Pod, s.controllers.Stalled); awaited == "" {
			said.Node = d.Node
			return s.report.addDecision(p, said, false)
		}
	}
	if said.Nodes == nil { // the failure of a similar pod was reused, so this pod has no verdicts yet
		said.Nodes = s.explainPod(p.Spec().SchedulerName, p.Pod)
	}
	said.Message, said.NominatedNode = cmp.Or(awaited, d.Message), d.NominatedNode
	p.refusal, p.reasons = said.Message, d.Reasons
	said.Victims = answer.Mapped(d.Victims, func(victim decision.Name) Name { return Name{victim.Namespace, victim.Name} })
	if len(said.Victims) > 0 || !p.listed {
		listed = s.report.addDecision(p, said, together)
	}
	p.listed = true
	return listed
}

// podBound records that a pending pod has got a node. The core has already seen the bound pod.
func (s *scheduler) podBound(p *pod) {
	delete(s.pending, p.UID())
	if p.tried {
		s.tried--
	}
	// If the pod is pending again after an eviction, it is listed again.
	p.listed = false
	p.Pod = s.c.Pod(p.UID())
	s.reactions.controllers.podLanded(p)
}

// withdrawPod removes a pod without a node from scheduling: it was deleted, or will not be tried
// again. Its entries in the result stay.
func (s *scheduler) withdrawPod(p *pod) {
	p.gone = true
	if s.pending[p.UID()] == p {
		delete(s.pending, p.UID())
		if p.tried {
			s.tried--
		}
		s.showGone(cycle.Pods, stubPod(p.Pod))
	}
	withdrawn := func(o *pod) bool { return o == p }
	s.created, s.late = slices.DeleteFunc(s.created, withdrawn), slices.DeleteFunc(s.late, withdrawn)
}
