package cycle_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// panics is an out-of-tree plugin that panics for one pod.
type panics struct{}

func (panics) Name() string { return "Panics" }
func (panics) Begin(a *Attempt) {
	if a.Pod.Name == "bad" {
		panic("index out of range")
	}
}

// TestAPanicCostsItsPodTheAttempt and nobody else anything: the pod is told why and backs off to
// the end, others are placed.
func TestAPanicCostsItsPodTheAttempt(t *testing.T) {
	w := newWorld(1, false, func() []Profile { return []Profile{profileWith(at{Extension: panics{}})} })
	w.putNode(aNode("n", "4"))
	w.deliver(Nodes)
	for _, name := range []string{"bad", "good"} {
		w.put(aPod(name, "1"))
		w.deliver(Pods)
	}
	said := w.tell(Tick{})
	for _, want := range []string{
		"panic while default/bad was decided: index out of range",
		"FailedScheduling of default/bad: internal error while the pod was decided: index out of range",
	} {
		if !strings.Contains(said, want) {
			t.Errorf("does not say %q:\n%s", want, said)
		}
	}
	if item := w.core.View().Queue.Get("uid-bad"); item == nil || item.Place() != queue.Backoff || !item.Ready().After(w.now) {
		t.Errorf("the pod is %+v", item)
	}
	if said := w.tell(Tick{}); !strings.Contains(said, "bind default/good to n") {
		t.Errorf("the other pod: %q", said)
	}
	if wake := w.core.Wake(w.now); !wake.After(w.now) {
		t.Error("it is tried again at once")
	}
}

// explodes is a filter that has to be asked: of the pod "odd" it wants nothing but to panic, when a
// node looks as it is told.
type explodes struct{ when func(n *cluster.Node) bool }

func (explodes) Name() string        { return "Explodes" }
func (explodes) Reads() plugins.Part { return plugins.Contents | plugins.Objects | plugins.Others }
func (e explodes) Filter(_ *cluster.Cluster, p *cluster.Pod) plugins.Judge {
	if p.Name != "odd" {
		return plugins.Judge{}
	}
	return plugins.Judge{Node: func(n *cluster.Node) *plugins.Rejection {
		if e.when(n) {
			panic("in the middle")
		}
		return nil
	}}
}

func withFilter(f plugins.Filter) Profile {
	p := profileWith(at{Extension: panics{}})
	p.Filters = append(p.Filters, f)
	return p
}

// TestAPanicOnAnotherGoroutineIsOneToo: filters are asked on all cores, and nobody can recover for
// a goroutine but itself.
func TestAPanicOnAnotherGoroutineIsOneToo(t *testing.T) {
	w := newWorld(1, false, func() []Profile {
		return []Profile{withFilter(explodes{func(n *cluster.Node) bool { return n.Name == "n300" }})}
	})
	for i := range 600 {
		w.putNode(aNode(fmt.Sprint("n", i), "4"))
		w.deliver(Nodes)
	}
	w.put(aPod("odd", "1"))
	w.deliver(Pods)
	if said := w.tell(Tick{}); !strings.Contains(said, "panic while default/odd was decided: in the middle") {
		t.Errorf("%s", said)
	}
}

// TestWhatAPanicLeftHalfDoneIsMended: one in the middle of a trial, with pods thought away from a
// node, takes nobody off it.
func TestWhatAPanicLeftHalfDoneIsMended(t *testing.T) {
	w := newWorld(1, false, func() []Profile {
		return []Profile{withFilter(explodes{func(n *cluster.Node) bool { return len(n.Pods) == 1 }})}
	})
	w.putNode(aNode("n", "4"))
	w.deliver(Nodes)
	for i := range 2 {
		low := aPod(fmt.Sprint("low-", i), "2")
		low.Spec.NodeName = "n"
		w.put(low)
		w.deliver(Pods)
	}
	node := w.core.View().Cluster.Node("n")
	odd := aPod("odd", "2")
	*odd.Spec.Priority = 10
	w.put(odd)
	w.deliver(Pods)
	said := w.tell(Tick{})
	if !strings.Contains(said, "in the middle (1 nodes mended)") {
		t.Fatalf("no panic in the middle of a trial: %s", said)
	}
	if len(node.Pods) != 2 || node.Requested.MilliCPU != 4000 || w.core.View().Cluster.Pods() != 2 || w.core.View().Cluster.Rooms[node.Index].RequestedCPU != 4000 {
		t.Errorf("on the node are %d pods of %d, with %d", len(node.Pods), w.core.View().Cluster.Pods(), node.Requested.MilliCPU)
	}
	if again := w.core.View().Cluster.Recount(); again != 0 {
		t.Errorf("%d nodes are still wrong", again)
	}
	w.put(aPod("good", "1"))
	w.deliver(Pods)
	if said := w.tell(Tick{}); strings.Contains(said, "bind default/good") {
		t.Errorf("the room of pods that are there was given away: %s", said)
	}
}
