// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	clientset "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/scheduler"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

var gangClusters = flag.Int("gangs", 20, "how many random clusters with a gang, of each kind")

// TestGangsFitWhereUpstreamsDo compares the Kubernetes scheduler, with the feature gates on, and
// Berth's core on a gang in the same cluster; some pods of the gang may already run. It verifies
// that the results are the same for identical pods. For differing pods Berth must place every gang
// that upstream places, and may place more. Gangs whose members have anti-affinity are an
// exception, because upstream may violate it (docs/reference/differences.md).
func TestGangsFitWhereUpstreamsDo(t *testing.T) {
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
		features.GenericWorkload: true, features.TopologyAwareWorkloadScheduling: true,
	})
	for _, alike := range []bool{true, false} {
		both, neither, onlyBerth, repelled := 0, 0, 0, 0
		for i := range uint64(*gangClusters) {
			w := generateGang(*first+i, alike)
			theirs, err := w.upstream(t.Context())
			if err != nil {
				t.Fatalf("seed %d: %v", *first+i, err)
			}
			ours, err := w.berth()
			if err != nil {
				t.Fatalf("seed %d: %v", *first+i, err)
			}
			switch {
			case ours && theirs:
				both++
			case !ours && !theirs:
				neither++
			case ours && !alike:
				onlyBerth++
			case theirs && w.repels(): // upstream ignores the anti-affinity of members placed in the same cycle
				repelled++
			default:
				t.Errorf("seed %d, alike %t: upstream places the gang: %t, Berth: %t\n%v", *first+i, alike, theirs, ours, w)
			}
		}
		t.Logf("alike %t: both place %d gangs, neither %d, Berth alone %d, upstream alone, with anti-affinity among the members, %d",
			alike, both, neither, onlyBerth, repelled)
		if both == 0 || neither == 0 {
			t.Errorf("alike %t: %d gangs fit and %d do not: too little to compare", alike, both, neither)
		}
	}
}

// TestGangsGoToTheDomainThatUpstreamPrefers verifies that if both schedulers place a gang, the rack
// chosen by Berth is as full as the rack chosen by kube-scheduler, measured as in kube-scheduler's
// score.
func TestGangsGoToTheDomainThatUpstreamPrefers(t *testing.T) {
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
		features.GenericWorkload: true, features.TopologyAwareWorkloadScheduling: true,
	})
	compared, differ := 0, 0
	for i := range uint64(*gangClusters) {
		w := generateGang(*first+i, true)
		w.group.Spec.SchedulingPolicy.Gang.MinCount = int32(len(w.gang))
		w.placed = slices.DeleteFunc(w.placed, func(p *v1.Pod) bool { return p.Spec.SchedulingGroup != nil })
		w.group.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{Topology: []schedulingv1beta1.TopologyConstraint{{Key: "rack"}}}
		theirs, err := w.firstByUpstream(t.Context())
		if err != nil {
			t.Fatalf("seed %d: %v", *first+i, err)
		}
		ours, err := w.firstByBerth()
		if err != nil {
			t.Fatalf("seed %d: %v", *first+i, err)
		}
		if ours == "" || theirs == "" {
			continue
		}
		compared++
		if ours, theirs := w.rack(ours), w.rack(theirs); ours != theirs {
			differ++
			if w.fullness(ours)+1 < w.fullness(theirs) { // allow one point of rounding
				t.Errorf("seed %d: Berth chooses %s, of which %d %% are requested then, upstream %s, %d %%\n%v",
					*first+i, ours, w.fullness(ours), theirs, w.fullness(theirs), w)
			}
		}
	}
	t.Logf("%d gangs, %d of them elsewhere in a rack that is as good", compared, differ)
	if compared == 0 {
		t.Error("no gang was placed by both")
	}
}

// rack returns the rack of a node.
func (w *gangWorld) rack(node string) string {
	for _, n := range w.nodes {
		if n.Name == node {
			return n.Labels["rack"]
		}
	}
	return ""
}

// fullness returns the requested percentage of a rack's CPU and memory with the gang in it, as the
// mean of both.
func (w *gangWorld) fullness(rack string) int64 {
	var requested, all [2]int64
	for _, n := range w.nodes {
		if n.Labels["rack"] == rack {
			all[0], all[1] = all[0]+n.Status.Allocatable.Cpu().MilliValue(), all[1]+n.Status.Allocatable.Memory().Value()
		}
	}
	for _, p := range append(append([]*v1.Pod{}, w.placed...), w.gang...) {
		if p.Spec.NodeName == "" || w.rack(p.Spec.NodeName) == rack {
			requests := p.Spec.Containers[0].Resources.Requests
			requested[0], requested[1] = requested[0]+requests.Cpu().MilliValue(), requested[1]+requests.Memory().Value()
		}
	}
	return (min(requested[0], all[0])*100/all[0] + min(requested[1], all[1])*100/all[1]) / 2
}

// gangWorld is a cluster with one pending gang.
type gangWorld struct {
	nodes  []*v1.Node
	placed []*v1.Pod
	group  *schedulingv1beta1.PodGroup
	gang   []*v1.Pod
}

func (w *gangWorld) String() string {
	text := fmt.Sprintf("minCount %d, topology %v\n", w.group.Spec.SchedulingPolicy.Gang.MinCount, w.group.Spec.SchedulingConstraints)
	for _, n := range w.nodes {
		text += fmt.Sprintf("node %s %v %v %v\n", n.Name, n.Labels, n.Spec.Taints, n.Status.Allocatable)
	}
	for _, p := range append(append([]*v1.Pod{}, w.placed...), w.gang...) {
		text += fmt.Sprintf("pod %s on %q %v %v %v requests %v ports %d affinity %v spread %v\n", p.Name, p.Spec.NodeName, p.Labels, p.Spec.NodeSelector,
			p.Spec.Tolerations, p.Spec.Containers[0].Resources.Requests, len(p.Spec.Containers[0].Ports), p.Spec.Affinity, p.Spec.TopologySpreadConstraints)
	}
	return text
}

// repels reports whether a member has anti-affinity to pods.
func (w *gangWorld) repels() bool {
	return slices.ContainsFunc(w.gang, func(p *v1.Pod) bool { return p.Spec.Affinity != nil && p.Spec.Affinity.PodAntiAffinity != nil })
}

func generateGang(seed uint64, alike bool) *gangWorld {
	rng := rand.New(rand.NewPCG(seed, 18))
	w := &gangWorld{}
	pick := func(values ...string) string { return values[rng.IntN(len(values))] }
	pod := func(name string) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": pick("a", "b")}}}
		p.Spec.SchedulerName, p.Spec.Priority, p.Status.Phase = v1.DefaultSchedulerName, new(int32), v1.PodPending
		p.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
		p.Spec.Containers = []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(pick("500m", "1", "2", "3")), v1.ResourceMemory: resource.MustParse(pick("1Gi", "2Gi")),
		}}}}
		if rng.IntN(4) == 0 {
			p.Spec.NodeSelector = map[string]string{"disk": pick("ssd", "hdd")}
		}
		if rng.IntN(3) == 0 {
			p.Spec.Tolerations = []v1.Toleration{{Key: "own", Operator: v1.TolerationOpExists}}
		}
		if rng.IntN(5) == 0 {
			p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1")
		}
		if rng.IntN(6) == 0 {
			p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: v1.ProtocolTCP}}
		}
		return p
	}
	for i := range 2 + rng.IntN(6) {
		name := fmt.Sprint("n", i)
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{
			v1.LabelHostname: name, "rack": pick("r1", "r2", "r3"), "disk": pick("ssd", "hdd"),
		}}}
		if rng.IntN(8) == 0 {
			delete(n.Labels, "rack")
		}
		n.Status.Allocatable = v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(pick("2", "3", "4", "6")), v1.ResourceMemory: resource.MustParse("16Gi"), v1.ResourcePods: resource.MustParse(pick("2", "10")),
		}
		if rng.IntN(2) == 0 {
			n.Status.Allocatable["example.com/gpu"] = resource.MustParse(pick("1", "2", "4"))
		}
		if rng.IntN(5) == 0 {
			n.Spec.Taints = []v1.Taint{{Key: "own", Effect: v1.TaintEffectNoSchedule}}
		}
		w.nodes = append(w.nodes, n)
		if rng.IntN(2) == 0 {
			p := pod("on-" + name)
			p.Spec.NodeName = name
			w.placed = append(w.placed, p)
		}
	}
	size, running := 2+rng.IntN(5), max(0, rng.IntN(5)-2)
	w.group = &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gang", UID: "gang"}}
	w.group.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(max(1, size+running-rng.IntN(3)))}
	if rng.IntN(3) == 0 {
		w.group.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{Topology: []schedulingv1beta1.TopologyConstraint{{Key: "rack"}}}
	}
	for i := range running {
		p := pod(fmt.Sprint("r", i))
		p.Spec.NodeName, p.Spec.SchedulingGroup = w.nodes[rng.IntN(len(w.nodes))].Name, &v1.PodSchedulingGroup{PodGroupName: &w.group.Name}
		w.placed = append(w.placed, p)
	}
	for i := range size {
		name := fmt.Sprint("g", i)
		p := pod(name)
		if alike && i > 0 {
			p = w.gang[0].DeepCopy()
			p.Name, p.UID = name, types.UID(name)
		}
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &w.group.Name}
		if !alike && rng.IntN(4) == 0 {
			term := v1.PodAffinityTerm{TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick("a", "b")}}}
			p.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term}}}
			if rng.IntN(2) == 0 {
				p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term}}}
			}
		}
		if !alike && rng.IntN(6) == 0 {
			p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: pick(v1.LabelHostname, "rack"), WhenUnsatisfiable: v1.DoNotSchedule,
				LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick("a", "b")}},
			}}
		}
		w.gang = append(w.gang, p)
	}
	return w
}

// upstream runs one cycle of the Kubernetes scheduler on the gang, and reports whether the gang is
// placed.
func (w *gangWorld) upstream(ctx context.Context) (bool, error) {
	node, err := w.firstByUpstream(ctx)
	return node != "", err
}

// firstByUpstream returns the node of the first member bound by the Kubernetes scheduler, or "".
func (w *gangWorld) firstByUpstream(ctx context.Context) (node string, err error) {
	ctx, stop := context.WithTimeout(klog.NewContext(ctx, klog.Logger{}), time.Minute)
	defer stop()
	client := w.newClient()
	nodes := make(chan string, len(w.gang))
	client.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if create, ok := action.(clienttesting.CreateAction); ok && action.GetSubresource() == "binding" {
			nodes <- create.GetObject().(*v1.Binding).Target.Name
			return true, nil, nil
		}
		return false, nil, nil
	})
	c, err := decideByUpstream(ctx, client)
	if err != nil || c.Status != metav1.ConditionTrue {
		return "", err
	}
	select {
	case node := <-nodes:
		return node, nil
	case <-ctx.Done():
		return "", fmt.Errorf("no pod is bound: %w", ctx.Err())
	}
}

// newClient returns a fake client with copies of the world's objects, because a scheduler may
// change them.
func (w *gangWorld) newClient() *clientset.Clientset {
	objects := []runtime.Object{w.group.DeepCopy()}
	for _, n := range w.nodes {
		objects = append(objects, n)
	}
	for _, p := range slices.Concat(w.placed, w.gang) {
		objects = append(objects, p.DeepCopy())
	}
	return clientset.NewClientset(objects...)
}

// decideByUpstream runs one cycle of the Kubernetes scheduler, and returns the condition that the
// scheduler sets on the PodGroup.
func decideByUpstream(ctx context.Context, client *clientset.Clientset) (*metav1.Condition, error) {
	informers := scheduler.NewInformerFactory(client, 0, nil)
	s, err := scheduler.New(ctx, client, informers, nil, func(string) events.EventRecorderLogger { return events.NewFakeRecorder(1000) },
		scheduler.WithPercentageOfNodesToScore(new(int32(100))))
	if err != nil {
		return nil, err
	}
	informers.Start(ctx.Done())
	informers.WaitForCacheSync(ctx.Done())
	if err := s.WaitForHandlersSync(ctx); err != nil {
		return nil, err
	}

	s.ScheduleOne(ctx)
	for {
		g, err := client.SchedulingV1beta1().PodGroups("default").Get(ctx, "gang", metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		if c := meta.FindStatusCondition(g.Status.Conditions, schedulingv1beta1.PodGroupInitiallyScheduled); c != nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("the pod group got no condition: %w", ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
}

// berth runs Berth's core on the gang, and reports whether the gang is placed.
func (w *gangWorld) berth() (bool, error) {
	node, err := w.firstByBerth()
	return node != "", err
}

// firstByBerth returns the node of the first member bound by Berth, or "".
func (w *gangWorld) firstByBerth() (node string, err error) {
	core, err := cycle.New(cycle.Options{
		Profiles: []cycle.Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true, Topology: true},
	})
	if err != nil {
		return "", err
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	core.Step(now, cycle.Follows{})
	for _, n := range w.nodes {
		core.Step(now, cycle.Seen{Kind: cycle.Nodes, Object: n})
	}
	core.Step(now, cycle.Seen{Kind: cycle.PodGroups, Object: w.group.DeepCopy()})
	for _, p := range append(append([]*v1.Pod{}, w.placed...), w.gang...) {
		core.Step(now, cycle.Seen{Kind: cycle.Pods, Object: p})
	}
	core.Step(now, cycle.Led{})
	decided := false
	for _, action := range core.Step(now, cycle.Tick{}) {
		switch a := action.(type) {
		case cycle.WriteStatus:
			decided = true
		case cycle.Bind:
			return a.Attempt.Node, nil
		case cycle.Panicked:
			return "", fmt.Errorf("panicked: %s", a.Value)
		}
	}
	if !decided {
		return "", fmt.Errorf("nothing was decided")
	}
	return "", nil
}
