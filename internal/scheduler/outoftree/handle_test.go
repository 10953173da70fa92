// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
)

func evaluation(f *fixture, a *cycle.Attempt) func() *decide.Evaluation {
	return func() *decide.Evaluation { return f.decider.Plain().Evaluate(a.Waiting) }
}

// capacity returns a PostFilter that searches for a node by itself, like plugins that preempt. On
// many nodes concurrently, it removes pods one by one and runs all filters, including Berth's.
func capacity(f *fixture) func(p *v1.Pod, verdicts fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	return func(p *v1.Pod, verdicts fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
		h, ctx := f.handle(), context.Background()
		state := f.framework().current.state
		nodes, err := verdicts.NodesForStatusCode(h.SnapshotSharedLister().NodeInfos(), fwk.Unschedulable)
		if err != nil {
			return nil, fwk.AsStatus(err)
		}
		victims := make([]atomic.Int32, len(nodes))
		h.Parallelizer().Until(ctx, len(nodes), func(i int) {
			copied, node := state.Clone(), nodes[i].Snapshot()
			for _, victim := range nodes[i].GetPods() {
				if corev1.PodPriority(victim.GetPod()) >= corev1.PodPriority(p) {
					continue
				}
				if err := node.RemovePod(klog.Background(), victim.GetPod()); err != nil {
					f.Error(err)
				}
				if status := h.RunPreFilterExtensionRemovePod(ctx, copied, p, victim, node); !status.IsSuccess() {
					f.Error(status.Message())
				}
				victims[i].Add(1)
				if status := h.RunFilterPluginsWithNominatedPods(ctx, copied, p, node); status.IsSuccess() {
					return
				} else if status.IsError() {
					f.Error(status.Message())
				}
			}
			victims[i].Store(1000)
		}, "test")
		best := 0
		for i := range victims {
			if victims[i].Load() < victims[best].Load() {
				best = i
			}
		}
		name := nodes[best].Node().Name
		return &fwk.PostFilterResult{NominatingInfo: &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: name}}, nil
	}
}

func TestAPluginThatPreemptsAsksAllFilters(t *testing.T) {
	a := oneOfAKind()
	a.quiet = true
	f := newFixture(t, a)
	a.post = capacity(f)
	for _, name := range []string{"n1", "n2", "n3"} {
		f.node(name, 4)
	}
	f.has(pod("r1", "2", on("n1"), label("color", "red")))
	f.has(pod("g1", "2", on("n1"), label("color", "green")))
	f.has(pod("g2", "4", on("n2"), label("color", "green")))
	f.has(pod("g3", "4", on("n3"), label("color", "green"), priority(100)))
	before := f.cluster.Log.Len()
	attempt, _ := f.decide(pod("p", "4", label("color", "red"), priority(10)))
	got := rescue(f, attempt)
	if got.Nominate == nil || *got.Nominate != "n2" {
		t.Errorf("got %+v, want n2, where one pod has to go; on n1 it is two", got)
	}
	if f.cluster.Log.Len() != before || podsNow(f, "n1") != "2" {
		t.Error("the cluster is not what it was")
	}
}

func podsNow(f *fixture, node string) string {
	return string(rune('0' + len(f.cluster.Node(node).Pods)))
}

// TestFiltersCanBeAskedWhileAPluginIsAskedAlone verifies that a plugin that calls back from Filter,
// or while it is not being called, gets an error.
func TestFiltersCanBeAskedWhileAPluginIsAskedAlone(t *testing.T) {
	var within *fwk.Status
	var f *fixture
	f = newFixture(t, &fakePlugin{name: "A", quiet: true,
		filter: func(state fwk.CycleState, p *v1.Pod, n fwk.NodeInfo) *fwk.Status {
			within = f.handle().RunFilterPlugins(context.Background(), state, p, n)
			return nil
		},
	})
	f.node("n1", 4)
	f.node("n2", 4)
	a, _ := f.decide(pod("p", "1"))
	if !within.IsError() || !strings.Contains(within.Message(), "PostFilter") {
		t.Errorf("from Filter: %v", within)
	}
	info, _ := f.handle().SnapshotSharedLister().NodeInfos().Get("n1")
	if status := f.handle().RunFilterPlugins(t.Context(), NewState(), a.Pod, info); !status.IsError() {
		t.Errorf("from nowhere: %v", status)
	}
	if _, status := f.handle().RunScorePlugins(t.Context(), NewState(), a.Pod, nil); !status.IsError() {
		t.Errorf("scores from nowhere: %v", status)
	}
}

// TestAPluginThatSupposesMovesOnOtherNodesIsUnderstood verifies that Berth's own filters take into
// account that a plugin hypothetically removed a pod from another node.
func TestAPluginThatSupposesMovesOnOtherNodesIsUnderstood(t *testing.T) {
	far := func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{},
		}}}}
	}
	zone := func(n *v1.Node) { n.Labels["zone"] = "z" }
	var with, without *fwk.Status
	a := &fakePlugin{name: "A", quiet: true}
	f := newFixture(t, a)
	a.post = func(p *v1.Pod, _ fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
		h, state := f.handle(), f.framework().current.state.Clone()
		n1, _ := h.SnapshotSharedLister().NodeInfos().Get("n1")
		n2, _ := h.SnapshotSharedLister().NodeInfos().Get("n2")
		with = h.RunFilterPlugins(t.Context(), state, p, n2)
		gone := n1.Snapshot()
		neighbour := n1.GetPods()[0]
		if err := gone.RemovePod(klog.Background(), neighbour.GetPod()); err != nil {
			t.Error(err)
		}
		h.RunPreFilterExtensionRemovePod(t.Context(), state, p, neighbour, gone)
		without = h.RunFilterPlugins(t.Context(), state, p, n2)
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	f.node("n1", 4, zone)
	f.node("n2", 4, zone)
	f.has(pod("neighbour", "1", on("n1"), label("a", "b")))
	attempt, _ := f.decide(pod("p", "1", far))
	rescue(f, attempt)
	if with.Code() != fwk.Unschedulable || with.Plugin() != "InterPodAffinity" || !without.IsSuccess() {
		t.Errorf("with the neighbour: %v; without: %v", with, without)
	}
}

func TestScorersCanBeAsked(t *testing.T) {
	a := &fakePlugin{name: "A", quiet: true, score: preferring("n2")}
	f := newConfigured(t, onlyScoring, a, &fakePlugin{name: "B", quiet: true})
	var scores []fwk.NodePluginScores
	a.permit = nil
	a.reserve = func(p *v1.Pod, _ string) *fwk.Status {
		h, state := f.handle(), f.framework().current.state
		nodes, _ := h.SnapshotSharedLister().NodeInfos().List()
		if status := h.RunPreScorePlugins(t.Context(), state, p, nodes); !status.IsSuccess() {
			return status
		}
		var status *fwk.Status
		scores, status = h.RunScorePlugins(t.Context(), state, p, nodes)
		return status
	}
	f.node("n1", 4)
	f.node("n2", 4)
	attempt, _ := f.decide(pod("p", "1"))
	f.expect("reserve", told(extensionOf[cycle.Reserver](f, "A").Reserve(attempt)), "passes")
	if len(scores) != 2 || scores[0].TotalScore != 0 || scores[1].TotalScore != 300 || scores[1].Scores[0].Name != "A" {
		t.Errorf("got %+v", scores)
	}
}

// TestNominationsByPlugins verifies that nominations are immediately visible to the plugin and to
// decisions.
func TestNominationsByPlugins(t *testing.T) {
	var within int
	a := &fakePlugin{name: "A", quiet: true}
	f := newFixture(t, a)
	other := pod("other", "3", priority(50))
	a.post = func(*v1.Pod, fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
		f.handle().AddNominatedPod(klog.Background(), newPodInfo(other), &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: "n1"})
		within = len(f.handle().NominatedPodsForNode("n1"))
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	f.node("n1", 4)
	f.has(other)
	attempt, _ := f.decide(pod("p", "8"))
	rescue(f, attempt)
	if within != 1 {
		t.Errorf("the plugin sees %d nominated pods", within)
	}
	_, got := f.decide(pod("q", "2"))
	f.expect("a pod of lower priority", got, "0/1 nodes are available: 1 Insufficient cpu.")
	if n := f.handle().NominatedPodsForNode("n1"); len(n) != 1 || n[0].GetPod() != other {
		t.Errorf("got %v", n)
	}
}

// TestPodThatIsGoneIsNotNominated verifies that a deleted pod is not nominated. A plugin's version
// of a pod may be outdated, and nothing would end the nomination.
func TestPodThatIsGoneIsNotNominated(t *testing.T) {
	a := &fakePlugin{name: "A", quiet: true}
	f := newFixture(t, a)
	gone := pod("gone", "3", priority(50))
	a.post = func(*v1.Pod, fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
		f.handle().AddNominatedPod(klog.Background(), newPodInfo(gone), &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: "n1"})
		f.handle().UpdateNominatedPod(klog.Background(), gone, newPodInfo(nominatedTo("n1", gone)))
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	f.node("n1", 4)
	f.has(gone)
	f.store.PodGone(gone.UID)
	attempt, _ := f.decide(pod("p", "8"))
	rescue(f, attempt)
	_, got := f.decide(pod("q", "2"))
	f.expect("a pod of lower priority", got, "n1")
	if n := f.cluster.Nominations(); n != 0 {
		t.Errorf("%d nominations", n)
	}
}

func nominatedTo(node string, pod *v1.Pod) *v1.Pod {
	pod = pod.DeepCopy()
	pod.Status.NominatedNodeName = node
	return pod
}

// TestWhatAHandleCannotGiveSaysSo verifies that methods not provided by Berth return an error or an
// empty result, and that the other methods return no unexpected nil.
func TestWhatAHandleCannotGiveSaysSo(t *testing.T) {
	f := newFixture(t, &fakePlugin{name: "A"})
	h := f.handle()
	if _, err := h.SharedDRAManager().ResourceClaims().List(); err != errNoDevices {
		t.Errorf("claims: %v", err)
	}
	if _, err := h.SharedDRAManager().ResourceSlices().ListWithDeviceTaintRules(); err != errNoDevices {
		t.Errorf("slices: %v", err)
	}
	if _, err := h.SharedDRAManager().DeviceClasses().Get("x"); err != errNoDevices {
		t.Errorf("classes: %v", err)
	}
	if _, err := h.PodGroupManager().PodGroupStates().Get("ns", "g"); err == nil {
		t.Error("a pod group is known")
	}
	if h.APIDispatcher() != nil || h.APICacher() != nil {
		t.Error("asynchronous API calls are offered")
	}
	if h.GetWaitingPod("x") != nil || h.RejectWaitingPod("x") || h.GetPodInPreBind("x") != nil {
		t.Error("unknown pods are known")
	}
	h.IterateOverWaitingPods(func(fwk.WaitingPod) { t.Error("a pod waits") })
	h.Activate(klog.Background(), map[string]*v1.Pod{"default/p": pod("p", "1")})
	if n := h.NominatedPodsForNode("n1"); len(n) != 0 {
		t.Errorf("got %v", n)
	}
	if h.ClientSet() == nil || h.SharedInformerFactory() == nil || h.EventRecorder() == nil || h.ProfileName() != "default-scheduler" {
		t.Error("something that every plugin needs is missing")
	}
}

// TestSignatures verifies that pods with relevant differences have different signatures, and that
// one plugin without signatures disables signing.
func TestSignatures(t *testing.T) {
	f := newConfigured(t, "plugins: {filter: {enabled: [{name: Signing}]}}", signing{})
	sign := func(p *v1.Pod) string { return string(f.handle().SignPod(t.Context(), p)) }
	same := func(p *v1.Pod) { p.Spec.NodeName = "" }
	if sign(pod("a", "1")) == "" || sign(pod("a", "1")) != sign(pod("b", "1", same)) {
		t.Error("pods that are alike are signed differently")
	}
	if sign(pod("a", "1")) == sign(pod("a", "2")) || sign(pod("a", "1")) == sign(pod("a", "1", label("sign", "x"))) {
		t.Error("pods that differ are signed alike")
	}
	if got := newFixture(t, &fakePlugin{name: "A"}).handle().SignPod(t.Context(), pod("a", "1")); got != nil {
		t.Errorf("got %s though a plugin does not sign", got)
	}
}

type signing struct{}

func (signing) Name() string { return "Signing" }

func (signing) Filter(context.Context, fwk.CycleState, *v1.Pod, fwk.NodeInfo) *fwk.Status { return nil }

func (signing) SignPod(_ context.Context, p *v1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: "sign", Value: p.Labels["sign"]}}, nil
}

// TestParallelismIsTheConfigurations verifies that a Parallelizer uses the configured parallelism,
// even if a plugin obtained the Parallelizer in its factory, before the whole file was read.
func TestParallelismIsTheConfigurations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := New(t.Context(), Options{Client: fake.NewClientset()})
		defer set.Close()
		early := (&handle{f: set.frameworkOf("default-scheduler")}).Parallelizer()
		c, err := config.Parse("file", []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nparallelism: 3\n"), config.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := set.Profiles(c); err != nil {
			t.Fatal(err)
		}
		var at, most atomic.Int32
		early.Until(t.Context(), 30, func(int) {
			now := at.Add(1)
			for before := most.Load(); now > before && !most.CompareAndSwap(before, now); before = most.Load() {
			}
			time.Sleep(time.Second)
			at.Add(-1)
		}, "test")
		if most.Load() != 3 {
			t.Errorf("%d at once", most.Load())
		}
	})
}
