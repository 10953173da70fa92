// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// worstCase is an object that may make the decisions for other pods more expensive.
type worstCase struct {
	name string
	add  func(c *cluster.Cluster)
}

// worstCases lists objects that a tenant or a node can create. The most expensive objects were
// found by experiment.
var worstCases = []worstCase{
	{"nine preferred terms for every pod, by keys that no node has", func(c *cluster.Cluster) { c.SetPod(stranger("nobody/k")) }},
	{"nine preferred terms for every pod, by keys that nodes have", func(c *cluster.Cluster) { c.SetPod(stranger("k")) }},
	{"preference for every pod, by host name", func(c *cluster.Cluster) { c.SetPod(towards("host", preferring(v1.LabelHostname, everyPod()))) }},
	{"preference against every pod, by zone", func(c *cluster.Cluster) { c.SetPod(towards("zone", disliking(v1.LabelTopologyZone, everyPod()))) }},
	{"preference for pods not of one app, by host name", func(c *cluster.Cluster) { c.SetPod(towards("not", preferring(v1.LabelHostname, notOf("nobody")))) }},
	{"required anti-affinity to every pod, by host name", func(c *cluster.Cluster) { c.SetPod(towards("away", avoiding(v1.LabelHostname, everyPod()))) }},
	{"required anti-affinity to pods not of one app, by host name", func(c *cluster.Cluster) { c.SetPod(towards("away", avoiding(v1.LabelHostname, notOf("nobody")))) }},
	{"the same, only nominated", func(c *cluster.Cluster) {
		pod := towards("away", avoiding(v1.LabelHostname, everyPod()))
		pod.Spec.NodeName = ""
		c.Nominate(c.Pending(pod), "node-0")
	}},
	{"a hundred preferred terms, by nine keys", func(c *cluster.Cluster) {
		c.SetPod(hundredTerms())
	}},
	{"three hundred preferred terms for nearly every pod, by nine keys", func(c *cluster.Cluster) {
		var change []func(*v1.Pod)
		for i := range 300 {
			change = append(change, preferring(fmt.Sprint("k", i%9), []*metav1.LabelSelector{everyPod(), notOf("nobody"), notOf("app-1")}[i%3]))
		}
		c.SetPod(towards("many", change...))
	}},
	{"two thousand preferred terms for nearly every pod, by nine keys", func(c *cluster.Cluster) { c.SetPod(thousandsOfTerms("nobody")) }},
	{"two thousand preferred terms, each for every pod but those of one app", func(c *cluster.Cluster) { c.SetPod(thousandsOfTerms("app")) }},
	{"terms for nearly every pod by host name, zone and another key", func(c *cluster.Cluster) {
		c.SetPod(towards("three", preferring(v1.LabelHostname, notOf("nobody")), preferring(v1.LabelTopologyZone, notOf("app-1")), avoiding("k7", notOf("app-1"))))
	}},
	{"a selector of a thousand values", func(c *cluster.Cluster) {
		c.SetPod(towards("thousand", preferring(v1.LabelHostname, thousandApps())))
	}},
	{"a preference for pods not of ten thousand apps", func(c *cluster.Cluster) {
		apps := make([]string, 10_000)
		for i := range apps {
			apps[i] = fmt.Sprint("app-", i)
		}
		selector := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: apps}}}
		c.SetPod(towards("but", preferring(v1.LabelTopologyZone, selector)))
	}},
	{"a pod with two hundred labels", func(c *cluster.Cluster) {
		pod := towards("labels")
		pod.Labels = map[string]string{"app": "app-1"}
		for i := range 200 {
			pod.Labels[fmt.Sprint("label-", i)] = "x"
		}
		c.SetPod(pod)
	}},
	{"a pod that asks for 2^62 bytes", func(c *cluster.Cluster) {
		pod := towards("huge")
		pod.Spec.Containers[0].Resources.Requests[v1.ResourceMemory] = resource.MustParse("4611686018427387904")
		c.SetPod(pod)
	}},
	{"a node with an empty zone", func(c *cluster.Cluster) {
		c.SetNode(strangeNode(func(n *v1.Node) { n.Labels[v1.LabelTopologyZone] = "" }))
	}},
	{"a node without labels", func(c *cluster.Cluster) { c.SetNode(strangeNode(func(n *v1.Node) { n.Labels = nil })) }},
	{"a node with two hundred labels", func(c *cluster.Cluster) {
		c.SetNode(strangeNode(func(n *v1.Node) {
			for i := range 200 {
				n.Labels[fmt.Sprint("label-", i)] = "x"
			}
		}))
	}},
	{"a node with two hundred taints", func(c *cluster.Cluster) {
		c.SetNode(strangeNode(func(n *v1.Node) {
			for i := range 200 {
				n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: fmt.Sprint("taint-", i), Effect: v1.TaintEffectPreferNoSchedule})
			}
		}))
	}},
	{"a node of 2^62 bytes", func(c *cluster.Cluster) {
		c.SetNode(strangeNode(func(n *v1.Node) {
			n.Status.Allocatable[v1.ResourceMemory] = resource.MustParse("4611686018427387904")
			n.Status.Allocatable[v1.ResourcePods] = resource.MustParse("1000000")
		}))
	}},
	{"a node with two hundred images", func(c *cluster.Cluster) {
		c.SetNode(strangeNode(func(n *v1.Node) {
			for i := range 200 {
				n.Status.Images = append(n.Status.Images, v1.ContainerImage{Names: []string{fmt.Sprint("image-", i), "registry.k8s.io/pause:3.10"}, SizeBytes: 1 << 30})
			}
		}))
	}},
}

func hundredTerms() *v1.Pod {
	var change []func(*v1.Pod)
	for i := range 100 {
		change = append(change, preferring(fmt.Sprint("k", i%9), &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint("app-", i%10)}}))
	}
	return towards("hundred", change...)
}

// thousandsOfTerms returns a pod with 2,000 terms. Each term selects all pods except the pods of
// one app. The name of the app consists of prefix and the number of the term.
func thousandsOfTerms(prefix string) *v1.Pod {
	var change []func(*v1.Pod)
	for i := range 2000 {
		change = append(change, preferring(fmt.Sprint("k", i%9), notOf(fmt.Sprint(prefix, "-", i))))
	}
	return towards("thousands", change...)
}

func thousandApps() *metav1.LabelSelector {
	values := make([]string, 1000)
	for i := range values {
		values[i] = fmt.Sprint("app-", i)
	}
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: values}}}
}

func everyPod() *metav1.LabelSelector { return &metav1.LabelSelector{} }

func notOf(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: []string{app}}}}
}

func towards(name string, change ...func(*v1.Pod)) *v1.Pod {
	pod := benchPod(0, "plain")
	pod.Name, pod.UID, pod.Labels = name, types.UID(name), nil
	pod.Spec.NodeName = "node-0"
	pod.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{}, PodAntiAffinity: &v1.PodAntiAffinity{}}
	for _, f := range change {
		f(pod)
	}
	return pod
}

func aTerm(key string, selector *metav1.LabelSelector) v1.PodAffinityTerm {
	return v1.PodAffinityTerm{TopologyKey: key, LabelSelector: selector, NamespaceSelector: &metav1.LabelSelector{}}
}

func preferring(key string, selector *metav1.LabelSelector) func(*v1.Pod) {
	return func(p *v1.Pod) {
		list := &p.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		*list = append(*list, v1.WeightedPodAffinityTerm{Weight: 10, PodAffinityTerm: aTerm(key, selector)})
	}
}

func disliking(key string, selector *metav1.LabelSelector) func(*v1.Pod) {
	return func(p *v1.Pod) {
		list := &p.Spec.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution
		*list = append(*list, v1.WeightedPodAffinityTerm{Weight: 10, PodAffinityTerm: aTerm(key, selector)})
	}
}

func avoiding(key string, selector *metav1.LabelSelector) func(*v1.Pod) {
	return func(p *v1.Pod) {
		list := &p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
		*list = append(*list, aTerm(key, selector))
	}
}

// strangeNode returns an ordinary node with the given change.
func strangeNode(change func(*v1.Node)) *v1.Node {
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "strange", Labels: map[string]string{v1.LabelHostname: "strange", v1.LabelTopologyZone: "z0"}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("32"), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110"),
		}},
	}
	change(n)
	return n
}

// worstModes are the kinds of ordinary pods.
var worstModes = []string{
	"plain", "spread", "affinity", "anti", "500 shapes", "1000 apps, spread", "1000 apps, affinity", "1000 apps, anti", "service", "new apps, spread", "new apps, anti",
}

// worstPod returns the i-th pod of a round; in a mode of new apps, its app has never been used
// before.
func worstPod(i, serial int, mode string) *v1.Pod {
	if of, is := strings.CutPrefix(mode, "new apps, "); is {
		return benchPod(serial, "1000 apps, "+of)
	}
	return benchPod(i, mode)
}

// worstCluster returns the cluster for the pods of a mode.
func worstCluster(nodes int, mode string) *cluster.Cluster {
	c := benchCluster(nodes, false)
	withManyKeys(c)
	if mode == "service" {
		for i := range 10 {
			c.Services.Set(&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint(i)}, Spec: v1.ServiceSpec{Selector: map[string]string{"app": fmt.Sprint("app-", i)}}})
		}
	}
	return c
}

// costOf returns the processor time of a decision for an ordinary pod: the minimum of several
// rounds.
func costOf(nodes int, mode string, rounds int, add func(*cluster.Cluster)) time.Duration {
	c := worstCluster(nodes, mode)
	d := New(c, plugins.Default(), 1)
	if add != nil {
		add(c)
	}
	const pods = 500
	serial, best := 0, time.Hour
	for range rounds + 1 {
		began := processorTime()
		var placed []*cluster.Pod
		for i := range pods {
			serial++
			pod := worstPod(i, serial, mode)
			pod.UID = types.UID(fmt.Sprint("p", serial))
			p := c.Pending(pod)
			decision := d.Decide(p)
			if decision.Node != nil {
				c.Place(p, decision.Node)
				placed = append(placed, p)
			}
		}
		best = min(best, (processorTime()-began)/pods)
		for _, p := range placed {
			c.RemovePod(p.UID())
		}
	}
	return best
}

func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkWorstObjects measures, for each worst case, the highest factor over all modes by which
// the object increases the processor time of a decision for an ordinary pod. Run it with -benchtime
// 1x.
func BenchmarkWorstObjects(b *testing.B) {
	const rounds = 5
	for _, nodes := range []int{1000, 5000} {
		without := map[string]time.Duration{}
		for _, mode := range worstModes {
			without[mode] = costOf(nodes, mode, rounds, nil)
		}
		for _, w := range worstCases {
			b.Run(fmt.Sprintf("%d nodes/%s", nodes, w.name), func(b *testing.B) {
				var worst float64
				for b.Loop() {
					for _, mode := range worstModes {
						worst = max(worst, float64(costOf(nodes, mode, rounds, w.add))/float64(without[mode]))
					}
				}
				b.ReportMetric(worst, "times")
			})
		}
	}
}
