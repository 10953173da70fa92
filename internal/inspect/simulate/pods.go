package simulate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/disruption"
	"github.com/berth-k8s/berth/internal/world/standin"
)

// pods are the world's pods as the API server has them. It admits new ones, and keeps in step
// what depends on a pod: its budgets, its quotas, its claims, and when taints evict it. In
// the life of a pod the methods follow each other as
//
//	enterPod      from a manifest, createPod or addReplacement: pending, or on its node
//	podLanded     the scheduler has bound it
//	terminatePod  it is being deleted, and still takes its room
//	removePod     it has gone, with what it held
type pods struct {
	clock     *clock
	report    *report
	scheduler *scheduler
	budgets   *budgets
	bounds    *bounds
	claims    *claims
	evictions *evictions
	admission admission.Config
	catalog   *admission.Catalog
	// lasting is set if time may pass: all pods and their objects are kept.
	lasting bool
	// named are all pods by name, if the world is lasting, those that have ended included.
	named map[Name]*pod
	// sorted are the same by name, or nil if pods came or left since they were sorted.
	sorted []*pod
	// placed has pods on nodes: all of them if the world is lasting, and otherwise those that a
	// taint evicts.
	placed   map[types.UID]*pod
	entered  int      // how many pods have been added
	homed    int      // how many of them had a node then
	refusals []string // why pods could not be created, since manifests were last applied
	denied   []*pod   // of controllers, and refused by quotas or limit ranges
	// ends is called when the grace period of a pod is over that was terminating when it was
	// added. It may be called for a pod that has gone by then.
	ends func(p *pod)
	// joined is called for a pod that is on a node now, left for the node of one that has
	// gone. Kubelets under pressure listen.
	joined func(p *pod)
	left   func(node string)
}

// pod is a pod that is pending, or may have to leave its node. Pods of a lasting world are
// kept until they are gone; otherwise a pod that cannot change any more is dropped, to save
// memory.
//
// The embedded Pod is the core's form of it: nil for one that has ended, or that no scheduler
// will place. It is replaced whenever the core is shown the pod anew.
type pod struct {
	*cluster.Pod
	// number is its position in the order in which pods were added.
	number int
	// object is the pod as the API server would have it; nil if it will not be needed.
	object *v1.Pod
	// fresh is the same object until the core has seen it; nil from then on.
	fresh *v1.Pod
	// refused is why the API server refuses to create it, or empty.
	refused string
	// charged is set while it counts in the quotas of its namespace.
	charged bool
	// due is when a NoExecute taint makes it leave, and since is when it came to its node,
	// from which tolerationSeconds count.
	due   eviction.Due
	since time.Time // when it came to its node
	// refusal is why it could not be placed, the last time it was tried.
	refusal string
	// unready means that it counts in budgets.unready, and not as healthy in its budgets.
	unready bool
	// starved means that its kubelet is evicting it, and its grace period is running.
	starved bool
	// turnedAway: its kubelet did not admit it; no container of it runs.
	turnedAway bool
	marked     bool // it is unready because node health has marked it, and was ready before
	// again is set if it is the replacement of a pod that a taint evicted.
	again bool
	// departure is set while the pod has been deleted but is stuck on a node that does not
	// respond. Its controller waits for its end before it makes the pod again.
	departure *Departure
	// leaves is set while it is terminating on its node: the departure that was reported
	// then.
	leaves *Departure
	// turn is its place in scheduler.turn, from 1; 0 if it is not there.
	turn  int
	tried bool // the scheduler has decided it
	// listed means that the answer has it as pending, and quiet that it is never listed: it
	// is only a trial of how many pods fit.
	listed bool
	quiet  bool // it is never listed
	// reasons counts the nodes by why they rejected it, the last time it was tried. gone is
	// set once it has been deleted, for those who still hold it.
	reasons map[string]int
	gone    bool
}

// sortQueued sorts pods in the order in which the scheduler takes them: by priority, then by
// age, then in the order in which they were added. kube-scheduler has the time of queueing
// where this has the age: pods that exist when a world begins were all queued at once.
func sortQueued(pods []*pod) {
	slices.SortFunc(pods, compareQueued)
}

// compareQueued orders the pod first that the scheduler takes first. It never returns 0 for
// two pods.
func compareQueued(a, b *pod) int {
	return cmp.Or(cmp.Compare(b.Class.Priority, a.Class.Priority), a.Created.Compare(b.Created), cmp.Compare(a.number, b.number))
}

// enterPod adds a pod as the API server has it, or would have it if it did not refuse it.
// refusal is why it does, or empty. The object belongs to the world from then on.
func (s *pods) enterPod(object *v1.Pod, refusal string) *pod {
	s.entered++
	p := &pod{number: s.entered, refused: refusal, charged: refusal == ""}
	if s.lasting || len(s.evictions.held) > 0 {
		// Otherwise the object is released as soon as the core has taken what it needs: pods
		// make up most of the memory of a large simulation.
		p.object = object
	}
	if s.lasting {
		defer func() { s.registerPod(p) }()
	}
	if object.Spec.NodeName == "" {
		if rules.IsTerminal(object) || object.DeletionTimestamp != nil {
			return p // no scheduler will place it
		}
		if s.lasting && refusal != "" && metav1.GetControllerOfNoCopy(object) != nil {
			// Its controller tries again when the quota has room; a pod that a user creates
			// stays refused.
			s.denied = append(s.denied, p)
		}
		s.scheduler.addPending(p, object)
		return p
	}
	s.scheduler.showObject(cycle.Pods, object)
	if p.Pod = s.scheduler.c.Pod(object.UID); p.Pod != nil {
		s.homed++
		if !disruption.IsReady(object) && !p.Terminating {
			s.budgets.unready[p.Class]++
			p.unready = true
		}
		// Tolerations count from the binding, and a terminating pod ends when its deletion
		// said it would.
		s.podSettled(p, eviction.PodOf(object).Bound)
		if s.lasting && p.Terminating {
			s.clock.callAt(object.DeletionTimestamp.Sub(s.clock.start), func() { s.ends(p) })
		}
	}
	return p
}

// podLanded records that a pod has got a node. Where time passes, it is taken to run and to
// be ready at once: how long images and probes take is not known.
func (s *pods) podLanded(p *pod) {
	s.podSettled(p, s.clock.time())
	if s.lasting {
		s.startRunning(p)
		s.budgets.podJoined(p.Pod)
	}
}

// startRunning has the pod's containers started, as soon as it has a node: from then on
// budgets hold it. The object is copied, because others may still have the old one.
func (s *pods) startRunning(p *pod) {
	object := *p.object
	object.Status.Phase = v1.PodRunning
	s.scheduler.keepObject(p, &object)
}

// podSettled records that a pod has been on its node since then, and drops what will not be needed
// of it.
func (s *pods) podSettled(p *pod, since time.Time) {
	p.since = since
	s.evictions.watchPod(p, since)
	if p.due.Stays() && !s.lasting {
		p.object = nil
		return
	}
	s.placed[p.UID] = p
	if s.lasting {
		s.joined(p)
	}
}

// removePod removes a pod from the world, with what it held: its room, its place in budgets
// and quotas, its claims and devices.
func (s *pods) removePod(p *cluster.Pod) {
	// The core's form of the pod may be changed by the deletion, so it is read before.
	known, terminating, node := s.placed[p.UID], p.Terminating, p.NodeName
	s.scheduler.showGone(cycle.Pods, stubPod(p))
	switch {
	case known != nil && known.unready:
		s.budgets.unready[p.Class]--
	case !terminating: // a terminating pod has been subtracted already
		s.budgets.podLeft(p)
	}
	s.scheduler.standin.Gone(p)
	if known != nil {
		known.gone = true
		s.forgetPod(known)
		delete(s.placed, p.UID)
	}
	s.left(node)
	s.budgets.podGone(p.Class.Namespace, p.Class.Labels, p.Class.Controller)
}

// registerPod adds a pod to the list of all pods, in place of another one of its name.
func (s *pods) registerPod(p *pod) {
	if p.object != nil {
		s.named[Name{p.object.Namespace, p.object.Name}] = p
		s.sorted = nil
		s.scheduler.keepObject(p, p.object)
	}
}

// forgetPod removes a pod from the list of all pods, and from what quotas count and claims
// are held for. A newer pod of the same name, as StatefulSets have them, stays listed.
func (s *pods) forgetPod(p *pod) {
	if p.charged {
		s.bounds.releasePod(p.object)
		p.charged = false
	}
	s.claims.Release(p.object)
	if name := (Name{p.object.Namespace, p.object.Name}); s.named[name] == p {
		delete(s.named, name)
		s.sorted = nil
		s.scheduler.api.Follow(p.object, true)
	}
}

// byName lists all pods by namespace and name. The list is kept until a pod comes or leaves;
// it must not be changed.
func (s *pods) byName() []*pod {
	if s.sorted == nil {
		s.sorted = slices.SortedFunc(maps.Values(s.named), func(a, b *pod) int {
			return nameOf(a).compare(nameOf(b))
		})
	}
	return s.sorted
}

func nameOf(p *pod) Name { return Name{p.object.Namespace, p.object.Name} }

// createPod creates a pod through admission, in place of another that has left (replaces) or
// beside all others. A pod that admission refuses is reported, and nil is returned; one that
// a quota refuses is added as refused. Without replaces, budgets expect one pod more from now
// on.
func (s *pods) createPod(p *v1.Pod, replaces bool) *pod {
	p.CreationTimestamp = metav1.NewTime(s.clock.time())
	admitted, err := s.admitPod(p)
	if err != nil {
		s.report.addEvent(Event{Kind: "PodRefused", Namespace: p.Namespace, Name: p.Name, Message: err.Error()})
		s.refusals = append(s.refusals, err.Error())
		return nil
	}

	// The UID of a manifest may be taken by an earlier pod of its name, which the core still
	// knows.
	if admitted.UID == "" || s.scheduler.c.Pod(admitted.UID) != nil || s.named[Name{p.Namespace, p.Name}] != nil {
		admitted.UID = types.UID(fmt.Sprintf("%s/%s-%d", p.Namespace, p.Name, s.entered+1))
	}
	// A pod is unschedulable until its claims exist.
	s.claims.MakeFor(admitted)
	s.report.touched = true
	made := s.enterPod(admitted, s.bounds.chargePod(admitted, true))
	if replaces {
		s.budgets.expectPods(made, 0)
	} else {
		s.budgets.expectPods(made, 1)
	}

	if made.Pod != nil && made.NodeName != "" && !made.Terminating {
		s.startRunning(made)
		s.budgets.podJoined(made.Pod)
	}
	return made
}

// createAllowed creates the pods that quotas refused and now have room for: their controllers
// try until they succeed. Those that have been deleted or replaced meanwhile are forgotten.
func (s *pods) createAllowed() {
	if len(s.bounds.freed) == 0 {
		return
	}
	freed := s.bounds.freed
	s.bounds.freed = map[string]bool{}
	s.denied = slices.DeleteFunc(s.denied, func(p *pod) bool {
		if s.named[Name{p.object.Namespace, p.object.Name}] != p {
			return true
		}
		if freed[p.object.Namespace] {
			p.refused = s.bounds.chargePod(p.object, true)
		}
		if p.refused != "" {
			return false
		}
		if p.charged, p.listed = true, false; p.fresh == nil { // else the scheduler has not been shown it yet
			s.scheduler.addPending(p, p.object)
		}
		return true
	})
}

// addReplacement adds a pod in place of one that has left. The object is a copy of an admitted
// one, so admission is not asked again, and the object is the world's from then on. Quotas and
// limit ranges are: they may have become tighter since, and a victim that is still terminating
// counts for its quota. Limits that a range of later gives by default are not missing.
func (s *pods) addReplacement(object *v1.Pod) *pod {
	if len(s.bounds.ranges[object.Namespace]) > 0 {
		s.bounds.fillDefaults(object)
		object.Status.QOSClass = rules.ComputeQOS(object)
	}
	s.claims.MakeFor(object)
	made := s.enterPod(object, s.bounds.chargePod(object, true))
	s.budgets.expectPods(made, 0)
	return made
}

// terminatePod marks the pod as being deleted. It keeps its room until removePod, but budgets
// no longer count it, and taints no longer evict it. A victim gets the condition
// DisruptionTarget, as from kube-scheduler; the core then has the preemptor wait for it.
func (s *pods) terminatePod(p *pod, cause Cause, grace time.Duration) {
	leaving := *p.object
	leaving.Spec.NodeName = p.NodeName
	leaving.DeletionTimestamp, leaving.DeletionGracePeriodSeconds = &metav1.Time{Time: s.clock.time().Add(grace)},
		ptr.To(int64(grace/time.Second))
	if cause == ByPreemption {
		leaving.Status.Conditions = append(slices.Clip(leaving.Status.Conditions), v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler,
		})
	}

	s.scheduler.keepObject(p, &leaving)
	s.scheduler.showObject(cycle.Pods, &leaving)
	p.Pod = s.scheduler.c.Pod(p.UID)
	p.due = eviction.Due{}
	if p.unready {
		s.budgets.unready[p.Class]--
		p.unready = false
		return
	}
	s.budgets.podLeft(p.Pod)
}

// openGates removes scheduling gates from a pod that is applied without them, and reports
// whether it did. The API allows no other change of gates: they are set when a pod is
// created, and only removed.
func (s *pods) openGates(p *pod, applied *v1.Pod) bool {
	if p.NodeName != "" || len(applied.Spec.SchedulingGates) >= len(p.object.Spec.SchedulingGates) {
		return false
	}
	object := *p.object
	object.Spec.SchedulingGates = applied.Spec.SchedulingGates
	s.scheduler.keepObject(p, &object)
	s.scheduler.renewPending(p, &object)
	return true
}

// nameFor generates a name as the API server would, the same in every run.
func (s *pods) nameFor(p *v1.Pod, owner *metav1.OwnerReference) string {
	return s.generateName(p.Namespace, standin.BaseOf(p, owner))
}

// generateName generates a free name that begins with base, the same in every run.
func (s *pods) generateName(namespace, base string) string {
	return standin.Name(namespace, base, s.entered+1, func(name string) bool { return s.named[Name{namespace, name}] != nil })
}
