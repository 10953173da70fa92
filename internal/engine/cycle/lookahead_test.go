// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

var (
	aheadWorlds = flag.Uint64("look-ahead-worlds", 4, "clusters of TestLookAheadLeavesFewerPodsPending; 500 take minutes")
	aheadSeed   = flag.Uint64("look-ahead-seed", 1, "the first of these clusters")
	aheadNodes  = flag.Int("look-ahead-nodes", 120, "mean number of nodes of these clusters")
	aheadSize   = flag.Int("look-ahead-size", 1500, "mean CPU request of a preemptor in these clusters, in thousandths")
)

// replacing is a cluster in virtual time whose Deployments replace evicted pods.
type replacing struct {
	core   *Core
	now    time.Time
	pods   map[types.UID]*v1.Pod
	due    []dueEvent // by time
	made   int
	active time.Time // time of the last placement or eviction
}

type dueEvent struct {
	at time.Time
	do func()
}

// after calls do at a later time.
func (r *replacing) after(d time.Duration, do func()) {
	e := dueEvent{r.now.Add(d), do}
	at, _ := slices.BinarySearchFunc(r.due, e, func(a, b dueEvent) int { return cmp.Or(a.at.Compare(b.at), -1) })
	r.due = slices.Insert(r.due, at, e)
}

// create creates a pod, or the replacement of a pod.
func (r *replacing) create(like *v1.Pod) {
	r.made++
	pod := aPod(fmt.Sprintf("p%d", r.made), "1")
	pod.Spec, pod.OwnerReferences, pod.CreationTimestamp = *like.Spec.DeepCopy(), like.OwnerReferences, metav1.Time{Time: r.now}
	pod.Spec.NodeName = ""
	r.show(pod)
}

func (r *replacing) show(pod *v1.Pod) {
	r.pods[pod.UID] = pod
	r.tell(Seen{Pods, pod.DeepCopy()})
}

// tell passes an event to the core, and carries out the actions.
func (r *replacing) tell(e Event) {
	for _, action := range slices.Clone(r.core.Step(r.now, e)) {
		switch a := action.(type) {
		case Bind:
			r.active = r.now
			pod := r.pods[a.Attempt.Pod.UID].DeepCopy()
			pod.Spec.NodeName, pod.Status.StartTime = a.Attempt.Node, &metav1.Time{Time: r.now.Truncate(time.Second)}
			r.after(0, func() { r.tell(Answered{a.Ticket, Outcome{}}); r.show(pod) })
		case Remove:
			r.active = r.now
			r.after(0, func() { r.evict(a) })
		case WriteStatus:
			r.after(0, func() { r.nominate(a) })
		}
	}
}

// evict deletes a pod. Its replacement is created while the pod terminates.
func (r *replacing) evict(a Remove) {
	r.tell(Answered{a.Ticket, Outcome{}})
	pod := r.pods[a.Victim.UID].DeepCopy()
	pod.DeletionTimestamp = &metav1.Time{Time: r.now}
	pod.Status.Conditions = []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler}}
	r.show(pod)
	r.after(50*time.Millisecond, func() { r.create(pod) })
	r.after(2*time.Second, func() {
		delete(r.pods, pod.UID)
		r.tell(Gone{Pods, pod})
	})
}

func (r *replacing) nominate(a WriteStatus) {
	if a.Ticket != 0 {
		r.tell(Answered{a.Ticket, Outcome{}})
	}
	if pod := r.pods[a.Pod.UID]; pod != nil && pod.Spec.NodeName == "" && a.Nominate != nil {
		pod = pod.DeepCopy()
		pod.Status.NominatedNodeName = *a.Nominate
		r.show(pod)
	}
}

// rest advances the time until nothing has been placed or evicted for ten minutes.
func (r *replacing) rest() {
	for r.active = r.now; r.now.Before(r.active.Add(10 * time.Minute)); {
		next := later(r.now, r.core.Wake(r.now))
		if len(r.due) > 0 && !r.due[0].at.After(next) {
			e := r.due[0]
			r.due = r.due[1:]
			r.now = later(r.now, e.at)
			e.do()
			continue
		}
		r.now = next
		r.tell(Tick{})
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// pending counts the pods without a node by priority.
func (r *replacing) pending() map[int32]int {
	by := map[int32]int{}
	for _, pod := range r.pods {
		if pod.Spec.NodeName == "" {
			by[*pod.Spec.Priority]++
		}
	}
	return by
}

// preemptors is the priority of the pods that preempt.
const preemptors = 1000

// loadedCluster returns a cluster with Deployments that request 95 % of the CPU, some of them only
// in one pool of nodes, after 50 more important pods have arrived.
func loadedCluster(t *testing.T, seed uint64, gentle bool, ahead plugins.LookAhead) *replacing {
	profile := plugins.Default()
	profile.GentlePreemption, profile.LookAhead = gentle, ahead
	core, err := New(Options{Profiles: []Profile{{Profile: profile}}, Seed: seed, Disabled: Disabled{PopFromBackoff: true}})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 11))
	r := &replacing{core: core, now: begin, pods: map[types.UID]*v1.Pod{}}
	r.tell(Follows{})
	r.tell(Led{})
	pools := []string{"a", "b", "c"}
	free := int64(0)
	for i := range *aheadNodes/2 + rng.IntN(*aheadNodes) {
		cores := []int64{8, 16, 32}[rng.IntN(3)]
		free += 1000 * cores
		node := aNode(fmt.Sprintf("n%d", i), fmt.Sprint(cores))
		node.Labels["pool"] = pools[rng.IntN(len(pools))]
		r.tell(Seen{Nodes, node})
	}

	for spare, number := free/20, 0; free > spare; number++ {
		like := anApp(fmt.Sprintf("app%d", number), []int64{250, 500, 1000, 1500, 2000, 3000, 4000}[rng.IntN(7)], int32(rng.IntN(4)))
		if rng.IntN(2) == 0 {
			like.Spec.NodeSelector = map[string]string{"pool": pools[rng.IntN(len(pools))]}
		}
		for range min(1+rng.Int64N(20), 1+(free-spare)/milliCPU(like)) {
			r.create(like)
		}
		r.after(time.Duration(rng.IntN(60))*time.Second, func() {})
		r.rest()
		free -= r.settle(like)
	}

	for i := range 50 {
		like := anApp(fmt.Sprintf("preemptor%d", i), int64(*aheadSize/2+rng.IntN(*aheadSize)), preemptors)
		if rng.IntN(2) == 0 {
			like.Spec.NodeSelector = map[string]string{"pool": pools[rng.IntN(len(pools))]}
		}
		r.after(time.Duration(rng.IntN(60_000))*time.Millisecond, func() { r.create(like) })
	}
	r.rest()
	return r
}

// settle deletes the pods that fit on no node, and returns the CPU requested by the other pods of
// an app.
func (r *replacing) settle(like *v1.Pod) (requested int64) {
	for uid, pod := range r.pods {
		switch {
		case pod.Spec.NodeName == "":
			delete(r.pods, uid)
			r.tell(Gone{Pods, pod})
		case pod.OwnerReferences[0].Name == like.Name:
			requested += milliCPU(pod)
		}
	}
	return requested
}

func milliCPU(pod *v1.Pod) int64 { return pod.Spec.Containers[0].Resources.Requests.Cpu().MilliValue() }

// anApp returns the pod of a Deployment.
func anApp(name string, cpu int64, priority int32) *v1.Pod {
	pod := aPod(name, "1")
	pod.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = *resource.NewMilliQuantity(cpu, resource.DecimalSI)
	*pod.Spec.Priority = priority
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: types.UID(name), Controller: ptr.To(true)}}
	return pod
}

// TestLookAheadPrefersVictimsThatFitElsewhere verifies the order of the look-ahead on two nodes
// with possible victims, and a third node with room that the preemptor cannot use.
func TestLookAheadPrefersVictimsThatFitElsewhere(t *testing.T) {
	on := func(node, name string, cpu int64, priority int32, pinned bool) *v1.Pod {
		pod := anApp(name, cpu, priority)
		pod.Spec.NodeName = node
		if pinned {
			pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: node}
		}
		return pod
	}
	never := on("b", "b1", 2000, 5, false)
	never.Spec.PreemptionPolicy = ptr.To(v1.PreemptNever)
	bare := on("a", "a1", 2000, 0, false)
	bare.OwnerReferences = nil
	other := func(cpu int64) *v1.Pod { return on("c", "c1", cpu, 1, false) }
	for name, row := range map[string]struct {
		ahead plugins.LookAhead
		pods  []*v1.Pod
		want  string // the victims
	}{
		"upstream":              {"", []*v1.Pod{on("a", "a1", 2000, 0, true), on("b", "b1", 2000, 0, false), other(1000)}, "a1"},
		"one fits on c":         {plugins.Ties, []*v1.Pod{on("a", "a1", 2000, 0, true), on("b", "b1", 2000, 0, false), other(1000)}, "b1"},
		"c is full":             {plugins.Ties, []*v1.Pod{on("a", "a1", 2000, 0, true), on("b", "b1", 2000, 0, false), other(3000)}, "a1"},
		"one has no controller": {plugins.Ties, []*v1.Pod{bare, on("b", "b1", 2000, 0, false), other(1000)}, "b1"},
		"one would preempt c1":  {plugins.Ties, []*v1.Pod{on("a", "a1", 2000, 5, false), never, other(3000)}, "a1"},
		"fewer victims": {plugins.Ties, []*v1.Pod{on("a", "a1", 2000, 0, true), on("b", "b1", 1000, 0, false), on("b", "b2", 1000, 0, false), other(1000)},
			"a1"},
		"the same highest priority": {plugins.HighestVictim,
			[]*v1.Pod{on("a", "a1", 2000, 0, true), on("b", "b1", 1000, 0, false), on("b", "b2", 1000, 0, false), other(1000)}, "b1b2"},
		"a higher priority": {plugins.HighestVictim, []*v1.Pod{on("a", "a1", 2000, 0, true), on("b", "b1", 2000, 1, false), other(1000)}, "a1"},
		"a less important one finds no room": {plugins.HighestVictim,
			[]*v1.Pod{on("a", "a1", 2000, 2, true), on("b", "b1", 1000, 2, false), on("b", "b2", 1000, 0, false), other(2000)}, "b1b2"},
		"the second finds no room": {plugins.HighestVictim,
			[]*v1.Pod{on("a", "a1", 2000, 0, true), on("b", "b1", 1000, 0, false), on("b", "b2", 1000, 0, false), other(2000)}, "a1"},
	} {
		profile := plugins.Default()
		profile.GentlePreemption, profile.LookAhead = true, row.ahead
		core, err := New(Options{Profiles: []Profile{{Profile: profile}}})
		if err != nil {
			t.Fatal(err)
		}
		r := &resizing{Core: core, now: begin}
		r.tell(Follows{}, Seen{Nodes, aNode("a", "2")}, Seen{Nodes, aNode("b", "2")}, Seen{Nodes, aNode("c", "3")})
		for _, pod := range row.pods {
			r.tell(Seen{Pods, pod})
		}
		preemptor := anApp("preemptor", 2000, 10)
		preemptor.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
			NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{{
				Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{"a", "b"},
			}}}},
		}}}
		r.tell(Seen{Pods, preemptor}, Led{})
		if got := r.victims(); got != row.want {
			t.Errorf("%s: victims %q, want %q", name, got, row.want)
		}
	}
}

// TestLookAheadLeavesFewerPodsPending compares the pods pending in the end with upstream's choice
// of victims, and with gentle preemption without and with the look-ahead.
func TestLookAheadLeavesFewerPodsPending(t *testing.T) {
	settings := []string{"upstream", "gentle", string(plugins.Ties), string(plugins.HighestVictim)}
	sums := make([]outcome, len(settings))
	for seed := *aheadSeed; seed < *aheadSeed+*aheadWorlds; seed++ {
		var upstream map[int32]int
		for i, setting := range settings {
			ahead := plugins.LookAhead(setting)
			if i < 2 {
				ahead = ""
			}
			pending := loadedCluster(t, seed, i > 0, ahead).pending()
			if i == 0 {
				upstream = pending
			}
			sums[i].count(pending, upstream)
		}
	}

	for i, setting := range settings {
		t.Logf("%-14s %s (%+.0f %%)", setting, &sums[i], 100*(float64(sums[i].pending)/float64(max(1, sums[0].pending))-1))
	}
	if sums[3].pending >= sums[0].pending {
		t.Errorf("with %s, %d pods are pending, without %d", plugins.HighestVictim, sums[3].pending, sums[0].pending)
	}
}

// outcome sums the pending pods of several clusters, and counts the clusters with fewer and more
// pending pods than with upstream's choice.
type outcome struct {
	pending, fewer, more int
	byPriority           map[int32]int
	moreImportant        int // clusters with more pods at the highest priority with different numbers
	aboveLowest          int // those of them where this is not the lowest priority
}

func (o *outcome) count(pending, upstream map[int32]int) {
	if o.byPriority == nil {
		o.byPriority = map[int32]int{}
	}
	difference := 0
	for priority, n := range pending {
		o.byPriority[priority] += n
		o.pending += n
		difference += n
	}
	for _, n := range upstream {
		difference -= n
	}
	if difference < 0 {
		o.fewer++
	} else if difference > 0 {
		o.more++
	}
	for _, priority := range []int32{preemptors, 3, 2, 1, 0} {
		if pending[priority] != upstream[priority] {
			if pending[priority] > upstream[priority] {
				o.moreImportant++
				o.aboveLowest += int(min(1, priority))
			}
			break
		}
	}
}

func (o *outcome) String() string {
	return fmt.Sprintf("%d pods pending, by priority %v; fewer in %d clusters, more in %d, more important ones in %d (above the lowest priority in %d)",
		o.pending, o.byPriority, o.fewer, o.more, o.moreImportant, o.aboveLowest)
}
