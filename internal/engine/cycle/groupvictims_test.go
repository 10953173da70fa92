// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/config"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// victimWorld has nodes with running pods, and a gang allowed to preempt some of them. The members
// of the gang differ in half of the worlds.
type victimWorld struct {
	nodes   []*v1.Node
	free    []int64 // free millicores by node, with all pods present
	running []*v1.Pod
	at      []int   // node index of each running pod
	members []int64 // requests of the members, in millicores
	gates   groups.Gates
	unit    int64 // if set, every unit of millicores is a device instead, and pods have claims
}

func newVictimWorld(rng *rand.Rand, unlike bool) *victimWorld {
	w := &victimWorld{}
	cpu, nodes := int64(1+rng.IntN(3))*1000, 1+rng.IntN(4)
	for range 1 + rng.IntN(5) {
		if unlike {
			cpu = int64(1+rng.IntN(9)) * 100 * int64(1+rng.IntN(2))
		}
		w.members = append(w.members, cpu)
	}
	if unlike {
		w.fill(rng, 1+rng.IntN(3))
		return w
	}
	for i := range nodes {
		cpu := 1 + rng.IntN(6)
		name := fmt.Sprintf("n%d", i)
		w.nodes, w.free = append(w.nodes, aNode(name, fmt.Sprint(cpu))), append(w.free, int64(cpu)*1000)
		for w.free[i] > 0 && len(w.running) < 10 && rng.IntN(6) > 0 {
			takes := min(w.free[i], int64(1+rng.IntN(2))*1000)
			p := aPod(fmt.Sprintf("r%d", len(w.running)), fmt.Sprintf("%dm", takes))
			*p.Spec.Priority = []int32{0, 0, 10, 200}[rng.IntN(4)]
			p.Spec.NodeName = name
			w.free[i] -= takes
			w.running, w.at = append(w.running, p), append(w.at, i)
		}
	}
	return w
}

// fill adds small nodes, each with a few pods of all sizes.
func (w *victimWorld) fill(rng *rand.Rand, nodes int) {
	for i := range nodes {
		name, free := fmt.Sprintf("n%d", i), int64(1000)
		for range rng.IntN(4) {
			takes := int64(1+rng.IntN(6)) * 100
			if takes > free {
				continue
			}
			p := aPod(fmt.Sprintf("r%d", len(w.running)), fmt.Sprintf("%dm", takes))
			*p.Spec.Priority, p.Spec.NodeName = []int32{0, 0, 0, 10, 200}[rng.IntN(5)], name
			w.running, w.at = append(w.running, p), append(w.at, i)
			free -= takes
		}
		w.nodes, w.free = append(w.nodes, aNode(name, "1")), append(w.free, free)
	}
}

// fits reports whether the gang fits once a set of pods is removed.
func (w *victimWorld) fits(gone uint) bool {
	free := slices.Clone(w.free)
	for k, p := range w.running {
		if gone&(1<<k) != 0 {
			free[w.at[k]] += p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
		}
	}
	return packs(free, w.members)
}

// packs tries every node for every member.
func packs(free, members []int64) bool {
	if len(members) == 0 {
		return true
	}
	for i := range free {
		if free[i] < members[0] {
			continue
		}
		free[i] -= members[0]
		ok := packs(free, members[1:])
		free[i] += members[0]
		if ok {
			return true
		}
	}
	return false
}

// fewest returns the minimum number of victims; negative if no set of victims helps.
func (w *victimWorld) fewest() int {
	least := -1
	for gone := range uint(1) << len(w.running) {
		allowed := true
		for k, p := range w.running {
			allowed = allowed && (gone&(1<<k) == 0 || *p.Spec.Priority < 100)
		}
		if n := bits.OnesCount(gone); allowed && (least < 0 || n < least) && w.fits(gone) {
			least = n
		}
	}
	return least
}

// victims returns the pods preempted by a core for the gang, and the number of members bound
// immediately.
func (w *victimWorld) victims(t *testing.T) (gone uint, bound int) {
	t.Helper()
	c, err := config.Default(config.Options{PreemptDevices: true})
	if err != nil {
		t.Fatal(err)
	}
	core, err := New(Options{Profiles: []Profile{{Profile: c.Profiles[0]}}, Groups: w.gates})
	if err != nil {
		t.Fatal(err)
	}
	core.Step(begin, Follows{})
	core.Step(begin, Led{})
	core.Step(begin, Seen{DeviceClasses, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}})
	for _, n := range w.nodes {
		core.Step(begin, Seen{Nodes, n})
		if w.unit > 0 {
			core.Step(begin, Seen{ResourceSlices, w.slice(n)})
		}
	}
	index, used := map[types.UID]int{}, map[string]int{}
	for k, p := range w.running {
		index[p.UID] = k
		w.tellPod(core, p, used)
	}
	w.tellGroups(core)
	for i, cpu := range w.members {
		p := aPod(fmt.Sprintf("m%d", i), fmt.Sprintf("%dm", cpu))
		*p.Spec.Priority = 100
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new(w.groupOf(i))}
		w.tellPod(core, p, used)
	}
	for i := range 3 {
		for _, action := range core.Step(begin.Add(time.Duration(i)*time.Millisecond), Tick{}) {
			switch a := action.(type) {
			case Remove:
				gone |= 1 << index[a.Victim.UID]
			case Bind, WriteClaims:
				bound++
			}
		}
	}
	return gone, bound
}

// slice returns the devices of a node.
func (w *victimWorld) slice(n *v1.Node) *resourcev1.ResourceSlice {
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: n.Name}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: &n.Name, Pool: resourcev1.ResourcePool{Name: n.Name, ResourceSliceCount: 1}}}
	for i := range n.Status.Allocatable.Cpu().MilliValue() / w.unit {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprint("gpu-", i)})
	}
	return slice
}

// tellPod shows a core a pod, with a claim for devices instead of CPU if devices are counted. used
// counts the allocated devices by node.
func (w *victimWorld) tellPod(core *Core, p *v1.Pod, used map[string]int) {
	if w.unit > 0 {
		p = p.DeepCopy()
		claim := claimOf(p.Name, p.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()/w.unit)
		delete(p.Spec.Containers[0].Resources.Requests, v1.ResourceCPU)
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: &claim.Name}}
		if node := p.Spec.NodeName; node != "" {
			claim.Status.Allocation = &resourcev1.AllocationResult{NodeSelector: onlyOn(node)}
			claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: p.Name, UID: p.UID}}
			for range claim.Spec.Devices.Requests[0].Exactly.Count {
				claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{
					Request: "r", Driver: "gpu.example.com", Pool: node, Device: fmt.Sprint("gpu-", used[node])})
				used[node]++
			}
		}
		core.Step(begin, Seen{ResourceClaims, claim})
	}
	core.Step(begin, Seen{Pods, p})
}

// onlyOn selects one node.
func onlyOn(node string) *v1.NodeSelector {
	return &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{node}}}}}}
}

// groupOf returns the group of a member: a single group, or the groups of a tree in turn.
func (w *victimWorld) groupOf(i int) string {
	if !w.gates.Composite {
		return "g"
	}
	return fmt.Sprint("g", i%2)
}

// tellGroups shows a core the gang of all members, or a tree requiring all its groups.
func (w *victimWorld) tellGroups(core *Core) {
	sizes := map[string]int{}
	for i := range w.members {
		sizes[w.groupOf(i)]++
	}
	root := compositeOf("root", len(sizes))
	root.Spec.Priority = new(int32(100))
	if w.gates.Composite {
		core.Step(begin, Seen{CompositePodGroups, root})
	}
	for _, name := range sorted(sizes) {
		g := gangOf(name, sizes[name])
		g.Spec.Priority = new(int32(100))
		if w.gates.Composite {
			g.Spec.ParentCompositePodGroupName = &root.Name
		}
		core.Step(begin, Seen{PodGroups, g})
	}
}

// TestVictimsOfATreeAreAllNeeded is like TestVictimsOfAGangAreAllNeeded, for two gangs of a tree
// that requires both. If the members differ, not every placement is found, because all pods of one
// group are placed before the pods of the next group.
func TestVictimsOfATreeAreAllNeeded(t *testing.T) {
	victimsAreNeeded(t, groups.Gates{Generic: true, Topology: true, Composite: true})
}

// TestVictimsOfAGangAreAllNeeded verifies that pods are preempted for a gang if and only if the
// gang fits only after preemption. Each victim is needed and has a lower priority. Differing
// members are placed in any order that makes them fit.
func TestVictimsOfAGangAreAllNeeded(t *testing.T) {
	victimsAreNeeded(t, groups.Gates{Generic: true})
}

// victimsAreNeeded tries members that lack CPU, and members that lack devices.
func victimsAreNeeded(t *testing.T, gates groups.Gates) {
	t.Run("alike", func(t *testing.T) { worldsHaveVictims(t, false, gates, 0) })
	t.Run("unlike", func(t *testing.T) { worldsHaveVictims(t, true, gates, 0) })
	t.Run("devices", func(t *testing.T) { worldsHaveVictims(t, false, gates, 1000) })
	t.Run("unlike devices", func(t *testing.T) { worldsHaveVictims(t, true, gates, 100) })
}

func worldsHaveVictims(t *testing.T, unlike bool, gates groups.Gates, unit int64) {
	preempting, hopeless, more, missed := 0, 0, 0, 0
	for seed := range 8 * *smallWorlds {
		w := newVictimWorld(rand.New(rand.NewPCG(seed, 11)), unlike)
		w.gates, w.unit = gates, unit
		least := w.fewest()
		gone, bound := w.victims(t)
		n := bits.OnesCount(gone)
		switch {
		case least >= 0 && unlike && gates.Composite && n+bound == 0:
			missed++
		case least == 0 && unlike && gates.Composite && n > 0: // the gang did not fit in the order of placement
		case least == 0 && (bound != len(w.members) || n > 0), least != 0 && bound > 0:
			t.Fatalf("seed %d: %d of %d are bound and %d pods leave, where %d have to", seed, bound, len(w.members), n, least)
		case least < 0 && n > 0:
			t.Fatalf("seed %d: %d pods leave for a gang that fits nowhere", seed, n)
		case least > 0 && n == 0:
			t.Errorf("seed %d: nobody leaves, and with %d gone the gang would fit: %v", seed, least, w.members)
		case n > 0 && !w.fits(gone):
			t.Fatalf("seed %d: %d pods leave, and the gang does not fit", seed, n)
		}
		for k, p := range w.running {
			if gone&(1<<k) == 0 {
				continue
			}
			if *p.Spec.Priority >= 100 {
				t.Fatalf("seed %d: a pod of priority %d leaves for one of 100", seed, *p.Spec.Priority)
			}
			if !w.fits(gone &^ (1 << k)) {
				continue
			}
			if missed++; !unlike || !gates.Composite {
				t.Fatalf("seed %d: %s leaves for nothing", seed, p.Name)
			}
		}
		switch {
		case least > 0:
			preempting++
		case least < 0:
			hopeless++
		}
		if least > 0 && n > least {
			more++
		}
	}
	t.Logf("%d gangs preempt, %d of them more pods than the fewest; %d cannot, %d are missed", preempting, more, hopeless, missed)
	if missed > preempting/10 {
		t.Errorf("of %d gangs %d are not placed, or have pods leave for nothing", preempting, missed)
	}
	if preempting < int(*smallWorlds)*3/4 || hopeless < int(*smallWorlds)/2 {
		t.Errorf("the worlds do not try both: %d gangs preempt, %d cannot", preempting, hopeless)
	}
}

// attempts records the results of attempts at groups.
type attempts struct {
	NoObserver
	results []Result
}

func (a *attempts) AttemptedGroup(_ string, result Result, _ time.Duration) {
	a.results = append(a.results, result)
}

// TestAttemptsAtGroupsAreObserved verifies that a gang waiting for victims is counted as waiting,
// and is counted as scheduled after the victims have terminated.
func TestAttemptsAtGroupsAreObserved(t *testing.T) {
	seen := &attempts{}
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true}, Observer: seen})
	if err != nil {
		t.Fatal(err)
	}
	low, high := aPod("low", "1"), aPod("high", "1")
	low.Spec.NodeName, *high.Spec.Priority = "n", 10
	high.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
	g := gangOf("g", 1)
	g.Spec.Priority = new(int32(10))
	for _, e := range []Event{
		Follows{}, Led{}, Seen{Nodes, aNode("n", "1")}, Seen{Pods, low}, Seen{PodGroups, g}, Seen{Pods, high}, Tick{},
		Answered{Ticket: 1}, Gone{Pods, low}, Tick{},
	} {
		core.Step(begin, e)
	}
	if want := []Result{WaitingOnPreemption, Scheduled}; fmt.Sprint(seen.results) != fmt.Sprint(want) {
		t.Errorf("attempts ended %v, want %v", seen.results, want)
	}
}
