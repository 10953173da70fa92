// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllershadow

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
)

var start = time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)

// world is a cluster run by foreign controllers, in virtual time.
type world struct {
	t         *testing.T
	now       time.Time
	ledger    *Ledger
	evictions *Evictions
	nodes     *Nodes
	all       map[string]*v1.Node
	silent    map[string]bool
	version   int
}

func newWorld(t *testing.T, nodes ...string) *world {
	w := &world{t: t, now: start, ledger: NewLedger(start), all: map[string]*v1.Node{}, silent: map[string]bool{}}
	w.evictions = NewEvictions(w.ledger, func(now time.Time) time.Time { return now })
	w.nodes = NewNodes(w.ledger, nodehealth.Defaults())
	w.evictions.Step(w.now, eviction.NodesListing{})
	w.nodes.Step(w.now, nodehealth.NodesListing{})
	for _, name := range nodes {
		w.all[name] = &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{v1.LabelTopologyZone: "z"}}}
		w.condition(name, v1.ConditionTrue, "")
	}
	w.evictions.Step(w.now, eviction.NodesListed{})
	w.nodes.Step(w.now, nodehealth.NodesListed{})
	w.evictions.Step(w.now, eviction.PodsListing{})
	w.evictions.Step(w.now, eviction.PodsListed{})
	w.nodes.Step(w.now, nodehealth.LeasesListed{})
	return w
}

// condition sets the condition Ready of a node in the role of the kubelet or, with a reason, of a
// controller.
func (w *world) condition(name string, status v1.ConditionStatus, reason string) {
	n := w.all[name]
	heartbeat := metav1.Time{Time: w.now}
	if reason != "" {
		heartbeat = n.Status.Conditions[0].LastHeartbeatTime
	}
	n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: status, Reason: reason, LastHeartbeatTime: heartbeat}}
	w.show(name)
}

func (w *world) taints(name string, keys ...string) {
	n := w.all[name]
	n.Spec.Taints = nil
	for _, key := range keys {
		taint := v1.Taint{Key: key, Effect: v1.TaintEffectNoSchedule, TimeAdded: &metav1.Time{Time: w.now}}
		n.Spec.Taints = append(n.Spec.Taints, taint)
		taint.Effect = v1.TaintEffectNoExecute
		n.Spec.Taints = append(n.Spec.Taints, taint)
	}
	w.show(name)
}

func (w *world) show(name string) {
	w.version++
	n := w.all[name].DeepCopy()
	n.ResourceVersion = time.Duration(w.version).String()
	w.evictions.Step(w.now, eviction.NodeSeen{Node: eviction.NodeOf(n)})
	w.nodes.Step(w.now, nodehealth.NodeSeen{Node: nodehealth.NodeOf(n)})
}

// run lets time pass, renewing the Leases of nodes that are not silent every ten seconds.
func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(look)
		if w.now.Sub(start)%(10*time.Second) == 0 {
			for name := range w.all {
				if !w.silent[name] {
					w.nodes.Step(w.now, nodehealth.LeaseSeen{Name: name, Renewed: w.now})
				}
			}
		}
		w.evictions.Step(w.now, eviction.Tick{})
		w.nodes.Step(w.now, nodehealth.Tick{})
	}
}

func (w *world) pod(name, node string, seconds int64) eviction.Pod {
	pod := eviction.Pod{Name: types.NamespacedName{Namespace: "default", Name: name}, UID: types.UID(name), Node: node, Bound: w.now}
	pod.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &seconds}}
	w.evictions.Step(w.now, eviction.PodSeen{Pod: pod})
	return pod
}

// evicted deletes a pod on behalf of the other controller.
func (w *world) evicted(pod eviction.Pod, marked bool) {
	pod.Terminating, pod.Marked = true, marked
	w.evictions.Step(w.now, eviction.PodSeen{Pod: pod})
	w.evictions.Step(w.now, eviction.PodGone{Name: pod.Name, UID: pod.UID})
}

func (w *world) wants(kind Kind, want map[Outcome]int) {
	w.t.Helper()
	report := w.ledger.Report(w.now)
	got := report.Tallies[kind]
	sum := 0
	for _, outcome := range Outcomes {
		sum += want[outcome]
		if got.Outcomes[outcome] != want[outcome] {
			w.t.Errorf("%s, %s: %d, want %d; all: %v", kind, outcome, got.Outcomes[outcome], want[outcome], report.Differences)
		}
	}
	if got.Decisions != sum {
		w.t.Errorf("%s: %d decisions, want %d", kind, got.Decisions, sum)
	}
}

func TestEvictionsOfBothAreCompared(t *testing.T) {
	w := newWorld(t, "n", "other")
	inTime, late, stuck, early, cancelled, byHand := w.pod("in-time", "n", 30), w.pod("late", "n", 30), w.pod("stuck", "n", 30), w.pod("early", "n", 100), w.pod("cancelled", "other", 30), w.pod("by-hand", "n", 300)
	w.pod("stays", "other", 300)
	w.taints("n", "maintenance")
	w.taints("other", "maintenance")
	w.run(10 * time.Second)
	w.taints("other")
	w.evicted(byHand, false)
	w.run(21 * time.Second)
	w.evicted(inTime, true)
	w.evicted(early, true)
	w.evicted(cancelled, true) // its taint was removed
	w.run(25 * time.Second)
	w.evicted(late, true)
	w.run(2 * time.Minute)
	w.evicted(stuck, true)
	w.run(time.Minute)
	w.wants(Eviction, map[Outcome]int{AtOnce: 1, Later: 1, Earlier: 1, OnlyBerth: 1, OnlyOther: 1})
	report := w.ledger.Report(w.now)
	if max := report.Tallies[Eviction].MaxLateSeconds; max < 24 || max > 27 {
		t.Errorf("at most %v s late, want about 26", max)
	}
	for _, d := range report.Differences[:2] {
		if d.Object != "default/stuck" && d.Object != "default/cancelled" {
			t.Errorf("a wide difference is %+v", d)
		}
	}
	if a := report.Tallies[Eviction].Agreement(); a < 0.59 || a > 0.61 {
		t.Errorf("agreement %v, want 3 of 5", a)
	}
}

// TestALeavingPodIsJudgedOnce verifies that a terminating pod is judged once, however long it
// terminates, and even if it is written and listed again meanwhile.
func TestALeavingPodIsJudgedOnce(t *testing.T) {
	w := newWorld(t, "n", "other")
	right, wrong := w.pod("right", "n", 10), w.pod("wrong", "other", 10)
	w.taints("n", "maintenance")
	w.run(11 * time.Second)
	for range 10 {
		for _, pod := range []eviction.Pod{right, wrong} {
			pod.Terminating, pod.Marked = true, true
			w.evictions.Step(w.now, eviction.PodSeen{Pod: pod})
		}
		w.run(10 * time.Second)
	}
	w.wants(Eviction, map[Outcome]int{AtOnce: 1, OnlyOther: 1})
}

// TestWatchesMayCross verifies that an eviction counts as simultaneous even if the pod's deletion
// is observed shortly before the taint, or shortly after the removal of the taint.
func TestWatchesMayCross(t *testing.T) {
	w := newWorld(t, "n")
	before, after := w.pod("before", "n", 0), w.pod("after", "n", 0)
	w.evicted(before, true)
	w.run(time.Second)
	w.taints("n", "maintenance")
	w.run(time.Second)
	w.taints("n")
	w.run(time.Second)
	w.evicted(after, true)
	w.run(time.Minute)
	w.wants(Eviction, map[Outcome]int{AtOnce: 2})
}

const (
	unreachable = v1.TaintNodeUnreachable
	notReady    = v1.TaintNodeNotReady
)

// TestTaintsOfBothAreCompared verifies the outcomes for three silent nodes and a healthy one. The
// other controller taints the first node in time, the second half a minute late and the third
// never, and it also taints the healthy node.
func TestTaintsOfBothAreCompared(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "d", "e", "f", "g", "h")
	w.run(time.Minute)
	for _, name := range []string{"a", "b", "c"} {
		w.silent[name] = true
	}
	w.run(50 * time.Second) // Berth finds the nodes silent in the next pass, and may taint one node each ten seconds
	down := func(name string) {
		w.condition(name, v1.ConditionUnknown, "NodeStatusUnknown")
		w.taints(name, unreachable)
	}
	down("a")
	w.run(30 * time.Second)
	down("b")
	w.taints("h", notReady)
	w.run(2 * time.Minute)
	got := w.ledger.Report(w.now)
	count := map[string]int{}
	for _, d := range got.Differences {
		count[d.Object+" "+string(d.Outcome)]++
	}
	if count["c only-berth"] != 2 || count["h only-other"] != 2 || count["b later"] == 0 || count["a only-berth"]+count["a only-other"] > 0 {
		t.Errorf("differences %v", got.Differences)
	}

	// The node is back, and both controllers remove the taints within a moment.
	before := got.Tallies[Taint].Outcomes[AtOnce]
	w.silent = map[string]bool{}
	w.condition("a", v1.ConditionTrue, "")
	w.taints("a")
	w.run(time.Minute)
	if same := w.ledger.Report(w.now).Tallies[Taint].Outcomes[AtOnce]; same != before+2 {
		t.Errorf("%d decisions at the same time, want both of node a's taints removed: %d; %v", same, before+2, w.ledger.Report(w.now).Differences)
	}
}

// TestAQuietClusterHasNoDifferences verifies that an hour of heartbeats has no differences, even if
// both sides taint a cordoned node meanwhile.
func TestAQuietClusterHasNoDifferences(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.run(30 * time.Minute)
	w.all["a"].Spec.Unschedulable = true
	w.show("a")
	w.all["a"].Spec.Taints = []v1.Taint{{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule}}
	w.run(time.Second)
	w.show("a")
	w.run(30 * time.Minute)
	w.wants(Taint, map[Outcome]int{AtOnce: 1})
	w.wants(Eviction, nil)
}

// TestTheCopyKeepsTheLabelsThatBerthHasSet verifies that the copy keeps these labels even if Berth
// later writes something else to the node, or one label of two, so that they are not written again.
func TestTheCopyKeepsTheLabelsThatBerthHasSet(t *testing.T) {
	w := newWorld(t, "n")
	node := w.all["n"]
	node.Labels[v1.LabelOSStable] = "linux"
	writes := func(change func()) int {
		change()
		before := w.nodes.version
		w.show("n")
		return w.nodes.version - before - 1 // one copy is of the node itself
	}
	if n := writes(func() {}); n != 1 {
		t.Fatalf("%d writes for a label, want 1", n)
	}
	if n := writes(func() { node.Spec.Unschedulable = true }); n != 1 {
		t.Fatalf("%d writes for a taint, want 1", n)
	}
	if n := writes(func() { node.Labels[v1.LabelArchStable] = "arm64" }); n != 1 {
		t.Fatalf("%d writes for another label, want 1", n)
	}
	if labels := w.nodes.nodes["n"].labels; labels["beta.kubernetes.io/os"] != "linux" || labels["beta.kubernetes.io/arch"] != "arm64" {
		t.Errorf("the copy has %v", labels)
	}
}
