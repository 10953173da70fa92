// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"errors"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/decide"
)

func TestAPluginIsAtThePointsWhoseInterfacesItImplements(t *testing.T) {
	if got := PointsOf(&fakePlugin{}); got != allPoints {
		t.Errorf("got %b, want %b", got, allPoints)
	}
}

func TestPreFilterIsAskedOnceAndFilterOnceANode(t *testing.T) {
	a, b := &fakePlugin{name: "A"}, &fakePlugin{name: "B"}
	f := newFixture(t, a, b)
	f.node("n1", 4)
	f.has(pod("there", "1", on("n1")))
	_, got := f.decide(pod("p", "1"))
	f.expect("node", got, "n1")
	f.expect("calls", f.taken(), "A PreFilter p; B PreFilter p; A Filter n1 there; B Filter n1 there")
}

// TestStatusesOfPreFilter verifies the effect of each status, with upstream's messages.
func TestStatusesOfPreFilter(t *testing.T) {
	for _, c := range []struct {
		name   string
		status *fwk.Status
		only   []string
		want   string
		calls  string
	}{
		{"success", nil, nil, "n1", "A PreFilter p; B PreFilter p; A Filter n1 ; B Filter n1 ; A Filter n2 ; B Filter n2 "},
		{"skip leaves out Filter", fwk.NewStatus(fwk.Skip), nil, "n1", "A PreFilter p; B PreFilter p; B Filter n1 ; B Filter n2 "},
		{"unschedulable asks the others all the same", fwk.NewStatus(fwk.Unschedulable, "not today"), nil,
			"0/2 nodes are available: not today.", "A PreFilter p; B PreFilter p"},
		{"unresolvable ends it", fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "never"), nil, "0/2 nodes are available: never.", "A PreFilter p"},
		{"pending", fwk.NewStatus(fwk.Pending, "soon"), nil, "0/2 nodes are available: soon.", "A PreFilter p; B PreFilter p"},
		{"error", fwk.AsStatus(errors.New("broken")), nil, `error: running PreFilter plugin "A": broken`, "A PreFilter p"},
		{"names", nil, []string{"n2", "gone"}, "n2", "A PreFilter p; B PreFilter p; A Filter n2 ; B Filter n2 "},
		{"no name", nil, []string{}, "0/2 nodes are available: node(s) didn't satisfy plugin A.", "A PreFilter p"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &fakePlugin{name: "A", score: preferring("n1")}
			a.preFilter = func(fwk.CycleState, *v1.Pod, []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
				if c.only != nil {
					return &fwk.PreFilterResult{NodeNames: sets.New(c.only...)}, nil
				}
				return nil, c.status
			}
			f := newFixture(t, a, &fakePlugin{name: "B"})
			f.node("n1", 4)
			f.node("n2", 4)
			_, got := f.decide(pod("p", "1"))
			f.expect("result", got, c.want)
			f.expect("calls", sorted(before(f.taken(), "A PreScore")), sorted(c.calls))
		})
	}
}

// preferring scores one node 100 and all other nodes 0.
func preferring(node string) func(fwk.CycleState, fwk.NodeInfo) (int64, *fwk.Status) {
	return func(_ fwk.CycleState, n fwk.NodeInfo) (int64, *fwk.Status) {
		if n.Node().Name == node {
			return 100, nil
		}
		return 0, nil
	}
}

// TestStatusesOfFilter verifies that a rejection counts by its reasons, and that any other failure
// ends the attempt.
func TestStatusesOfFilter(t *testing.T) {
	for _, c := range []struct {
		name   string
		status *fwk.Status
		want   string
	}{
		{"unschedulable", fwk.NewStatus(fwk.Unschedulable, "no room", "no time"), "0/2 nodes are available: 1 Insufficient cpu, 1 no room, 1 no time."},
		{"unresolvable", fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "never"), "0/2 nodes are available: 1 Insufficient cpu, 1 never."},
		{"error", fwk.AsStatus(errors.New("broken")), `error: running "A" filter plugin: broken`},
		{"wait", fwk.NewStatus(fwk.Wait), `error: running "A" filter plugin: status Wait is not one that Filter can have`},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, &fakePlugin{name: "A", filter: func(fwk.CycleState, *v1.Pod, fwk.NodeInfo) *fwk.Status { return c.status }})
			f.node("small", 1)
			f.node("large", 4)
			_, got := f.decide(pod("p", "2"))
			f.expect("result", got, c.want)
			if calls := f.taken(); strings.Contains(calls, "small") || strings.Count(calls, "Filter large") != 1 {
				t.Errorf("nodes that Berth's own filters reject are not asked about, and others once: %s", calls)
			}
		})
	}
}

// TestPluginsThatAskAPodToWaitAreNamed verifies that the decision names exactly the plugins that
// return Pending, at PreFilter or Filter.
func TestPluginsThatAskAPodToWaitAreNamed(t *testing.T) {
	later := fwk.NewStatus(fwk.Pending, "later")
	for point, a := range map[string]*fakePlugin{
		"PreFilter": {name: "A", preFilter: func(fwk.CycleState, *v1.Pod, []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) { return nil, later }},
		"Filter":    {name: "A", filter: func(fwk.CycleState, *v1.Pod, fwk.NodeInfo) *fwk.Status { return later }},
	} {
		f := newFixture(t, a)
		f.node("small", 1)
		f.node("large", 4)
		attempt, _ := f.decide(pod("p", "2"))
		f.expect(point, strings.Join(f.decider.Diagnose(attempt.Waiting).Pending, " "), "A")
	}
}

func TestFiltersShareTheirState(t *testing.T) {
	writer := &fakePlugin{name: "A", preFilter: func(state fwk.CycleState, _ *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
		state.Write("nodes", count(len(nodes)))
		return nil, nil
	}}
	reader := &fakePlugin{name: "B", filter: func(state fwk.CycleState, _ *v1.Pod, _ fwk.NodeInfo) *fwk.Status {
		if nodes, err := state.Read("nodes"); err != nil || nodes != count(2) {
			return fwk.NewStatus(fwk.Unschedulable, "nothing written")
		}
		return nil
	}, score: preferring("n2")}
	f := newFixture(t, writer, reader)
	f.node("n1", 4)
	f.node("n2", 4)
	_, got := f.decide(pod("p", "1"))
	f.expect("node", got, "n2")
}

type count int

func (c count) Clone() fwk.StateData { return c }

// TestNominatedPodsCountAsArrived verifies that a node with a nominated pod of higher priority is
// filtered first with that pod on it, added by AddPod, and then without it.
func TestNominatedPodsCountAsArrived(t *testing.T) {
	full := &fakePlugin{name: "A", filter: func(_ fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) *fwk.Status {
		if len(n.GetPods()) > 1 {
			return fwk.NewStatus(fwk.Unschedulable, "too many pods")
		}
		return nil
	}}
	f := newFixture(t, full)
	f.node("n1", 4)
	f.has(pod("there", "1", on("n1")))
	f.has(pod("guest", "1", nominated("n1"), priority(10)))
	_, got := f.decide(pod("p", "1"))
	f.expect("result", got, "0/1 nodes are available: 1 too many pods.")
	f.expect("calls", f.taken(), "A PreFilter p; A AddPod guest n1; A Filter n1 guest+there")

	_, got = f.decide(pod("greater", "1", priority(20)))
	f.expect("result for one of higher priority", got, "n1")
}

// TestANodeIsAskedAboutAsItIsWhenAGuestHasGoneAgain verifies that a host port of a removed guest
// that is also used by a pod on the node stays taken.
func TestANodeIsAskedAboutAsItIsWhenAGuestHasGoneAgain(t *testing.T) {
	port := func(p *v1.Pod) { p.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: 80}} }
	f := newConfigured(t, "plugins: {multiPoint: {enabled: [{name: A}], disabled: [{name: NodePorts}]}}", &fakePlugin{name: "A", quiet: true,
		filter: func(_ fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) *fwk.Status {
			if n.GetUsedPorts().CheckConflict("", "TCP", 80) {
				return nil
			}
			return fwk.NewStatus(fwk.Unschedulable, "nobody has the port")
		}})
	f.node("n1", 4)
	f.has(pod("there", "1", on("n1"), port))
	f.has(pod("guest", "1", nominated("n1"), priority(10), port))
	_, got := f.decide(pod("p", "1"))
	f.expect("node", got, "n1")
}

// TestVictimsOfPreemptionAreToldByRemovePodAndAddPod verifies that the filter's own state
// determines which pods may stay.
func TestVictimsOfPreemptionAreToldByRemovePodAndAddPod(t *testing.T) {
	plugin := oneOfAKind()
	f := newFixture(t, plugin)
	f.node("n1", 8)
	f.has(pod("red", "1", on("n1"), label("color", "red")))
	f.has(pod("blue", "1", on("n1"), label("color", "blue")))
	a, got := f.decide(pod("p", "1", label("color", "red"), priority(10)))
	f.expect("result", got, "0/1 nodes are available: 1 there is one of this color.")
	f.taken()
	found := f.decider.Preempt(a.Waiting)
	if found.Node == nil || len(found.Victims) != 1 || found.Victims[0].Name() != "red" {
		t.Fatalf("got %+v, want the red pod as the victim", found)
	}
	calls := f.taken()
	for _, want := range []string{"A RemovePod blue n1", "A RemovePod red n1", "A AddPod blue n1"} {
		if !strings.Contains(calls, want) {
			t.Errorf("%q was not called: %s", want, calls)
		}
	}
	if strings.Contains(calls, "PreFilter") {
		t.Errorf("PreFilter is asked again: %s", calls)
	}
	info, _ := f.handle().SnapshotSharedLister().NodeInfos().Get("n1")
	if status := plugin.filter(f.framework().current.state, a.Pod, info); !status.IsRejected() {
		t.Error("what was only supposed has changed the pod's state")
	}
}

// TestPreemptionAsksFilterWherePreFilterRejected verifies that, like upstream, the verdict on the
// pod as a whole does not count once pods have been removed hypothetically.
func TestPreemptionAsksFilterWherePreFilterRejected(t *testing.T) {
	a := &fakePlugin{name: "A",
		preFilter: func(fwk.CycleState, *v1.Pod, []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
			return nil, fwk.NewStatus(fwk.Unschedulable, "too many pods in the cluster")
		},
		filter: func(_ fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) *fwk.Status {
			if len(n.GetPods()) > 0 {
				return fwk.NewStatus(fwk.Unschedulable, "not empty")
			}
			return nil
		},
	}
	f := newFixture(t, a)
	f.node("n1", 8)
	f.has(pod("there", "1", on("n1")))
	attempt, got := f.decide(pod("p", "1", priority(10)))
	f.expect("result", got, "0/1 nodes are available: too many pods in the cluster.")
	for name, found := range map[string]decide.Preemption{
		"decided": f.decider.Preempt(attempt.Waiting),
		"plainly": decide.NewPlain(f.cluster, f.profile.Profile).Preempt(attempt.Waiting, f.decider.Plain().Evaluate(attempt.Waiting)),
	} {
		if found.Node == nil || len(found.Victims) != 1 {
			t.Errorf("%s: got %+v", name, found)
		}
	}
}

// oneOfAKind allows one pod per color on a node. It counts in PreFilter, updates the count by
// AddPod and RemovePod, and never looks at the pods of the node again.
func oneOfAKind() *fakePlugin {
	move := func(by int) func(state fwk.CycleState, p fwk.PodInfo, n fwk.NodeInfo) *fwk.Status {
		return func(state fwk.CycleState, p fwk.PodInfo, n fwk.NodeInfo) *fwk.Status {
			data, err := state.Read("colors")
			if err != nil {
				return fwk.AsStatus(err)
			}
			data.(colors)[n.Node().Name+p.GetPod().Labels["color"]] += by
			return nil
		}
	}
	return &fakePlugin{
		name: "A",
		preFilter: func(state fwk.CycleState, _ *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
			c := colors{}
			for _, n := range nodes {
				for _, p := range n.GetPods() {
					c[n.Node().Name+p.GetPod().Labels["color"]]++
				}
			}
			state.Write("colors", c)
			return nil, nil
		},
		add: move(1), remove: move(-1),
		filter: func(state fwk.CycleState, p *v1.Pod, n fwk.NodeInfo) *fwk.Status {
			data, err := state.Read("colors")
			if err != nil {
				return fwk.AsStatus(err)
			}
			if data.(colors)[n.Node().Name+p.Labels["color"]] > 0 {
				return fwk.NewStatus(fwk.Unschedulable, "there is one of this color")
			}
			return nil
		},
	}
}

type colors map[string]int

func (c colors) Clone() fwk.StateData {
	copied := colors{}
	for key, n := range c {
		copied[key] = n
	}
	return copied
}

func before(calls, word string) string {
	head, _, _ := strings.Cut(calls, word)
	return strings.TrimSuffix(head, "; ")
}

// sorted sorts calls: the order of nodes is undefined.
func sorted(calls string) string {
	list := strings.Split(calls, "; ")
	slices.Sort(list)
	return strings.Join(list, "; ")
}
