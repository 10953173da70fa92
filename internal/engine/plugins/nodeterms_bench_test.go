// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// manyTerms are pods with 20,000 terms or requirements, none of which rejects a node immediately.
var manyTerms = []struct {
	name string
	term func(k int) v1.NodeSelectorTerm
}{
	{"a label and a host name", func(k int) v1.NodeSelectorTerm {
		return expressions(in(v1.LabelHostname, fmt.Sprint("none-", k)), not(fmt.Sprint("k", k%20), fmt.Sprint("v", k)))
	}},
	{"a label and the name", func(k int) v1.NodeSelectorTerm {
		t := expressions(in("k0", fmt.Sprint("v", k), "v"))
		t.MatchFields = []v1.NodeSelectorRequirement{in(metav1.ObjectNameField, fmt.Sprint("node-", k%5000))}
		return t
	}},
	{"a zone and not the name", func(k int) v1.NodeSelectorTerm {
		t := expressions(in(v1.LabelTopologyZone, "z0"), in("k0", "9"))
		t.MatchFields = []v1.NodeSelectorRequirement{not(metav1.ObjectNameField, fmt.Sprint("none-", k))}
		return t
	}},
	{"a zone and a key of its own", func(k int) v1.NodeSelectorTerm {
		return expressions(in(v1.LabelTopologyZone, "z0", "z1", "z2"), in(fmt.Sprint("own-", k), "x"))
	}},
	{"a zone and the same one not", func(k int) v1.NodeSelectorTerm {
		return expressions(in(v1.LabelTopologyZone, "z0", "z1", "z2", fmt.Sprint("v", k)), not(v1.LabelTopologyZone, "z0", "z1", "z2"))
	}},
	{"a zone and a number", func(k int) v1.NodeSelectorTerm {
		return expressions(in(v1.LabelTopologyZone, "z0", "z1", "z2"), v1.NodeSelectorRequirement{Key: "serial", Operator: v1.NodeSelectorOpGt, Values: []string{fmt.Sprint(5000 + k)}})
	}},
	{"a machine and a thousand keys", func(k int) v1.NodeSelectorTerm {
		return expressions(not("machine", fmt.Sprint("v", k)), in(fmt.Sprint("own-", k%1000), "x"))
	}},
}

func expressions(list ...v1.NodeSelectorRequirement) v1.NodeSelectorTerm {
	return v1.NodeSelectorTerm{MatchExpressions: list}
}

func in(key string, values ...string) v1.NodeSelectorRequirement {
	return v1.NodeSelectorRequirement{Key: key, Operator: v1.NodeSelectorOpIn, Values: values}
}

func not(key string, values ...string) v1.NodeSelectorRequirement {
	return v1.NodeSelectorRequirement{Key: key, Operator: v1.NodeSelectorOpNotIn, Values: values}
}

func labelledNodes(nodes int) *cluster.Cluster {
	c := cluster.New()
	for i := range nodes {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i), Labels: map[string]string{
			v1.LabelHostname: fmt.Sprint("node-", i), v1.LabelTopologyZone: fmt.Sprint("z", i%3), "machine": fmt.Sprint("m", i), "serial": fmt.Sprint(i),
		}}}
		for k := range 20 {
			n.Labels[fmt.Sprint("k", k)] = fmt.Sprint(i % (k + 2))
		}
		c.SetNode(n)
	}
	return c
}

// BenchmarkManyTerms reads 20,000 terms of a pod, and matches 5,000 nodes: with required terms,
// with preferred terms, and with the requirements of a single term. It also reports processor time,
// for busy machines.
func BenchmarkManyTerms(b *testing.B) {
	const many = 20_000
	c := labelledNodes(5000)
	nodes := c.SortedNodes()
	plugin, err := NewNodeAffinity(nil)
	if err != nil {
		b.Fatal(err)
	}
	for _, shape := range manyTerms {
		required, preferred, one := &v1.NodeAffinity{}, &v1.NodeAffinity{}, v1.NodeSelectorTerm{}
		selector := &v1.NodeSelector{}
		for k := range many {
			t := shape.term(k)
			selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, t)
			preferred.PreferredDuringSchedulingIgnoredDuringExecution = append(preferred.PreferredDuringSchedulingIgnoredDuringExecution,
				v1.PreferredSchedulingTerm{Weight: int32(1 + k%100), Preference: t})
			one.MatchExpressions = append(one.MatchExpressions, not(fmt.Sprint("own-", k), "x"))
		}
		required.RequiredDuringSchedulingIgnoredDuringExecution = selector
		ask := func(b *testing.B, affinity *v1.NodeAffinity) {
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p"}, Spec: v1.PodSpec{Affinity: &v1.Affinity{NodeAffinity: affinity}}}
			var read, asked time.Duration
			for b.Loop() {
				p := cluster.NewPod(&cluster.PodClass{Spec: &cluster.Spec{Shape: &cluster.Shape{}, Extras: &cluster.Extras{}, Spread: &cluster.Spread{}, NodeAffinity: pod.Spec.Affinity.NodeAffinity.DeepCopy()}}, "", "") // not cached yet
				began := processorTime(b)
				judge, scoring := plugin.Filter(c, p), plugin.Score(c, p, nil)
				between := processorTime(b)
				read += between - began
				for _, n := range nodes {
					if judge.Node != nil && (judge.Only == nil || judge.Only[n.Name]) && judge.Node(n) == nil {
						continue
					}
					if scoring.Node != nil {
						_, _ = scoring.Node(n)
					}
				}
				asked += processorTime(b) - between
			}
			b.ReportMetric(read.Seconds()*1000/float64(b.N), "ms-read/op")
			b.ReportMetric(asked.Seconds()*1000/float64(b.N), "ms-asked/op")
		}
		b.Run(shape.name, func(b *testing.B) { ask(b, required) })
		b.Run(shape.name+", preferred", func(b *testing.B) { ask(b, preferred) })
		if shape.name == manyTerms[0].name {
			b.Run("one term of as many keys", func(b *testing.B) {
				ask(b, &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{one}}})
			})
		}
	}
}

func processorTime(tb testing.TB) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
