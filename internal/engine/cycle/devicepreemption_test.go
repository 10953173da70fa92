// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
)

var deviceRuns = flag.Int("device-runs", 15, "runs of TestNoVictimForDevicesLeavesInVain")

// TestNoVictimForDevicesLeavesInVain verifies that every pod that preempts for devices gets some,
// on the node of its victims unless other victims leave devices that no preemptor needs, and that
// no pod preempts twice. Victims terminate slowly, the controller releases their claims even later,
// and the scheduler restarts at any time.
func TestNoVictimForDevicesLeavesInVain(t *testing.T) {
	victims, restarts := 0, 0
	seeds := []uint64{531, 597} // a pod joined a shared claim that was to be released; a pod preempted twice
	for seed := range uint64(*deviceRuns) {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		r := newDeviceRun(t, seed)
		r.surplus = true
		for i := range 30 {
			r.arrive(fmt.Sprintf("first-%d", i), 0)
		}
		r.play(time.Minute)
		for i := range 25 {
			r.arrive(fmt.Sprintf("later-%d", i), []int32{0, 10, 10}[r.IntN(3)])
			r.play(time.Duration(r.IntN(1500)) * time.Millisecond)
			if seed%3 == 0 && r.IntN(4) == 0 {
				r.kill()
				restarts++
			}
		}
		r.play(10 * time.Minute)
		for preemptor, node := range r.promised {
			if p := r.pod(preemptor); p == nil || !r.mayArriveAt(preemptor, p.Spec.NodeName) {
				t.Errorf("seed %d: %s preempted on %s, and did not arrive there", seed, preemptor, node)
			}
		}
		victims += r.victims
	}
	t.Logf("%d victims, %d restarts", victims, restarts)
	if victims < 4**deviceRuns {
		t.Errorf("only %d victims", victims)
	}
}

// TestAGangPreemptsForDevices verifies that a gang preempts for its devices, in the cheapest rack:
// as many pods as it needs devices, and none elsewhere. Pods of at most its priority do not get the
// devices if they arrive while the victims leave, and a restart does not give the devices away.
func TestAGangPreemptsForDevices(t *testing.T) {
	const size = 8
	for seed := range uint64(*deviceRuns+5) / 8 {
		r := emptyDeviceRun(t, seed)
		racks := map[string]int32{"a": 3, "b": 1, "c": 9} // with the priority of its pods
		for _, rack := range slices.Sorted(maps.Keys(racks)) {
			for i := range 2 {
				node := fmt.Sprint(rack, "-", i)
				r.addNode(node, rack, size/2+1)
				for j := range size/2 + 1 {
					r.arriveWithDevice(fmt.Sprint(node, "-", j), racks[rack], func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"rack": rack} })
				}
			}
		}
		r.play(time.Minute)

		g := gangOf("gang", size)
		g.Spec.SchedulingConstraints, g.Spec.Priority = oneOf("rack"), new(int32(5))
		r.put(PodGroups, g)
		for i := range size {
			r.arriveWithDevice(fmt.Sprint("member-", i), 5, func(p *v1.Pod) {
				p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &g.Name}
			})
		}
		for i := range 6 {
			r.play(time.Duration(r.IntN(1000)) * time.Millisecond)
			r.arriveWithDevice(fmt.Sprint("rival-", i), int32(r.IntN(2)*5), func(p *v1.Pod) { p.Spec.PreemptionPolicy = new(v1.PreemptNever) })
			if seed%2 == 1 && r.IntN(2) == 0 {
				r.kill()
			}
		}
		r.play(10 * time.Minute)

		for i := range size {
			if p := r.pod(types.UID(fmt.Sprint("uid-member-", i))); !strings.HasPrefix(p.Spec.NodeName, "b-") {
				t.Errorf("seed %d: %s is on %q: %v", seed, p.Name, p.Spec.NodeName, r.core.Decision(cluster.Name{Namespace: "default", Name: p.Name}).Message)
			}
		}
		if r.victims != size {
			t.Errorf("seed %d: %d victims for %d members", seed, r.victims, size)
		}
	}
}

// arriveTree creates a tree of gangs, each of them in one rack, whose pods need a device each.
func (r *deviceRun) arriveTree(gangs, size int, priority int32) {
	root := compositeOf("root", gangs)
	root.Spec.Priority = &priority
	r.put(CompositePodGroups, root)
	for i := range gangs {
		g := gangOf(fmt.Sprint("gang-", i), size)
		g.Spec.ParentCompositePodGroupName, g.Spec.Priority, g.Spec.SchedulingConstraints = &root.Name, &priority, oneOf("rack")
		r.put(PodGroups, g)
		for j := range size {
			r.arriveWithDevice(fmt.Sprint("high-", i, "-", j), priority, func(p *v1.Pod) {
				p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &g.Name}
			})
		}
	}
}

// killCase is a cluster full of pods of priority 0, and the pods of priority 10 that preempt them.
type killCase struct {
	name    string
	fill    func(*deviceRun)
	arrive  func(*deviceRun)
	arrives int // number of preemptors
	victims int
}

const killNodes = 3

var killCases = []killCase{
	{"a claim of its own", func(r *deviceRun) {
		for i := range killNodes {
			r.addNode(fmt.Sprint("node-", i), "", 2)
		}
		for i := range 2 * killNodes {
			r.arriveWithDevice(fmt.Sprint("low-", i), 0, func(*v1.Pod) {})
		}
	}, func(r *deviceRun) {
		r.arriveWithDevice("high-0", 10, func(*v1.Pod) {})
		r.arriveWithDevice("high-1", 10, func(*v1.Pod) {})
	}, 2, 2},
	{"claims shared by two pods", func(r *deviceRun) {
		for i := range killNodes {
			r.addNode(fmt.Sprint("node-", i), "", 2)
		}
		for i := range 2 * killNodes {
			r.arriveWithClaim(fmt.Sprint("low-", i), 0, claimOf(fmt.Sprint("shared-", i/2), 2), func(*v1.Pod) {})
		}
	}, func(r *deviceRun) {
		for i := range 2 {
			r.arriveWithClaim(fmt.Sprint("high-", i), 10, claimOf("shared-high", 2), func(*v1.Pod) {})
		}
	}, 2, 2},
	{"partitions", func(r *deviceRun) {
		for i := range killNodes {
			r.addPartitions(fmt.Sprint("node-", i))
		}
		for i := range 2 * killNodes {
			r.arriveWithDevice(fmt.Sprint("low-", i), 0, func(*v1.Pod) {})
		}
	}, func(r *deviceRun) {
		whole := claimOf("high-0", 1)
		whole.Spec.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
			Expression: `device.attributes["gpu.example.com"].whole`}}}
		r.arriveWithClaim("high-0", 10, whole, func(*v1.Pod) {})
	}, 1, 2},
	{"extended resources", func(r *deviceRun) {
		for i := range killNodes {
			r.addNode(fmt.Sprint("node-", i), "", 2)
		}
		for i := range 2 * killNodes {
			r.arriveWithResource(fmt.Sprint("low-", i), 0, 1)
		}
	}, func(r *deviceRun) { r.arriveWithResource("high-0", 10, 2) }, 1, 2},
	{"a gang", func(r *deviceRun) {
		for i := range killNodes {
			rack := fmt.Sprint("rack-", i)
			for j := range 2 {
				r.addNode(fmt.Sprint("node-", i, "-", j), rack, 2)
			}
			for j := range 4 {
				r.arriveWithDevice(fmt.Sprint("low-", i, "-", j), 0, func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"rack": rack} })
			}
		}
	}, func(r *deviceRun) {
		g := gangOf("gang", 4)
		g.Spec.SchedulingConstraints, g.Spec.Priority = oneOf("rack"), new(int32(10))
		r.put(PodGroups, g)
		for i := range 4 {
			r.arriveWithDevice(fmt.Sprint("high-", i), 10, func(p *v1.Pod) { p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &g.Name} })
		}
	}, 4, 4},
	{"a tree", func(r *deviceRun) {
		for i := range killNodes {
			rack := fmt.Sprint("rack-", i)
			for j := range 2 {
				r.addNode(fmt.Sprint("node-", i, "-", j), rack, 2)
			}
			for j := range 4 {
				r.arriveWithDevice(fmt.Sprint("low-", i, "-", j), 0, func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"rack": rack} })
			}
		}
	}, func(r *deviceRun) { r.arriveTree(2, 2, 10) }, 4, 4},
}

// TestAKillBetweenAnyTwoRequestsCostsNoVictim verifies that pods preempt for devices as if nothing
// had happened, although the scheduler or the resource claim controller is killed after any one of
// their requests: the fewest pods leave, and pods of lower or equal priority get no device.
func TestAKillBetweenAnyTwoRequestsCostsNoVictim(t *testing.T) {
	for _, c := range killCases {
		t.Run(c.name, func(t *testing.T) {
			runs, each := 0, 1
			if c.arrives > 2 && *deviceRuns < 100 { // attempts for a gang take long
				each = 4
			}
			for seed := range 1 + *deviceRuns/10 {
				all := c.run(t, uint64(seed), nil)
				for i := seed % each; i < len(all); i += each {
					kills := map[int]bool{i + 1: true}
					if seed%2 == 1 { // the next life ends early
						kills[i+2+i%4] = true
					}
					c.run(t, uint64(seed), kills)
					runs++
				}
			}
			t.Logf("%d runs", runs)
			if runs < 10 {
				t.Error("the preemption has few requests")
			}
		})
	}
}

// run plays the case, and returns the requests after the arrival of the preemptors. The numbers of
// kills begin with the first of them.
func (c *killCase) run(t *testing.T, seed uint64, kills map[int]bool) []string {
	t.Helper()
	r := emptyDeviceRun(t, seed)
	c.fill(r)
	r.play(time.Minute)
	r.requests, r.kills = nil, kills

	c.arrive(r)
	for i := range 3 {
		r.play(time.Duration(r.IntN(1000)) * time.Millisecond)
		r.arriveWithDevice(fmt.Sprint("rival-", i), int32(r.IntN(2)*10), func(p *v1.Pod) { p.Spec.PreemptionPolicy = new(v1.PreemptNever) })
	}
	r.play(10 * time.Minute)

	problems := []string{}
	for _, object := range r.objects[Pods] {
		if p := object.(*v1.Pod); (p.Spec.NodeName == "") != strings.HasPrefix(p.Name, "rival") {
			problems = append(problems, fmt.Sprintf("%s is on %q", p.Name, p.Spec.NodeName))
		}
	}
	if r.victims != c.victims {
		problems = append(problems, fmt.Sprintf("%d victims, want %d", r.victims, c.victims))
	}
	if len(problems) > 0 {
		t.Errorf("seed %d, killed after %v: %q; the requests were\n%s", seed, slices.Sorted(maps.Keys(kills)), problems, strings.Join(r.requests, "\n"))
	}
	return r.requests
}
