// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// fixture is a cluster, a profile with out-of-tree plugins, and a record of their calls.
type fixture struct {
	*testing.T
	cluster *cluster.Cluster
	store   *Store
	set     *Set
	profile cycle.Profile
	decider *decide.Decider
	*record
}

// record holds the plugins' calls, in order.
type record struct {
	mu    sync.Mutex
	calls []string
}

func (r *record) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
}

// taken returns and clears the calls recorded since it was last called.
func (r *record) taken() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := strings.Join(r.calls, "; ")
	r.calls = nil
	return all
}

// newFixture returns a cluster without nodes and a profile with these plugins at multiPoint, in
// order, after Berth's own.
func newFixture(t *testing.T, made ...fwk.Plugin) *fixture {
	t.Helper()
	var enabled []string
	for _, plugin := range made {
		enabled = append(enabled, "{name: "+plugin.Name()+"}")
	}
	return newConfigured(t, "plugins: {multiPoint: {enabled: ["+strings.Join(enabled, ", ")+"]}}", made...)
}

func newConfigured(t *testing.T, profile string, made ...fwk.Plugin) *fixture {
	t.Helper()
	f := &fixture{T: t, cluster: cluster.New(), store: NewStore(), record: &record{}}
	factories := map[string]Factory{}
	for _, plugin := range made {
		factories[plugin.Name()] = func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return plugin, nil }
		if r, ok := plugin.(interface{ recordIn(*record) }); ok {
			r.recordIn(f.record)
		}
	}
	f.configure(profile, factories)
	return f
}

func (f *fixture) configure(profile string, factories map[string]Factory) {
	f.Helper()
	f.set = New(f.Context(), Options{Factories: factories, Store: f.store, Client: fake.NewClientset()})
	f.Cleanup(f.set.Close)
	file := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles: [{schedulerName: default-scheduler, " + profile + "}]\n"
	c, err := config.Parse("config.yaml", []byte(file), config.Options{Probe: f.set.Probe})
	if err != nil {
		f.Fatal(err)
	}
	profiles, err := f.set.Profiles(c)
	if err != nil {
		f.Fatal(err)
	}
	if err := f.store.Need(f.Context(), nil); err != nil {
		f.Fatal(err)
	}
	f.profile = profiles[0]
	f.decider = decide.New(f.cluster, f.profile.Profile, 1)
}

func (f *fixture) framework() *framework { return f.set.frameworks["default-scheduler"] }

func (f *fixture) handle() *handle { return f.framework().handle }

// node adds a node that has this many CPUs and allows ten pods.
func (f *fixture) node(name string, cpus int, change ...func(*v1.Node)) {
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(fmt.Sprint(cpus)), v1.ResourceMemory: resource.MustParse("8Gi"), v1.ResourcePods: resource.MustParse("10"),
		}},
	}
	for _, c := range change {
		c(node)
	}
	f.store.Node(node)
	f.cluster.SetNode(node)
}

// pod returns a pod requesting this many CPUs.
func pod(name string, cpus string, change ...func(*v1.Pod)) *v1.Pod {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: v1.PodSpec{SchedulerName: "default-scheduler", Containers: []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpus)},
		}}}},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func on(node string) func(*v1.Pod)       { return func(p *v1.Pod) { p.Spec.NodeName = node } }
func priority(value int32) func(*v1.Pod) { return func(p *v1.Pod) { p.Spec.Priority = &value } }
func label(key, value string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Labels = map[string]string{key: value} }
}
func nominated(node string) func(p *v1.Pod) {
	return func(p *v1.Pod) { p.Status.NominatedNodeName = node }
}

// has adds an API pod to the cluster.
func (f *fixture) has(p *v1.Pod) {
	f.store.Pod(p)
	switch {
	case p.Spec.NodeName != "":
		f.cluster.SetPod(p)
	case p.Status.NominatedNodeName != "":
		f.cluster.Nominate(f.cluster.Pending(p), p.Status.NominatedNodeName)
	}
}

// begin begins an attempt, like the live scheduler.
func (f *fixture) begin(p *v1.Pod) *cycle.Attempt {
	f.store.Pod(p)
	a := &cycle.Attempt{Pod: p, Waiting: f.cluster.Pending(p), Profile: "default-scheduler", Cluster: f.cluster}
	for _, e := range f.profile.Extensions {
		if b, ok := e.(cycle.Beginner); ok {
			b.Begin(a)
		}
	}
	return a
}

// decide begins an attempt and decides it: it returns the node, or the reason for finding none.
func (f *fixture) decide(p *v1.Pod) (*cycle.Attempt, string) {
	a := f.begin(p)
	d := f.decider.Decide(a.Waiting)
	switch {
	case d.Err != nil:
		return a, "error: " + d.Err.Error()
	case d.Node == nil:
		return a, f.decider.Diagnose(a.Waiting).Message("")
	}
	a.Node = d.Node.Name
	return a, d.Node.Name
}

// extensionOf returns a plugin in the form used by the live scheduler.
func extensionOf[T cycle.Extension](f *fixture, name string) T {
	f.Helper()
	for _, e := range f.profile.Extensions {
		if e.Name() == name {
			return e.(T)
		}
	}
	f.Fatalf("no extension %q", name)
	panic("unreachable")
}

func (f *fixture) expect(what, got, want string) {
	f.Helper()
	if got != want {
		f.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

// fakePlugin is at the extension points in allPoints. It records its calls, and returns the results
// of its functions. A nil function lets pods and nodes pass.
type fakePlugin struct {
	*record
	name      string
	preFilter func(state fwk.CycleState, p *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status)
	filter    func(state fwk.CycleState, p *v1.Pod, n fwk.NodeInfo) *fwk.Status
	add       func(state fwk.CycleState, p fwk.PodInfo, n fwk.NodeInfo) *fwk.Status
	remove    func(state fwk.CycleState, p fwk.PodInfo, n fwk.NodeInfo) *fwk.Status
	preScore  func(state fwk.CycleState, nodes []fwk.NodeInfo) *fwk.Status
	score     func(state fwk.CycleState, n fwk.NodeInfo) (int64, *fwk.Status)
	normalize func(scores fwk.NodeScoreList) *fwk.Status
	post      func(p *v1.Pod, verdicts fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status)
	reserve   func(p *v1.Pod, node string) *fwk.Status
	permit    func(p *v1.Pod, node string) (*fwk.Status, time.Duration)
	preFlight func(p *v1.Pod, node string) (*fwk.PreBindPreFlightResult, *fwk.Status)
	preBind   func(ctx context.Context, p *v1.Pod, node string) *fwk.Status
	bind      func(p *v1.Pod, node string) *fwk.Status
	enqueue   func(p *v1.Pod) *fwk.Status
	events    func() ([]fwk.ClusterEventWithHint, error)
	quiet     bool // do not record the calls made per node
}

func (p *fakePlugin) recordIn(r *record) { p.record = r }

func (p *fakePlugin) Name() string { return p.name }

func (p *fakePlugin) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	p.note("%s PreEnqueue %s", p.name, pod.Name)
	if p.enqueue == nil {
		return nil
	}
	return p.enqueue(pod)
}

func (p *fakePlugin) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	p.note("%s PreFilter %s", p.name, pod.Name)
	if p.preFilter == nil {
		return nil, nil
	}
	return p.preFilter(state, pod, nodes)
}

func (p *fakePlugin) PreFilterExtensions() fwk.PreFilterExtensions { return p }

func (p *fakePlugin) AddPod(_ context.Context, state fwk.CycleState, _ *v1.Pod, come fwk.PodInfo, n fwk.NodeInfo) *fwk.Status {
	p.note("%s AddPod %s %s", p.name, come.GetPod().Name, n.Node().Name)
	if p.add == nil {
		return nil
	}
	return p.add(state, come, n)
}

func (p *fakePlugin) RemovePod(_ context.Context, state fwk.CycleState, _ *v1.Pod, gone fwk.PodInfo, n fwk.NodeInfo) *fwk.Status {
	p.note("%s RemovePod %s %s", p.name, gone.GetPod().Name, n.Node().Name)
	if p.remove == nil {
		return nil
	}
	return p.remove(state, gone, n)
}

func (p *fakePlugin) Filter(_ context.Context, state fwk.CycleState, pod *v1.Pod, n fwk.NodeInfo) *fwk.Status {
	if !p.quiet {
		p.note("%s Filter %s %s", p.name, n.Node().Name, podNames(n))
	}
	if p.filter == nil {
		return nil
	}
	return p.filter(state, pod, n)
}

func (p *fakePlugin) PostFilter(_ context.Context, _ fwk.CycleState, pod *v1.Pod, verdicts fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
	p.note("%s PostFilter %s", p.name, pod.Name)
	if p.post == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	return p.post(pod, verdicts)
}

func (p *fakePlugin) PreScore(_ context.Context, state fwk.CycleState, _ *v1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	p.note("%s PreScore %d", p.name, len(nodes))
	if p.preScore == nil {
		return nil
	}
	return p.preScore(state, nodes)
}

func (p *fakePlugin) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	if !p.quiet {
		p.note("%s Score %s", p.name, n.Node().Name)
	}
	if p.score == nil {
		return 0, nil
	}
	return p.score(state, n)
}

func (p *fakePlugin) ScoreExtensions() fwk.ScoreExtensions {
	if p.normalize == nil {
		return nil
	}
	return p
}

func (p *fakePlugin) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	p.note("%s NormalizeScore", p.name)
	return p.normalize(scores)
}

func (p *fakePlugin) Reserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	p.note("%s Reserve %s on %s", p.name, pod.Name, pod.Spec.NodeName)
	if p.reserve == nil {
		return nil
	}
	return p.reserve(pod, node)
}

func (p *fakePlugin) Unreserve(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) {
	p.note("%s Unreserve %s on %s", p.name, pod.Name, node)
}

func (p *fakePlugin) Permit(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) (*fwk.Status, time.Duration) {
	p.note("%s Permit %s on %s", p.name, pod.Name, node)
	if p.permit == nil {
		return nil, 0
	}
	return p.permit(pod, node)
}

func (p *fakePlugin) PreBindPreFlight(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	p.note("%s PreBindPreFlight %s on %s", p.name, pod.Name, node)
	if p.preFlight == nil {
		return nil, nil
	}
	return p.preFlight(pod, node)
}

func (p *fakePlugin) PreBind(ctx context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	p.note("%s PreBind %s on %s", p.name, pod.Name, node)
	if p.preBind == nil {
		return nil
	}
	return p.preBind(ctx, pod, node)
}

func (p *fakePlugin) PostBind(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) {
	p.note("%s PostBind %s on %s", p.name, pod.Name, node)
}

func (p *fakePlugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	if p.events == nil {
		return nil, nil
	}
	return p.events()
}

// binding is a fakePlugin that is also at Bind.
type binding struct{ *fakePlugin }

func (p binding) Bind(_ context.Context, _ fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	p.note("%s Bind %s on %s", p.name, pod.Name, node)
	if p.bind == nil {
		return nil
	}
	return p.bind(pod, node)
}

func podNames(n fwk.NodeInfo) string {
	names := []string{}
	for _, p := range n.GetPods() {
		names = append(names, p.GetPod().Name)
	}
	slices.Sort(names)
	return strings.Join(names, "+")
}

// allPoints holds the extension points of a fakePlugin.
const allPoints = plugins.PreEnqueue | plugins.PreFilter | plugins.Filters | plugins.PostFilter | plugins.PreScore | plugins.Score |
	plugins.Reserve | plugins.Permit | plugins.PreBind | plugins.PostBind
