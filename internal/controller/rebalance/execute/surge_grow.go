package execute

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// grow waits until the successor is ready and the pod may be removed.
//
// The checks are in the order of what would make waiting pointless: the victim has gone, the
// workload has changed, the successor will never be ready. Only then is it waited for.
func (ss *surges) grow(s *surge) {
	victim, object := ss.victim(s.departure), ss.cluster.scaled(s.scaled)
	if victim == nil || victim.DeletionTimestamp != nil {
		ss.giveUp(s, "it left by itself")
		return
	}

	why, soon := ss.changed(s, object)
	switch {
	// The answer to the request has come before the event that shows it.
	case soon && ss.now.Sub(s.since) < pendingFor:
		ss.wake(s.since.Add(pendingFor))
		return
	case why != "":
		ss.giveUp(s, why)
		return
	}

	next := ss.successorOf(s.departure)
	if next != nil && next.Spec.NodeName != "" && !s.placed {
		s.placed = true
		ss.policy.tell(s.departure, Arrived, next.Spec.NodeName, next.Name)
	}
	if why := ss.hopeless(s, next); why != "" {
		ss.giveUp(s, why)
		return
	}
	if why := ss.removable(victim, next); why != "" {
		ss.explain(s, victim, next)
		if ss.now.Sub(s.since) >= unreadyFor {
			s.final = true
			ss.giveUp(s, why)
			return
		}
		ss.wake(s.since.Add(unreadyFor))
		return
	}
	// Only if all pods are ready does the controller go by deletion cost.
	if ss.cluster.whole(s.owner) {
		s.marked = true
		s.enter(marking, ss.now)
		return
	}
	s.enter(leaving, ss.now)
}

// changed returns what somebody else has changed of a workload that was scaled up, or "". soon is
// set if that may only not have been seen yet, or not have been handed on by what scales it. A
// scale that others have set is never overwritten: the surge is given up, and only its label is
// removed.
func (ss *surges) changed(s *surge, object metav1.Object) (why string, soon bool) {
	if object == nil || object.GetLabels()[rebalance.SurgeLabel] != s.note.String() {
		return "somebody else has changed the scale", true
	}
	wanted := replicasOf(object)
	switch {
	case !equality.Semantic.DeepEqual(templateOf(object), s.template) || ss.cluster.split(object):
		return fmt.Sprintf("a rollout of %s has begun", s.scaled), false
	case wanted != s.note.replicas+1:
		return fmt.Sprintf("%s was scaled to %d meanwhile", s.scaled, wanted), s.scaled.Through != nil && wanted == s.note.replicas
	}
	return "", false
}

// hopeless returns why the successor is not going to be ready, or "". Limits differ by cause: half
// a minute for a pod that is refused, or whose container does not start, and a minute for one that
// finds no node.
func (ss *surges) hopeless(s *surge, next *v1.Pod) string {
	if next == nil {
		if why := ss.cluster.notMade(s.Namespace, s.Owner); why != "" && ss.now.Sub(s.since) >= failsFor {
			return "no pod more was made: " + why
		}
		if ss.now.Sub(s.since) >= pendingFor {
			return "no pod more was made"
		}
		until := s.since.Add(failsFor)
		if !ss.now.Before(until) {
			until = s.since.Add(pendingFor)
		}
		ss.wake(until)
		return ""
	}

	if next.Spec.NodeName == "" {
		if ss.now.Sub(s.since) >= pendingFor {
			return homeless(next)
		}
		ss.wake(s.since.Add(pendingFor))
		return ""
	}

	why := failing(next)
	switch {
	// It has recovered, so the next failure is a first one again.
	case why == "":
		s.bad = time.Time{}
	case s.bad.IsZero():
		s.bad = ss.now
		ss.wake(ss.now.Add(failsFor))
	case ss.now.Sub(s.bad) >= failsFor:
		s.final = true
		return fmt.Sprintf("its successor %s does not start: %s", next.Name, why)
	default:
		ss.wake(s.bad.Add(failsFor))
	}

	return ""
}

// failing returns why a container does not start, or "". ContainerCreating and PodInitializing are
// the normal way. Everything else that a container waits with, such as ImagePullBackOff, is a
// failure.
func failing(p *v1.Pod) string {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		w := c.State.Waiting
		if w == nil || w.Reason == "ContainerCreating" || w.Reason == "PodInitializing" || w.Reason == "" {
			continue
		}
		return strings.TrimSuffix(w.Reason+": "+w.Message, ": ")
	}
	return ""
}

// removable returns why the pod must not be removed yet, or "". A budget is looked at although
// nothing is evicted: it may cover other workloads, and have no healthy pod to spare once the scale
// is put back.
func (ss *surges) removable(victim, next *v1.Pod) string {
	if next == nil || !ready(next) {
		return "its successor is not ready"
	}
	return ss.cluster.forbids(victim)
}

// awaitRemoval waits until the controller removes the pod.
func (ss *surges) awaitRemoval(s *surge) {
	switch victim := ss.victim(s.departure); {
	case victim == nil || victim.DeletionTimestamp != nil:
		s.ended, s.marked = true, false
		ss.leave(s.departure)
		s.enter(restored, ss.now)
	case ss.raisedAgain(s) != "":
		s.why = ss.raisedAgain(s)
		s.enter(clearing, ss.now)
	// Another pod has gone, so this one has to stay.
	case ss.now.Sub(s.since) >= removesFor:
		s.why = "the controller has removed another pod in its place"
		s.enter(clearing, ss.now)
	default:
		ss.wake(s.since.Add(removesFor))
	}
}

// awaitYield waits until the controller has removed another pod than the one that was to leave. The
// mark has to stay until then, and must not stay longer: it would keep the pod from being removed
// when the workload is scaled down.
func (ss *surges) awaitYield(s *surge) {
	if ss.cluster.live(s.owner) <= int(s.note.replicas) || ss.now.Sub(s.since) >= removesFor {
		s.enter(clearing, ss.now)
		return
	}
	ss.wake(s.since.Add(removesFor))
}

// raisedAgain returns what somebody else has made of the scale while the pod was marked, so that no
// pod is too many, or "". What scales a ReplicaSet hands its scale on later: that is not looked at.
func (ss *surges) raisedAgain(s *surge) string {
	object := ss.cluster.scaled(s.scaled)
	if object == nil || s.scaled.Through != nil || object.GetLabels()[rebalance.SurgeLabel] != "" || replicasOf(object) <= s.note.replicas {
		return ""
	}
	return fmt.Sprintf("%s was scaled to %d meanwhile", s.scaled, replicasOf(object))
}
