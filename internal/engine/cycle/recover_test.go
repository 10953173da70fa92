// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
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

// TestAPanicCostsItsPodTheAttempt verifies that a panic affects no other pod: the condition of the
// pod contains the reason, and the pod backs off, while other pods are placed.
func TestAPanicCostsItsPodTheAttempt(t *testing.T) {
	w := newWorld(1, false, func() []Profile { return []Profile{profileWith(at{Extension: panics{}})} })
	w.putNode(aNode("n", "4"))
	w.deliver(Nodes)
	for _, name := range []string{"bad", "good"} {
		w.put(aPod(name, "1"))
		w.deliver(Pods)
	}
	text := w.tell(Tick{})
	for _, want := range []string{
		"panic while default/bad was decided: index out of range",
		"FailedScheduling of default/bad: internal error while the pod was decided: index out of range",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("does not say %q:\n%s", want, text)
		}
	}
	if item := w.core.View().Queue.Get("uid-bad"); item == nil || item.Place() != queue.Backoff || !item.Ready().After(w.now) {
		t.Errorf("the pod is %+v", item)
	}
	if text := w.tell(Tick{}); !strings.Contains(text, "bind default/good to n") {
		t.Errorf("the other pod: %q", text)
	}
	if wake := w.core.Wake(w.now); !wake.After(w.now) {
		t.Error("it is tried again at once")
	}
}

// bursts is an out-of-tree plugin at all points called on the owner; at one of them it panics for
// the pod "bad".
type bursts struct {
	point string
	given int // number of Unreserve calls
}

func (*bursts) Name() string { return "Bursts" }

func (x *bursts) at(point, pod string) {
	if x.point == point && pod == "bad" {
		panic("at " + point)
	}
}

func (x *bursts) Begin(a *Attempt)   { x.at("Begin", a.Pod.Name) }
func (x *bursts) Assumed(a *Attempt) { x.at("Assumed", a.Pod.Name) }
func (x *bursts) Unreserve(*Attempt) { x.given++ }
func (x *bursts) Reserve(a *Attempt) *plugins.Rejection {
	x.at("Reserve", a.Pod.Name)
	return nil
}

func (x *bursts) Permit(a *Attempt) (*plugins.Rejection, time.Duration) {
	x.at("Permit", a.Pod.Name)
	return nil, 0
}

func (x *bursts) RunPostFilter(a *Attempt, _ func() *decide.Evaluation) PostFilterResult {
	x.at("PostFilter", a.Pod.Name)
	return PostFilterResult{}
}

func (x *bursts) Reads() plugins.Part { return plugins.Contents | plugins.Objects | plugins.Others }

func (x *bursts) Filter(_ *cluster.Cluster, p *cluster.Pod) plugins.Judge {
	x.at("PreFilter", p.Name())
	return plugins.Judge{Node: func(*cluster.Node) *plugins.Rejection {
		x.at("Filter", p.Name())
		return nil
	}}
}

func (x *bursts) Score(_ *cluster.Cluster, p *cluster.Pod, _ []*cluster.Node) plugins.Scoring {
	x.at("PreScore", p.Name())
	return plugins.Scoring{
		Node:      func(*cluster.Node) (int64, error) { x.at("Score", p.Name()); return 1, nil },
		Normalize: func([]*cluster.Node, []int64) { x.at("NormalizeScore", p.Name()) },
	}
}

// TestAPanicAtAnyPointOfAnAttemptCostsItsPodTheAttempt verifies that the plugins' reservations and
// the room are released, and that the next pod is placed.
func TestAPanicAtAnyPointOfAnAttemptCostsItsPodTheAttempt(t *testing.T) {
	for _, point := range []string{
		"Begin", "PreFilter", "Filter", "PostFilter", "PreScore", "Score", "NormalizeScore", "Reserve", "Permit", "Assumed",
	} {
		t.Run(point, func(t *testing.T) {
			x := &bursts{point: point}
			w := newWorld(1, false, func() []Profile {
				p := profileWith(at{x, []plugins.Point{plugins.Reserve, plugins.Permit, plugins.PostFilter}})
				p.Filters = append(p.Filters, x)
				p.Scorers = append(p.Scorers, plugins.Weighted{Scorer: x, Weight: 1})
				return []Profile{p}
			})
			for _, name := range []string{"n", "m"} {
				w.putNode(aNode(name, "4"))
				w.deliver(Nodes)
			}
			bad := aPod("bad", "4")
			if point == "PostFilter" {
				bad = aPod("bad", "5")
			}
			w.put(bad)
			w.deliver(Pods)
			if text := w.tell(Tick{}); !strings.Contains(text, "panic while default/bad was decided: at "+point) {
				t.Fatalf("%s", text)
			}
			if item := w.core.View().Queue.Get("uid-bad"); item == nil || item.Place() != queue.Backoff || !item.Ready().After(w.now) {
				t.Errorf("the pod is %+v", item)
			}
			books := w.core.Books()
			if len(books.Assumed)+books.Handlers != 0 || w.core.View().Cluster.Pods() != 0 || w.core.View().Cluster.Recount() != 0 {
				t.Errorf("under way: %+v, %d on nodes", books, w.core.View().Cluster.Pods())
			}
			if reserved := point == "Reserve" || point == "Permit" || point == "Assumed"; reserved != (x.given == 1) {
				t.Errorf("given back %d times", x.given)
			}
			for _, name := range []string{"one", "two"} {
				w.put(aPod(name, "4"))
				w.deliver(Pods)
				if text := w.tell(Tick{}); !strings.Contains(text, "bind default/"+name+" to ") {
					t.Errorf("another pod: %q", text)
				}
			}
		})
	}
}

// explodes is a filter that judges nodes only for the pod "odd", and panics as soon as a node meets
// the condition.
type explodes struct{ when func(n *cluster.Node) bool }

func (explodes) Name() string        { return "Explodes" }
func (explodes) Reads() plugins.Part { return plugins.Contents | plugins.Objects | plugins.Others }
func (e explodes) Filter(_ *cluster.Cluster, p *cluster.Pod) plugins.Judge {
	if p.Name() != "odd" {
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

// TestAPanicOnAnotherGoroutineIsOneToo verifies that panics of filters on other goroutines are
// handled. Filters run on all CPU cores, and a goroutine can only recover from its own panic.
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
	if text := w.tell(Tick{}); !strings.Contains(text, "panic while default/odd was decided: in the middle") {
		t.Errorf("%s", text)
	}
}

// TestWhatAPanicLeftHalfDoneIsMended verifies that a panic during a trial with hypothetically
// removed pods does not remove any of these pods.
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
	text := w.tell(Tick{})
	if !strings.Contains(text, "in the middle (1 nodes mended)") {
		t.Fatalf("no panic in the middle of a trial: %s", text)
	}
	if len(node.Pods) != 2 || node.Requested.MilliCPU != 4000 || w.core.View().Cluster.Pods() != 2 || w.core.View().Cluster.Rooms[node.Index].RequestedCPU != 4000 {
		t.Errorf("on the node are %d pods of %d, with %d", len(node.Pods), w.core.View().Cluster.Pods(), node.Requested.MilliCPU)
	}
	if again := w.core.View().Cluster.Recount(); again != 0 {
		t.Errorf("%d nodes are still wrong", again)
	}
	w.put(aPod("good", "1"))
	w.deliver(Pods)
	if text := w.tell(Tick{}); strings.Contains(text, "bind default/good") {
		t.Errorf("the room of pods that are there was given away: %s", text)
	}
}

// TestTheSameIsDecidedAfterAPanic verifies that two cores with the same events return the same
// actions, even if several profiles draw new seeds after a panic. Otherwise a journal could not be
// replayed.
func TestTheSameIsDecidedAfterAPanic(t *testing.T) {
	names := []string{"one", "two", "three", "four"}
	run := func() (text string) {
		w := newWorld(1, false, func() (all []Profile) {
			for _, name := range names {
				p := profileWith(at{Extension: panics{}})
				own := *p.Profile
				own.SchedulerName = name
				p.Profile = &own
				all = append(all, p)
			}
			return all
		})
		for i := range 16 {
			w.putNode(aNode(fmt.Sprint("n", i), "4"))
			w.deliver(Nodes)
		}
		for _, pod := range []string{"bad", "first", "second", "third", "fourth"} {
			p := aPod(pod, "1")
			p.Spec.SchedulerName = names[len(pod)%len(names)]
			w.put(p)
			w.deliver(Pods)
		}
		for range 5 {
			text += w.tell(Tick{})
		}
		return text
	}
	first := run()
	if !strings.Contains(first, "panic while") || !strings.Contains(first, "bind default/fourth") {
		t.Fatalf("not what is to be compared:\n%s", first)
	}
	for range 10 {
		if again := run(); again != first {
			t.Fatalf("said first\n%sand then\n%s", first, again)
		}
	}
}

// strike is a plugin that panics exactly once, at its at-th call, regardless of the extension
// point.
type strike struct{ at, calls int }

func (*strike) Name() string { return "Strike" }

func (s *strike) hit() *plugins.Rejection {
	if s.calls++; s.calls == s.at {
		panic("struck")
	}
	return nil
}

func (s *strike) Reserve(*Attempt) *plugins.Rejection { return s.hit() }
func (s *strike) Unreserve(*Attempt)                  {}
func (s *strike) Permit(*Attempt) (*plugins.Rejection, time.Duration) {
	return s.hit(), 0
}

// strikesReserver makes the plugin's reservations before a pod is assumed on its node, as for
// volumes and devices.
type strikesReserver struct {
	*strike
	taken map[types.UID]int
}

func (s strikesReserver) Reserve(_ *cluster.Cluster, p *cluster.Pod, _ *cluster.Node) (undo func(), err error) {
	s.hit()
	s.taken[p.UID()]++
	return func() { s.taken[p.UID()]-- }, nil
}

// strikesFilter is a filter of the plugin. Its declared reads determine when it is called, and
// which of its verdicts are cached.
type strikesFilter struct {
	*strike
	reads plugins.Part
}

func (s strikesFilter) Reads() plugins.Part { return s.reads }
func (s strikesFilter) Filter(*cluster.Cluster, *cluster.Pod) plugins.Judge {
	return plugins.Judge{Node: func(*cluster.Node) *plugins.Rejection { return s.hit() }}
}

// TestAPanicAtAnyMomentLeavesDecisionsRight verifies that a panic in any plugin call, during any
// computation or cache update, leaves no lasting damage. In the end every feasible pod is placed,
// and the decisions equal those of a cluster built from scratch.
func TestAPanicAtAnyMomentLeavesDecisionsRight(t *testing.T) {
	for name, reads := range map[string]plugins.Part{
		"labels": plugins.Labels, "contents": plugins.Contents, "everything": plugins.Contents | plugins.Objects | plugins.Others,
	} {
		t.Run(name, func(t *testing.T) {
			moments := 0
			for calls := 1; moments < calls; {
				moments++
				calls = struckAt(t, moments, reads)
				if t.Failed() {
					t.Fatalf("at call %d", moments)
				}
			}
			if moments < 30 {
				t.Errorf("%d moments only", moments)
			}
		})
	}
}

func struckAt(t *testing.T, moment int, reads plugins.Part) (calls int) {
	x := &strike{at: moment}
	p := profileWith(at{x, []plugins.Point{plugins.Reserve, plugins.Permit}})
	p.Filters = append(p.Filters, strikesFilter{x, reads})
	taken := map[types.UID]int{}
	p.Reservers = append(p.Reservers, strikesReserver{x, taken}, strikesReserver{x, taken})
	w := newWorld(1, false, func() []Profile { return []Profile{p} })
	w.gangs.gates = groups.Gates{Generic: true}
	w.options.Groups = w.gangs.gates
	w.kinds = append(w.kinds, PodGroups)
	w.start()
	shaped := func(name, cpu string, priority int32, shape int) *v1.Pod {
		pod := aPod(name, cpu)
		pod.Labels, *pod.Spec.Priority = map[string]string{"app": "z"}, priority
		same := &metav1.LabelSelector{MatchLabels: pod.Labels}
		switch shape % 3 {
		case 1:
			pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "zone", WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: same}}
		case 2:
			pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{
				{Weight: 10, PodAffinityTerm: v1.PodAffinityTerm{LabelSelector: same, TopologyKey: v1.LabelHostname}}}}}
		}
		return pod
	}
	zone := func(name, zone string) *v1.Node {
		n := aNode(name, "4")
		n.Labels["zone"] = zone
		return n
	}
	for i := range 4 {
		w.putNode(zone(fmt.Sprint("n", i), string(rune('a'+i%2))))
	}
	for i := range 6 {
		w.put(shaped(fmt.Sprint("p", i), "1", 0, i))
	}
	w.settle(time.Second)
	closed := zone("n2", "a")
	closed.Spec.Unschedulable = true
	for _, n := range []*v1.Node{zone("n1", "c"), closed, zone("n4", "a")} {
		w.putNode(n)
	}
	for i := range 6 {
		w.put(shaped(fmt.Sprint("q", i), []string{"1", "2"}[i/3], 0, i))
	}
	w.settle(time.Second)
	w.putNode(zone("n0", "b"))
	w.putNode(zone("n2", "a"))
	g := gangOf("g", 3)
	g.Spec.Priority = new(int32(5))
	w.putGroup(g)
	for i := range 3 {
		member := shaped(fmt.Sprint("g", i), "1", 5, i)
		member.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		w.put(member)
	}
	w.settle(time.Second)
	w.put(shaped("high", "4", 10, 0))
	w.settle(10 * time.Minute)

	// rebuilt returns a cluster built from scratch from the current state.
	rebuilt := func() *cluster.Cluster {
		c := cluster.New()
		for _, name := range sorted(w.nodes) {
			c.SetNode(w.nodes[name])
		}
		for _, uid := range sorted(w.pods) {
			if w.pods[uid].Spec.NodeName != "" {
				c.SetPod(w.pods[uid])
			}
		}
		for _, uid := range sorted(w.pods) {
			if pod := w.pods[uid]; pod.Spec.NodeName == "" && decide.NewPlain(c, plugins.Default()).Evaluate(c.Pending(pod)).Feasible > 0 {
				t.Errorf("%s is not placed: %v", pod.Name, w.core.View().Queue.Get(uid))
			}
		}
		return c
	}
	for shape := range 3 {
		probe := shaped(fmt.Sprint("probe", shape), "1", 20, shape)
		var best []string
		truth := rebuilt()
		for _, v := range decide.NewPlain(truth, plugins.Default()).Evaluate(truth.Pending(probe)).Best() {
			best = append(best, v.Node.Name)
		}
		w.put(probe)
		w.settle(time.Second)
		if node := w.pods[probe.UID].Spec.NodeName; len(best) > 0 && !slices.Contains(best, node) {
			t.Errorf("a probe of shape %d goes to %q, and best are %v", shape, node, best)
		}
	}
	rebuilt()
	if n := w.core.View().Cluster.Recount(); n != 0 {
		t.Errorf("%d nodes are wrong", n)
	}
	for uid, n := range taken {
		want := 0
		if pod := w.pods[uid]; pod == nil || pod.Spec.NodeName != "" {
			want = 2 // kept for a pod that is or was bound
		}
		if n != want {
			t.Errorf("%d things are kept for %s, want %d", n, uid, want)
		}
	}
	panics := 0
	for _, broken := range w.broken {
		if strings.Contains(broken, "panic: struck") {
			panics++
			continue
		}
		t.Error(broken)
	}
	if moment <= x.calls && panics != 1 {
		t.Errorf("%d panics at call %d of %d", panics, moment, x.calls)
	}
	return x.calls
}

// TestAShieldIsLoweredAfterAPanic verifies that the pods of a group that is preempted as a whole,
// which have the highest priority during the search for victims, lose this priority even after a
// panic.
func TestAShieldIsLoweredAfterAPanic(t *testing.T) {
	profile := withFilter(explodes{func(n *cluster.Node) bool { return len(n.Pods) == 1 }})
	core, err := New(Options{Profiles: []Profile{profile}, Groups: groups.Gates{Generic: true}})
	if err != nil {
		t.Fatal(err)
	}
	tell := func(e Event) (text string) {
		for _, a := range core.Step(begin, e) {
			text += a.String()
		}
		return text
	}
	kinds := []Kind{Nodes, Pods, PodGroups}
	tell(Follows{kinds})
	for _, kind := range kinds {
		tell(Listing{kind})
		tell(Listed{kind})
	}
	tell(Led{})
	tell(Seen{Nodes, aNode("n", "2")})
	g := gangOf("g", 1)
	g.Spec.Priority, g.Spec.DisruptionMode = new(int32(1000)), asOne()
	tell(Seen{PodGroups, g})
	for _, name := range []string{"one", "alone"} {
		p := aPod(name, "1")
		p.Spec.NodeName = "n"
		if name == "one" {
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		}
		tell(Seen{Pods, p})
	}
	odd := aPod("odd", "1")
	*odd.Spec.Priority = 10
	tell(Seen{Pods, odd})
	if text := tell(Tick{}); !strings.Contains(text, "panic while default/odd was decided: in the middle") {
		t.Fatalf("no panic: %s", text)
	}
	if p := core.View().Cluster.Pod("uid-one"); p == nil || p.Class.Priority != 0 {
		t.Errorf("the pod of the group is %+v", p)
	}
}
