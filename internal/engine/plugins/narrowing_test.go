package plugins_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// waitingPods is a cluster and pods of it that wait in a queue.
type waitingPods struct {
	c     *cluster.Cluster
	q     *queue.Queue
	asked int
}

func newWaitingPods(c *cluster.Cluster, narrowed bool) *waitingPods {
	w := &waitingPods{c: c, q: queue.New()}
	interests := plugins.Default().Interests(c)
	if !narrowed {
		interests = maps.Clone(interests)
		for name, list := range interests {
			list = slices.Clone(list)
			for i := range list {
				list[i].Narrowing = nil
			}
			interests[name] = list
		}
	}
	w.q.SetInterests(v1.DefaultSchedulerName, interests)
	w.q.Asked = func(string, string, bool, time.Duration) { w.asked++ }
	return w
}

// reject has a pod wait for what can help against plugins.
func (w *waitingPods) reject(pod *v1.Pod, rejectors ...string) {
	w.q.Add(pod, w.c.Pending(pod).Class, epoch)
	w.q.Rejected(w.q.Pop(epoch), rejectors, false, epoch)
}

// woken lists the pods that wait no longer.
func (w *waitingPods) woken() (names []string) {
	for item := range w.q.Each {
		if item.Place() != queue.Waiting {
			names = append(names, item.Pod.Name)
		}
	}
	slices.Sort(names)
	return names
}

// TestNarrowingsLeaveNobodyOut: narrowed down, the same pods are woken as when every class that
// waits is asked about.
func TestNarrowingsLeaveNobodyOut(t *testing.T) {
	rejectors := []string{"NodeResourcesFit", "InterPodAffinity", "PodTopologySpread", "NodeAffinity", "TaintToleration"}
	woken, asked, narrowed := 0, 0, 0
	for seed := range uint64(1500) {
		rng := rand.New(rand.NewPCG(seed, 0))
		c := cluster.New()
		for i := range 3 {
			c.SetNode(aNode(fmt.Sprint("n", i), fmt.Sprint(1+rng.IntN(4))))
		}
		placed := []*cluster.Pod{}
		for i := range 8 {
			pod := waitingPod(rng, fmt.Sprint("placed-", i))
			pod.Spec.NodeName = fmt.Sprint("n", rng.IntN(3))
			placed = append(placed, c.SetPod(pod))
		}
		all, some := newWaitingPods(c, false), newWaitingPods(c, true)
		for i := range 30 {
			pod := waitingPod(rng, fmt.Sprint("waiting-", i))
			by := []string{rejectors[rng.IntN(len(rejectors))], rejectors[rng.IntN(len(rejectors))]}
			slices.Sort(by)
			by = slices.Compact(by)
			all.reject(pod, by...)
			some.reject(pod, by...)
		}
		for range 3 {
			e := anEvent(rng, c, placed)
			all.q.Happened(e, epoch)
			some.q.Happened(e, epoch)
			if a, b := all.woken(), some.woken(); !slices.Equal(a, b) {
				t.Fatalf("seed %d: %s %s wakes %v, narrowed down %v", seed, e.Resource, e.Action, a, b)
			}
		}
		woken, asked, narrowed = woken+len(all.woken()), asked+all.asked, narrowed+some.asked
	}
	if woken < 1000 || narrowed > asked*3/4 {
		t.Errorf("%d pods were woken; %d hints were asked, narrowed down %d: the test says little", woken, asked, narrowed)
	}
}

// waitingPod has some of what hints look at.
func waitingPod(rng *rand.Rand, name string) *v1.Pod {
	app := func() string { return string(rune('a' + rng.IntN(6))) }
	pod := aPod(name, []string{"0", "500m", "1", "2", "3"}[rng.IntN(5)], priority(rng.Int32N(3)))
	pod.Labels = map[string]string{"app": app()}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": app()}}
	switch rng.IntN(8) {
	case 0:
		selector = &metav1.LabelSelector{}
	case 1:
		selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{app()}}}}
	}
	switch rng.IntN(4) {
	case 0:
		attracted(app())(pod)
		pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector = selector
	case 1:
		repelled(app())(pod)
		pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].LabelSelector = selector
	case 2:
		pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: selector,
		}}
	}
	return pod
}

// anEvent is of a pod that came, went or became another one, or of a node.
func anEvent(rng *rand.Rand, c *cluster.Cluster, placed []*cluster.Pod) *queue.Event {
	p := placed[rng.IntN(len(placed))]
	e := &queue.Event{Resource: queue.Pod, Action: queue.Delete, PodBefore: p, Node: c.Node(p.NodeName)}
	switch rng.IntN(5) {
	case 0:
		e.Action, e.PodBefore, e.Pod = queue.Add, nil, p
	case 1:
		other := c.Pending(waitingPod(rng, p.Name))
		other.NodeName = p.NodeName
		e.Action, e.Pod = queue.UpdatePodLabel|queue.UpdatePodScaleDown, other
	case 2:
		e.Resource, e.Action, e.PodBefore = queue.Node, queue.Add, nil
	default:
		c.RemovePod(p.UID)
		p.NodeName = e.Node.Name
	}
	return e
}

// TestEventIsHeldAgainstThoseItCanHelp: of ten thousand classes that wait, few are asked about.
func TestEventIsHeldAgainstThoseItCanHelp(t *testing.T) {
	const many = 10_000
	for name, test := range map[string]struct {
		pod      func(i int) *v1.Pod
		rejector string
		action   queue.Action
	}{
		"room":          {func(i int) *v1.Pod { return aPod(fmt.Sprint("p", i), fmt.Sprintf("%dm", 1000+i)) }, "NodeResourcesFit", queue.Delete},
		"anti-affinity": {func(i int) *v1.Pod { return aPod(fmt.Sprint("p", i), "1", repelled(fmt.Sprint("p", i))) }, "InterPodAffinity", queue.Delete},
		"affinity":      {func(i int) *v1.Pod { return aPod(fmt.Sprint("p", i), "1", attracted(fmt.Sprint("p", i))) }, "InterPodAffinity", queue.Add},
		"spread": {func(i int) *v1.Pod {
			pod := aPod(fmt.Sprint("p", i), "1")
			pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
				MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			}}
			return pod
		}, "PodTopologySpread", queue.Delete},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster.New()
			n := c.SetNode(aNode("n", "1010m"))
			w := newWaitingPods(c, true)
			for i := range many {
				w.reject(test.pod(i), test.rejector)
			}
			other := c.Pending(test.pod(5))
			e := &queue.Event{Resource: queue.Pod, Action: test.action, PodBefore: other, Node: n}
			if test.action == queue.Add {
				e.PodBefore, e.Pod = nil, other
			}
			w.q.Happened(e, epoch)
			if got := len(w.woken()); got == 0 || got > 20 || w.asked > 20 {
				t.Errorf("%d pods are woken, and %d were asked about", got, w.asked)
			}
		})
	}
}
