// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/claimcontrollers"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// pods holds the world's pods as stored in the API server. It admits new pods, and updates budgets,
// quotas, claims, and evictions by taints. These are the methods in the order of a pod's life:
//
//	enterPod      the pod is added, pending or on its node; also by createPod and addReplacement
//	podLanded     the scheduler has bound the pod
//	terminatePod  the pod is being deleted, and still occupies its room
//	removePod     the pod is removed, with everything it held
type pods struct {
	clock     *clock
	report    *report
	scheduler *scheduler
	budgets   *budgets
	bounds    *bounds
	claims    *claims
	reactions *reactions
	admission admission.Config
	catalog   *admission.Catalog
	// lasting is set if time may pass: all pods and their objects are kept.
	lasting bool
	twin    bool // see Twin
	// named holds all pods by name, including ended ones, if the world is lasting.
	named map[Name]*pod
	// sorted caches the pods of named in order of their names. It is nil after a pod was added or
	// removed.
	sorted   []*pod
	ended    map[*pod]bool      // the ended pods, if the world is lasting
	placed   map[types.UID]*pod // the pods on nodes, if the world is lasting
	entered  int                // number of added pods
	homed    int                // number of pods added with a node
	refusals []string           // reasons pods could not be created, since the latest apply
	denied   []*pod             // pods of controllers, refused by quotas or limit ranges
}

// pod is a pod that is pending or may leave its node. A lasting world keeps pods until they are
// removed; otherwise a pod in its final state is dropped to save memory.
//
// The embedded Pod is the core's representation of the pod. It is nil for a pod that has ended or
// has no scheduler, and is replaced whenever the core sees an update of the pod.
type pod struct {
	*cluster.Pod
	// number is the pod's position in order of addition.
	number int
	// object is the pod's API object; nil if no longer needed.
	object *v1.Pod
	since  time.Time // arrival on the node
	// gone is set once the pod has been deleted, for holders of stale references.
	gone bool

	// Each of these records belongs to one component.
	admitted
	attempts
	readiness
	succession
}

// admitted is the state of a pod in its namespace's quotas.
type admitted struct {
	// refused is the reason the API server refuses to create the pod, or empty.
	refused string
	charged bool // the pod is charged to the quotas
}

// compareQueued orders pods as the scheduler tries them: by priority, then by age, then by order of
// addition. kube-scheduler compares the time of queueing instead of the age. Here, all pods present
// when a world begins are queued simultaneously. It never returns 0 for two different pods.
func compareQueued(a, b *pod) int {
	return cmp.Or(cmp.Compare(b.Class.Priority, a.Class.Priority), a.Created.Compare(b.Created), cmp.Compare(a.number, b.number))
}

// enterPod adds a pod with the contents stored by the API server. If the API server refuses the
// pod, refusal is the reason, and object has the contents that would have been stored. The world
// takes ownership of the object.
func (s *pods) enterPod(object *v1.Pod, refusal string) *pod {
	s.entered++
	p := &pod{number: s.entered, admitted: admitted{refused: refusal, charged: refusal == ""}}
	if s.lasting || s.reactions.evictions.affects(object, object.Spec.NodeName) {
		// If the world is not lasting, the object is released as soon as the core no longer needs
		// it: pods take most of the memory of a large simulation.
		p.object = object
	}
	if s.lasting {
		defer func() { s.registerPod(p) }()
	}
	if object.Spec.NodeName == "" {
		if rules.IsTerminal(object) || object.DeletionTimestamp != nil {
			return p // such a pod is never scheduled
		}
		if s.lasting && refusal != "" && metav1.GetControllerOfNoCopy(object) != nil {
			// The controller retries when the quota has room; a pod created by a user stays
			// refused.
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
		// Tolerations count from the binding. A terminating pod ends at the time set by its
		// deletion.
		s.podSettled(p, eviction.PodOf(object).Bound)
		if s.lasting && p.Terminating {
			s.clock.callAt(object.DeletionTimestamp.Sub(s.clock.start), func() { s.reactions.controllers.finishTermination(p) })
		}
	}
	return p
}

// podLanded records a pod's node. In a lasting world, the pod is assumed to be running and ready
// immediately, because image pulls and probes take an unknown time.
func (s *pods) podLanded(p *pod) {
	s.podSettled(p, s.clock.time())
	if s.lasting {
		s.startRunning(p)
		s.budgets.podJoined(p.Pod)
	}
}

// startRunning marks the containers of a newly placed pod as started: from then on budgets protect
// the pod. It copies the object, because there may be references to the old one.
func (s *pods) startRunning(p *pod) {
	object := *p.object
	object.Status.Phase = v1.PodRunning
	s.scheduler.keepObject(p, &object)
}

// podSettled records the arrival of a pod on its node, and drops state no longer needed.
func (s *pods) podSettled(p *pod, since time.Time) {
	p.since = since
	s.reactions.evictions.showPod(p)
	if !s.lasting {
		p.object = nil
		return
	}
	s.placed[p.UID()] = p
	s.reactions.kubelets.podJoined(p)
}

// removePod removes a pod from the world and releases its room, its share of budgets and quotas,
// and its claims and devices.
func (s *pods) removePod(p *cluster.Pod) {
	// The deletion may change the core's representation of the pod, so read it first.
	known, terminating, node := s.placed[p.UID()], p.Terminating, p.NodeName
	s.scheduler.showGone(cycle.Pods, stubPod(p))
	s.reactions.evictions.step(eviction.PodGone{UID: p.UID()})
	switch {
	case known != nil && known.unready:
		s.budgets.unready[p.Class]--
	case !terminating: // a terminating pod has already been subtracted
		s.budgets.podLeft(p)
	}
	s.scheduler.controllers.Gone(p)
	if known != nil {
		known.gone = true
		s.forgetPod(known)
		delete(s.placed, p.UID())
	}
	s.reactions.kubelets.podLeft(node)
	s.budgets.podGone(p.Class.Namespace, p.Class.Labels, p.Class.Controller.Reference())
}

// registerPod adds a pod to the list of all pods, replacing any pod of the same name.
func (s *pods) registerPod(p *pod) {
	if p.object != nil {
		s.named[Name{p.object.Namespace, p.object.Name}] = p
		s.sorted = nil
		if rules.IsTerminal(p.object) {
			s.ended[p] = true
		}
		s.scheduler.keepObject(p, p.object)
	}
}

// forgetPod removes a pod from the list of all pods, from quotas and from reservations of claims.
// If the list has a newer pod of the same name, as in StatefulSets, that pod stays.
func (s *pods) forgetPod(p *pod) {
	if p.charged {
		s.bounds.releasePod(p.object)
		p.charged = false
	}
	s.claims.Release(p.object)
	delete(s.ended, p)
	if name := (Name{p.object.Namespace, p.object.Name}); s.named[name] == p {
		delete(s.named, name)
		s.sorted = nil
		s.scheduler.follow(p.object, true)
	}
}

// byName lists all pods by namespace and name. The list is cached until a pod is added or removed;
// callers must not modify it.
func (s *pods) byName() []*pod {
	if s.sorted == nil {
		s.sorted = slices.SortedFunc(maps.Values(s.named), compareNames)
	}
	return s.sorted
}

func nameOf(p *pod) Name { return Name{p.object.Namespace, p.object.Name} }

// compareNames orders pods by namespace, then by name.
func compareNames(a, b *pod) int { return nameOf(a).Compare(nameOf(b)) }

// createPod creates a pod through admission: a replacement if replaces is set, otherwise an
// additional pod, which budgets expect from then on. If admission refuses the pod, createPod
// reports the refusal and returns nil. A pod refused by a quota is added with the refusal.
func (s *pods) createPod(p *v1.Pod, replaces bool) *pod {
	p.CreationTimestamp = metav1.NewTime(s.clock.time())
	admitted, err := s.admitPod(p)
	if err != nil {
		s.report.addEvent(Event{Kind: "PodRefused", Namespace: p.Namespace, Name: p.Name, Message: err.Error()})
		s.refusals = append(s.refusals, admission.StatusError(p, err).Error())
		return nil
	}

	// The manifest's UID may belong to an earlier pod of the same name that is still in the core.
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

// createAllowed creates the pods that quotas refused earlier and now admit, because their
// controllers retry until they succeed. It forgets pods deleted or replaced meanwhile.
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
		if p.charged, p.listed = true, false; p.fresh == nil { // otherwise the scheduler has not seen the pod yet
			s.scheduler.addPending(p, p.object)
		}
		return true
	})
}

// addReplacement adds the successor of a departed pod and takes ownership of the object. A copy of
// an admitted pod skips admission, but not quotas and limit ranges: they may have become stricter,
// and a terminating victim still counts against its quota. Defaults of newer limit ranges are
// filled in first.
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

// terminatePod marks the pod as being deleted. The pod keeps its room until removePod, but budgets
// no longer count it, and taints no longer evict it. A victim of preemption gets the condition
// DisruptionTarget, which kube-scheduler would set. The core then makes the preemptor wait for the
// victim's end.
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
	p.Pod = s.scheduler.c.Pod(p.UID())
	s.reactions.evictions.step(eviction.PodGone{UID: p.UID()})
	if p.unready {
		s.budgets.unready[p.Class]--
		p.unready = false
		return
	}
	s.budgets.podLeft(p.Pod)
}

// updatePod replaces the spec and the labels of a pod without a node, and reports whether they
// changed. It leaves pods with a node unchanged.
func (s *pods) updatePod(p *pod, applied *v1.Pod) bool {
	if p.Pod == nil || p.NodeName != "" || equality.Semantic.DeepEqual(applied.Spec, p.object.Spec) &&
		equality.Semantic.DeepEqual(applied.Labels, p.object.Labels) {
		return false
	}
	object := *p.object
	object.Spec, object.Labels = applied.Spec, applied.Labels
	s.scheduler.keepObject(p, &object)
	p.Pod = s.scheduler.c.Pending(&object)
	if s.scheduler.pending[p.UID()] == p {
		s.scheduler.showObject(cycle.Pods, &object)
	} else if p.fresh != nil {
		p.fresh = &object // the core has not seen the pod yet
	}
	return true
}

// nameFor generates a name for a pod of the owner, in the API server's form but the same in every
// run.
func (s *pods) nameFor(p *v1.Pod, owner *metav1.OwnerReference) string {
	return s.generateName(p.Namespace, claimcontrollers.BaseOf(p, owner))
}

// generateName generates an unused name with prefix base, the same in every run.
func (s *pods) generateName(namespace, base string) string {
	return claimcontrollers.Name(namespace, base, s.entered+1, func(name string) bool { return s.named[Name{namespace, name}] != nil })
}
