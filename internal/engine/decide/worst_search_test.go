// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

var (
	searchFor  = flag.Duration("worst-for", 2*time.Second, "how long TestNoObjectIsWorse looks for an object that makes other decisions dearer")
	searchSeed = flag.Uint64("worst-seed", 1, "what its random changes are drawn from")
)

// The constant most is the largest factor by which an object may increase the looks (nodes, groups
// and cells examined) and allocations of decisions for other pods. An ordinary decision makes very
// few looks, so the objects found by long searches increase looks and allocations by a factor of
// 30, but time only by a factor of 3. A long search also measures processor time for objects whose
// factor exceeds suspect. The goal for time is a factor of 4; the tested bound dearest includes a
// margin for other load on the machine.
const most, suspect, dearest = 40, 6, 8

// TestNoObjectIsWorse verifies that no object increases the cost of decisions for other pods by
// more than the factor most. It randomly mutates the worst known objects, and keeps a mutation if
// it does not lower the cost. The cost is counted in looks and allocations instead of time, so the
// result is the same on a busy machine.
func TestNoObjectIsWorse(t *testing.T) {
	rng := rand.New(rand.NewPCG(*searchSeed, 15))
	without := map[string]int{}
	for _, mode := range worstModes {
		without[mode] = looksFor(mode, nil)
	}
	factor := func(s strange) (worst float64, in string) {
		for _, mode := range worstModes {
			if f := float64(looksFor(mode, s.add)) / float64(without[mode]); f > worst {
				worst, in = f, mode
			}
		}
		return worst, in
	}
	type found struct {
		strange
		factor float64
		mode   string
	}
	var best []found
	for _, s := range strangers() {
		f, mode := factor(s)
		best = append(best, found{s, f, mode})
	}
	tried := 0
	for until := time.Now().Add(*searchFor); time.Now().Before(until); tried++ {
		i := rng.IntN(len(best))
		s := best[i].changed(rng)
		if f, mode := factor(s); f >= best[i].factor {
			best[i] = found{s, f, mode}
		}
	}
	for _, b := range best {
		t.Logf("%.1f times in mode %q: %s", b.factor, b.mode, b)
		if b.factor > most {
			t.Errorf("an object makes decisions cost %.1f times as much in mode %q, want at most %d:\n%s", b.factor, b.mode, most, b.whole())
		}
		if b.factor <= suspect || *searchFor < time.Minute {
			continue
		}
		for _, nodes := range []int{1000, 5000} {
			const rounds = 20
			times := float64(costOf(nodes, b.mode, rounds, b.add)) / float64(costOf(nodes, b.mode, rounds, nil))
			t.Logf("  in time %.1f on %d nodes", times, nodes)
			if times > dearest {
				t.Errorf("an object makes decisions take %.1f times as much time in mode %q on %d nodes, want at most %d:\n%s", times, b.mode, nodes, dearest, b.whole())
			}
		}
	}
	t.Logf("%d objects were tried", tried)
}

// looksFor returns the cost of some decisions for ordinary pods, in looks and allocations.
func looksFor(mode string, add func(*cluster.Cluster)) int {
	c := worstCluster(400, mode)
	d := New(c, plugins.Default(), 1)
	if add != nil {
		add(c)
	}
	const pods = 100
	cost := 0
	for round := range 3 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		d.meter.Looked = 0
		var placed []*cluster.Pod
		for i := range pods {
			pod := worstPod(i, round*pods+i, mode)
			pod.UID = types.UID(fmt.Sprint(round, "-", i))
			p := c.Pending(pod)
			if decision := d.Decide(p); decision.Node != nil {
				c.Place(p, decision.Node)
				placed = append(placed, p)
			}
		}
		runtime.ReadMemStats(&after)
		const allocation = 3 // looks
		cost = d.meter.Looked + allocation*int(after.Mallocs-before.Mallocs)
		for _, p := range placed {
			c.RemovePod(p.UID())
		}
	}
	return cost // cost of the last round: earlier rounds create rankings and bases
}

// strange is an unusual pod or node.
type strange struct {
	pod       *v1.Pod
	node      *v1.Node
	nominated bool
}

func (s strange) add(c *cluster.Cluster) {
	switch {
	case s.node != nil:
		c.SetNode(s.node)
	case s.nominated:
		c.Nominate(c.Pending(s.pod), "node-0")
	default:
		c.SetPod(s.pod)
	}
}

// whole returns the object as JSON.
func (s strange) whole() string {
	data, err := json.Marshal(map[string]any{"pod": s.pod, "node": s.node, "nominated": s.nominated})
	if err != nil {
		panic(err)
	}
	return string(data)
}

func (s strange) String() string {
	if s.node != nil {
		return fmt.Sprintf("node of %d labels, %d taints, %d images, %v", len(s.node.Labels), len(s.node.Spec.Taints), len(s.node.Status.Images), s.node.Status.Allocatable)
	}
	text := summary(s.pod)
	if s.nominated {
		text += "\n    nominated"
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		const enough = 100
		lines[i] = line[:min(len(line), enough)]
	}
	const many = 30
	return strings.Join(lines[:min(len(lines), many)], "\n")
}

// strangers returns the initial objects of the search.
func strangers() []strange {
	nominated := towards("away", avoiding(v1.LabelHostname, everyPod()))
	nominated.Spec.NodeName = ""
	var taints []v1.Taint
	for i := range 200 {
		taints = append(taints, v1.Taint{Key: fmt.Sprint("taint-", i), Effect: v1.TaintEffectPreferNoSchedule})
	}
	return []strange{
		{pod: stranger("k")},
		{pod: hundredTerms()},
		{pod: towards("thousand", preferring(v1.LabelHostname, thousandApps()))},
		{pod: towards("host", preferring(v1.LabelHostname, everyPod()))},
		{pod: towards("not", preferring(v1.LabelHostname, notOf("nobody")))},
		{pod: towards("away", avoiding("k8", notOf("app-1")))},
		{pod: nominated, nominated: true},
		{pod: towards("zone", disliking(v1.LabelTopologyZone, everyPod()))},
		{node: strangeNode(func(n *v1.Node) { n.Labels[v1.LabelTopologyZone] = "" })},
		{node: strangeNode(func(n *v1.Node) { n.Spec.Taints = taints })},
	}
}

// changed returns a copy with a few changes.
func (s strange) changed(rng *rand.Rand) strange {
	d := &draw{Rand: rng}
	for range 1 + rng.IntN(4) {
		if s.node != nil {
			s.node = s.node.DeepCopy()
			changeStrangeNode(d, s.node)
			continue
		}
		s.pod = s.pod.DeepCopy()
		changeStranger(d, s.pod)
	}
	return s
}

func changeStranger(d *draw, pod *v1.Pod) {
	key := one(d, v1.LabelHostname, v1.LabelTopologyZone, fmt.Sprint("k", d.IntN(9)))
	selector := one(d, everyPod(), notOf("nobody"), notOf("app-1"), thousandApps(), &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint("app-", d.IntN(20))}})
	affinity, anti := pod.Spec.Affinity.PodAffinity, pod.Spec.Affinity.PodAntiAffinity
	if affinity == nil || anti == nil {
		pod.Spec.Affinity = &v1.Affinity{PodAffinity: one(d, affinity, &v1.PodAffinity{}), PodAntiAffinity: &v1.PodAntiAffinity{}}
		if pod.Spec.Affinity.PodAffinity == nil {
			pod.Spec.Affinity.PodAffinity = &v1.PodAffinity{}
		}
		affinity, anti = pod.Spec.Affinity.PodAffinity, pod.Spec.Affinity.PodAntiAffinity
	}
	switch d.IntN(8) {
	case 0, 1:
		preferring(key, selector)(pod)
	case 2:
		disliking(key, selector)(pod)
	case 3:
		if key != v1.LabelTopologyZone || d.chance(0.2) {
			avoiding(key, selector)(pod)
		}
	case 4:
		for k := range 9 {
			one(d, preferring, disliking)(fmt.Sprint("k", k), selector)(pod)
		}
	case 5:
		list := affinity.PreferredDuringSchedulingIgnoredDuringExecution
		for i := range list {
			list[i].Weight = int32(1 + d.IntN(100))
		}
	case 6:
		pod.Spec.Containers[0].Resources.Requests[one(d, v1.ResourceCPU, v1.ResourceMemory)] = one(d, resource.MustParse("4611686018427387904"), resource.MustParse("1"), resource.MustParse("20"))
	default:
		if list := anti.RequiredDuringSchedulingIgnoredDuringExecution; len(list) > 0 {
			anti.RequiredDuringSchedulingIgnoredDuringExecution = list[:d.IntN(len(list))]
		}
	}
}

func changeStrangeNode(d *draw, n *v1.Node) {
	switch d.IntN(6) {
	case 0:
		n.Labels[one(d, v1.LabelHostname, v1.LabelTopologyZone, fmt.Sprint("k", d.IntN(9)))] = one(d, "", "0", "1", "node-0", "other")
	case 1:
		delete(n.Labels, one(d, v1.LabelHostname, v1.LabelTopologyZone, fmt.Sprint("k", d.IntN(9))))
	case 2:
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: fmt.Sprint("taint-", d.IntN(1000)), Effect: one(d, v1.TaintEffectPreferNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoSchedule)})
	case 3:
		n.Status.Allocatable[one(d, v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods)] = one(d, resource.MustParse("4611686018427387904"), resource.MustParse("0"), resource.MustParse("1"), resource.MustParse("64Gi"))
	case 4:
		n.Status.Images = append(n.Status.Images, v1.ContainerImage{Names: []string{"registry.k8s.io/pause:3.10", fmt.Sprint("image-", d.IntN(1000))}, SizeBytes: one[int64](d, 1, 1<<30, 1<<62)})
	default:
		n.Spec.Unschedulable = !n.Spec.Unschedulable
	}
}
