// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/reconstruct"
)

// watched drives a shadow and counts its judgments.
type watched struct {
	t     *testing.T
	core  *Core
	now   time.Time
	judge map[string]int // number of judgements by result: best, worse, unclear
}

func newWatched(t *testing.T, nodes ...*v1.Node) *watched {
	t.Helper()
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Shadow: reconstruct.New})
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{t: t, core: core, now: begin, judge: map[string]int{}}
	w.step(Follows{Kinds: []Kind{Nodes, Pods}})
	w.step(Listing{Nodes})
	w.step(Listing{Pods})
	for _, n := range nodes {
		w.step(Seen{Nodes, n})
	}
	w.step(Listed{Nodes})
	w.step(Listed{Pods})
	return w
}

func (w *watched) step(e Event) {
	w.now = w.now.Add(time.Millisecond)
	for _, action := range w.core.Step(w.now, e) {
		a, ok := action.(Compared)
		switch {
		case !ok:
		case slices.ContainsFunc(a.Evaluation.Best(), func(v *decide.NodeVerdict) bool { return v.Node.Name == a.Node }):
			w.judge["best"]++
		case a.Unclear:
			w.judge["unclear"]++
		default:
			w.judge["worse"]++
		}
	}
}

// end lets the shadow judge all remaining events.
func (w *watched) end() {
	w.now = w.now.Add(reconstruct.MaxBindingDelay)
	w.step(Tick{})
}

func onNode(pod *v1.Pod, node string) *v1.Pod {
	bound := pod.DeepCopy()
	bound.Spec.NodeName = node
	return bound
}

// decided lets a scheduler decide the pods in their order, and returns the nodes.
func decided(t *testing.T, nodes []*v1.Node, pods []*v1.Pod) (where []string) {
	t.Helper()
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}})
	if err != nil {
		t.Fatal(err)
	}
	core.Step(begin, Follows{})
	core.Step(begin, Led{})
	for _, n := range nodes {
		core.Step(begin, Seen{Nodes, n})
	}
	for _, p := range pods {
		core.Step(begin, Seen{Pods, p})
	}
	for range pods {
		for _, action := range slices.Clone(core.Step(begin, Tick{})) {
			if bind, ok := action.(Bind); ok {
				if want := pods[len(where)].Name; bind.Attempt.Pod.Name != want {
					t.Fatalf("%s is decided before %s", bind.Attempt.Pod.Name, want)
				}
				where = append(where, bind.Attempt.Node)
			}
		}
	}
	if len(where) != len(pods) {
		t.Fatalf("%d of %d decided", len(where), len(pods))
	}
	return where
}

// TestAShadowOfItselfFindsNoDifference verifies that a shadow finds no difference if the bindings
// of a burst are written 64 at a time, in an order different from the decisions.
func TestAShadowOfItselfFindsNoDifference(t *testing.T) {
	for burst := range uint64(3) {
		rng := rand.New(rand.NewPCG(burst, 1))
		var nodes []*v1.Node
		for i := range 20 {
			nodes = append(nodes, aNode(fmt.Sprintf("n%d", i), fmt.Sprint(24+8*(i%3))))
		}
		var pods []*v1.Pod
		for i := range 1000 {
			pods = append(pods, aPod(fmt.Sprintf("p%d", i), fmt.Sprintf("%dm", 100+100*rng.IntN(4))))
		}
		where := decided(t, nodes, pods)

		w := newWatched(t, nodes...)
		for _, p := range pods {
			w.step(Seen{Pods, p})
		}
		for waiting, next := []int{}, 0; len(waiting) > 0 || next < len(pods); {
			for ; len(waiting) < 64 && next < len(pods); next++ {
				waiting = append(waiting, next)
			}
			i := rng.IntN(len(waiting))
			p := pods[waiting[i]]
			w.step(Seen{Pods, onNode(p, where[waiting[i]])})
			waiting = slices.Delete(waiting, i, i+1)
		}
		w.end()
		if w.judge["best"] != len(pods) {
			t.Errorf("burst %d: %v", burst, w.judge)
		}
	}
}

// TestADifferenceThatIsOneInAllStatesIsTold verifies that a difference in all possible states is
// reported, and that a difference that depends on an unknown order is not reported.
func TestADifferenceThatIsOneInAllStatesIsTold(t *testing.T) {
	nodes := []*v1.Node{aNode("small", "8"), aNode("large", "32")}
	for name, row := range map[string]struct {
		pods, bound int
		rejected    bool // the last pod was found unschedulable earlier
		removed     bool // a pod is removed in the meantime
		want        map[string]int
	}{
		"alone":             {1, 1, false, false, map[string]int{"worse": 1}},
		"in order":          {12, 12, false, false, map[string]int{"worse": 12}},
		"every order tried": {6, 6, true, false, map[string]int{"worse": 6}},
		"order unknown":     {12, 12, true, false, map[string]int{"unclear": 12}},
		"changed meanwhile": {1, 1, false, true, map[string]int{"unclear": 1}},
	} {
		w := newWatched(t, nodes...)
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "set", UID: "set", Generation: 1}}
		w.step(Seen{ReplicaSets, set})
		other := onNode(aPod("other", "100m"), "large")
		other.Spec.SchedulerName = "another"
		w.step(Seen{Pods, other})
		w.now = w.now.Add(2 * reconstruct.MaxBindingDelay)
		var pods []*v1.Pod
		for i := range row.pods {
			p := aPod(fmt.Sprintf("p%d", i), "100m")
			pods = append(pods, p)
			w.step(Seen{Pods, p})
			if row.rejected {
				seen := p.DeepCopy()
				seen.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse}}
				w.step(Seen{Pods, seen})
			}
		}
		if row.removed {
			w.step(Gone{Pods, other})
		}
		w.step(Seen{ReplicaSets, set.DeepCopy()}) // only its status, the number of pods, has changed
		for _, p := range pods[:row.bound] {
			bound := onNode(p, "small")
			w.step(Seen{Pods, bound})
			running := bound.DeepCopy()
			running.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", Resources: &v1.ResourceRequirements{Requests: p.Spec.Containers[0].Resources.Requests}}}
			w.step(Seen{Pods, running})
		}
		w.end()
		if fmt.Sprint(w.judge) != fmt.Sprint(row.want) {
			t.Errorf("%s: %v, want %v", name, w.judge, row.want)
		}
	}
}
