// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/world/claimcontrollers"
)

var (
	restartRuns = flag.Int("restarts", 20, "runs of TestARestartFindsNothingToDo")
	restartSeed = flag.Uint64("restart-seed", 1, "seed of its first run")
)

// TestARestartFindsNothingToDo verifies that no event is missed. After every change, once the
// maximum back-off is over, a new core is started on the same objects. It must not place a pod that
// waits for an event in the old core, nor preempt for it. The pods' needs are random: room, ports,
// labels, taints, other pods, volumes and volume limits, devices of all kinds, groups with
// priorities, and pods that never preempt. Helpful events occur as nodes, running pods and objects
// are created, changed and deleted. Pods are never woken by the maximum wait.
func TestARestartFindsNothingToDo(t *testing.T) {
	decided, waiting := 0, 0
	for seed := *restartSeed; seed < *restartSeed+uint64(*restartRuns); seed++ {
		s := newServed(seed)
		for range 60 {
			s.last = s.something()
			s.settle(25 * time.Second) // longer than any back-off
			if s.judge(); s.broken != "" {
				t.Errorf("seed %d, features %v, after %q: %s", seed, sorted(s.features), s.last, s.broken)
				break
			}
		}
		decided += s.binds
		waiting += s.waited
	}
	t.Logf("%d bindings, %d looks at pods that wait", decided, waiting)
	if *restartRuns >= 50 && (decided < 500 || waiting < 500) {
		t.Errorf("the runs try too little: %d bindings, %d looks at pods that wait", decided, waiting)
	}
}

// served is an API server with controllers that respond immediately, and a core using it.
type served struct {
	rng         *rand.Rand
	now         time.Time
	core        *Core
	seed        uint64
	gates       groups.Gates
	controllers claimcontrollers.Controllers
	objects     map[Kind]map[cluster.Name]metav1.Object
	// features holds the properties of pods and nodes in this run. Each run has few of them, so
	// that one reason to wait does not hide another.
	features map[string]bool

	made, binds, waited int
	last, broken        string
}

// servedKinds lists the existing kinds of objects, in listing order.
var servedKinds = []Kind{
	Namespaces, Nodes, DisruptionBudgets, StorageClasses, CSINodes, Volumes, Claims, DeviceClasses, ResourceSlices, ResourceClaims, PodGroups, Pods,
}

func newServed(seed uint64) *served {
	s := &served{rng: rand.New(rand.NewPCG(seed, 13)), now: begin, seed: seed, objects: map[Kind]map[cluster.Name]metav1.Object{}, features: map[string]bool{}}
	for _, kind := range servedKinds {
		s.objects[kind] = map[cluster.Name]metav1.Object{}
	}
	s.features[servedFeatures[seed%uint64(len(servedFeatures))]] = true
	for range s.rng.IntN(4) {
		s.features[servedFeatures[s.rng.IntN(len(servedFeatures))]] = true
	}
	if s.features["groups"] {
		s.gates = groups.Gates{Generic: true, Topology: s.chance(2)}
	}
	s.core = s.freshCore()
	s.controllers = claimcontrollers.Controllers{
		Cluster: s.core.View().Cluster, Feed: s.feed, Now: func() metav1.Time { return metav1.NewTime(s.now) },
		Named: func(uid types.UID, status *v1.PodExtendedResourceClaimStatus) {
			s.changePod(s.podOf(uid), func(p *v1.Pod) { p.Status.ExtendedResourceClaimStatus = status })
		},
	}
	s.begin()
	return s
}

// freshCore returns a new core started on all current objects.
func (s *served) freshCore() *Core {
	profile := Profile{Profile: plugins.Default()}
	profile.KeepBudgets, profile.GentlePreemption = s.seed%3 == 0, s.seed%5 == 0
	core, err := New(Options{Profiles: []Profile{profile}, Seed: s.seed, Groups: s.gates, MaxWait: 1000 * time.Hour})
	if err != nil {
		panic(err)
	}
	kinds := slices.DeleteFunc(slices.Clone(servedKinds), func(kind Kind) bool { return kind == PodGroups && !s.gates.Generic })
	show(core, s.now, kinds, s.all)
	return core
}

// show makes a core the leader and shows it all current objects.
func show(core *Core, now time.Time, kinds []Kind, all func(Kind) []metav1.Object) {
	core.Step(now, Follows{Kinds: kinds})
	core.Step(now, Led{})
	for _, kind := range kinds {
		core.Step(now, Listing{kind})
		for _, object := range all(kind) {
			core.Step(now, Seen{kind, object})
		}
		core.Step(now, Listed{kind})
	}
}

// all lists the objects of a kind by name.
func (s *served) all(kind Kind) (list []metav1.Object) {
	return slices.SortedFunc(maps.Values(s.objects[kind]), func(a, b metav1.Object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
}

func (s *served) pods() (list []*v1.Pod) {
	for _, object := range s.all(Pods) {
		list = append(list, object.(*v1.Pod))
	}
	return list
}

func (s *served) podOf(uid types.UID) *v1.Pod {
	for _, object := range s.objects[Pods] {
		if object.GetUID() == uid {
			return object.(*v1.Pod)
		}
	}
	return nil
}

// put creates or replaces an object. Callers pass a new object rather than modify one already shown
// to the core.
func (s *served) put(kind Kind, object metav1.Object) { s.feed(Seen{kind, object}) }

// take deletes an object, if one of this name exists.
func (s *served) take(kind Kind, namespace, name string) bool {
	object := s.objects[kind][cluster.Name{Namespace: namespace, Name: name}]
	if object != nil {
		s.feed(Gone{kind, object})
	}
	return object != nil
}

// change updates the state of an existing object.
func change[T interface {
	metav1.Object
	runtime.Object
}](s *served, kind Kind, object T, how func(T)) {
	next := object.DeepCopyObject().(T)
	how(next)
	s.put(kind, next)
}

func (s *served) changePod(p *v1.Pod, how func(*v1.Pod)) {
	if p != nil {
		change(s, Pods, p, how)
	}
}

// removePod ends a pod and releases its reservations.
func (s *served) removePod(p *v1.Pod) {
	known := s.core.View().Cluster.Pod(p.UID)
	s.feed(Gone{Pods, p})
	if known != nil {
		s.controllers.Gone(known)
	}
}

// feed applies an event, and carries out the resulting actions of the core.
func (s *served) feed(e Event) {
	switch e := e.(type) {
	case Seen:
		s.objects[e.Kind][cluster.Name{Namespace: e.Object.GetNamespace(), Name: e.Object.GetName()}] = e.Object
	case Gone:
		delete(s.objects[e.Kind], cluster.Name{Namespace: e.Object.GetNamespace(), Name: e.Object.GetName()})
	}
	for _, action := range slices.Clone(s.core.Step(s.now, e)) {
		s.carryOut(action)
	}
}

func (s *served) carryOut(action Action) {
	if s.controllers.CarryOut(action) {
		return
	}
	switch a := action.(type) {
	case Bind:
		p, o := s.podOf(a.Attempt.Pod.UID), Outcome{}
		if p == nil {
			o.Fault = &Fault{Message: "the pod was deleted"}
		}
		s.feed(Answered{a.Ticket, o})
		s.binds++
		s.changePod(p, func(p *v1.Pod) { p.Spec.NodeName, p.Status.NominatedNodeName = a.Attempt.Node, "" })
	case Remove:
		s.feed(Answered{a.Ticket, Outcome{}})
		s.changePod(s.podOf(a.Victim.UID), func(p *v1.Pod) {
			p.DeletionTimestamp = &metav1.Time{Time: s.now}
			p.Status.Conditions = []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler}}
		})
	case WriteStatus:
		if p := s.podOf(a.Pod.UID); a.Nominate != nil && p != nil && p.Spec.NodeName == "" && p.Status.NominatedNodeName != *a.Nominate {
			s.changePod(p, func(p *v1.Pod) { p.Status.NominatedNodeName = *a.Nominate })
		}
		if a.Ticket != 0 {
			s.feed(Answered{a.Ticket, Outcome{}})
		}
	case WriteGroup:
		if g, ok := s.objects[PodGroups][cluster.Name{Namespace: a.Group.Namespace, Name: a.Group.Name}].(*groups.PodGroup); ok && g.UID == a.Group.UID {
			change(s, PodGroups, g, func(g *groups.PodGroup) { meta.SetStatusCondition(&g.Status.Conditions, a.Condition) })
		}
	case Panicked:
		s.breaks("panic: %s\n%s", a.Value, a.Stack)
	}
}

func (s *served) breaks(format string, args ...any) {
	s.broken = cmp.Or(s.broken, fmt.Sprintf(format, args...))
}

// settle advances the time by the given duration, while the controllers and kubelets do their work.
func (s *served) settle(most time.Duration) {
	for end, steps := s.now.Add(most), 0; s.broken == ""; steps++ {
		if steps > 5000 {
			s.breaks("the core never comes to rest")
		}
		if s.reconcile() {
			continue
		}
		wake := s.core.Wake(s.now)
		if wake.After(end) {
			s.now = end
			return
		}
		if wake.After(s.now) {
			s.now = wake
		}
		s.feed(Tick{})
	}
}

// reconcile ends pods that are terminating or on a deleted node, and updates the counts of budgets.
// It reports whether there was work to do.
func (s *served) reconcile() (busy bool) {
	for _, p := range s.pods() {
		if p.DeletionTimestamp != nil || p.Spec.NodeName != "" && s.objects[Nodes][cluster.Name{Name: p.Spec.NodeName}] == nil {
			s.removePod(p)
			busy = true
		}
	}
	for _, object := range s.all(DisruptionBudgets) {
		budget := object.(*policyv1.PodDisruptionBudget)
		allowed := -budget.Spec.MinAvailable.IntVal
		for _, p := range s.pods() {
			if p.Spec.NodeName != "" && p.Namespace == budget.Namespace && p.Labels["app"] == budget.Spec.Selector.MatchLabels["app"] {
				allowed++
			}
		}
		if allowed = max(0, allowed); allowed != budget.Status.DisruptionsAllowed {
			change(s, DisruptionBudgets, budget, func(b *policyv1.PodDisruptionBudget) { b.Status.DisruptionsAllowed = allowed })
			busy = true
		}
	}
	return busy
}

// judge starts another core on the current objects, and checks its first action.
func (s *served) judge() {
	view := s.core.View()
	if err := view.Queue.Check(); err != nil {
		s.breaks("%v", err)
		return
	}
	s.waited += view.Queue.Len(queue.Waiting)
	if view.Queue.Len(queue.Waiting)+view.Queue.Len(queue.Gated) == 0 {
		return
	}
	if uid, action, does := firstThing(s.freshCore(), s.now); does && !takesBack(view, action, s.podOf) {
		if text, asleep := sleeping(view, uid); asleep {
			s.breaks("another core begins with %s%s", action, text)
		}
	}
}

// firstThing returns the first action of a core for a pod or group, within the longest back-off.
func firstThing(core *Core, now time.Time) (uid types.UID, action Action, does bool) {
	for end := now.Add(25 * time.Second); !now.After(end); now = latest(now, core.Wake(now)) {
		for _, action := range core.Step(now, Tick{}) {
			if uid, does := begins(action); does {
				return uid, action, true
			}
		}
	}
	return "", nil, false
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// begins returns the pod placed by an action, or the pod or group it makes room for.
func begins(action Action) (uid types.UID, does bool) {
	switch a := action.(type) {
	case Bind:
		return a.Attempt.Pod.UID, true
	case Hold:
		return a.Pod.UID, true
	case Preflight:
		return a.Attempt.Pod.UID, true
	case WriteVolumes:
		return a.Attempt.Pod.UID, true
	case WriteClaims:
		return a.Attempt.Pod.UID, true
	case Remove:
		return a.For, true
	}
	return "", false
}

// takesBack reports whether the action preempts a member of a group whose priority is at least that
// of the preempting pod, which is possible because the victim's own priority is lower than its
// group's. Otherwise the pod and the group would preempt each other forever; hence a pod that lost
// its room to such a group is not woken.
func takesBack(view View, action Action, podOf func(types.UID) *v1.Pod) bool {
	a, ok := action.(Remove)
	if !ok || view.Groups == nil {
		return false
	}
	by, g := podOf(a.For), view.Groups.GroupOf(a.Victim.UID)
	return by != nil && g != nil && g.Object != nil && g.Object.Spec.Priority != nil && g.Priority() >= *by.Spec.Priority
}

// sleeping describes the place of a pod, or of the pods of its group, in the queue, and reports
// whether one of them waits there for an event.
func sleeping(view View, uid types.UID) (text string, asleep bool) {
	of := func(uid types.UID) *groups.Group {
		if view.Groups == nil {
			return nil
		}
		return cmp.Or(view.Groups.ByUID(uid), view.Groups.GroupOf(uid))
	}
	group := of(uid)
	for item := range view.Queue.Each {
		if item.Pod.UID == uid || group != nil && of(item.Pod.UID) == group {
			text += fmt.Sprintf("\n\t%s is %s by gate %q for %v: %s", item.Pod.Name, item.Place(), item.Gate, item.Rejectors, item.Message)
			asleep = asleep || item.Place() == queue.Waiting || item.Place() == queue.Gated
		}
	}
	return text, asleep
}
