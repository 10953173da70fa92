// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// BenchmarkCore lists 5,000 nodes with 150,000 pods, taints 100 of the nodes, and carries out the
// evictions of their 3,000 pods. It reports the Core's CPU time per eviction and its memory per
// pod.
func BenchmarkCore(b *testing.B) {
	const nodes, perNode, tainted = 5000, 30, 100
	seconds := int64(300)
	tolerations := []v1.Toleration{
		{Key: v1.TaintNodeNotReady, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &seconds},
		{Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &seconds},
	}
	for range b.N {
		b.StopTimer()
		before := heap()
		core, now := eviction.New(eviction.Options{}), start
		node := func(i int) eviction.Node {
			return eviction.Node{Name: fmt.Sprintf("node-%d", i), UID: types.UID(fmt.Sprint(i)), ResourceVersion: "1"}
		}
		for i := range nodes {
			core.Step(now, eviction.NodeSeen{Node: node(i)})
		}
		for i := range nodes * perNode {
			name := types.NamespacedName{Namespace: "default", Name: fmt.Sprintf("deployment-5d8f7c9b4-%d", i)}
			core.Step(now, eviction.PodSeen{Pod: eviction.Pod{
				Name: name, UID: types.UID(fmt.Sprintf("6f1b3c1e-0000-0000-0000-%012d", i)), ResourceVersion: fmt.Sprint(i + 1),
				Node: fmt.Sprintf("node-%d", i%nodes), Tolerations: tolerations, Bound: now,
			}})
		}
		b.ReportMetric(float64(heap()-before)/(nodes*perNode), "B/pod")
		b.StartTimer()
		began := time.Now()
		evicted := 0
		for i := range tainted {
			n := node(i)
			n.Taints = []v1.Taint{{Key: "a", Effect: v1.TaintEffectNoExecute}}
			pending := core.Step(now, eviction.NodeSeen{Node: n})
			for len(pending) > 0 {
				action := pending[0]
				pending = pending[1:]
				switch a := action.(type) {
				case eviction.ReadNode:
					pending = append(pending, core.Step(now, eviction.Answered{Ticket: a.Ticket, Node: &n})...)
				case eviction.Mark:
					p := eviction.Pod{Name: a.Name, UID: a.UID, Node: n.Name, Tolerations: tolerations, Marked: true}
					pending = append(pending, core.Step(now, eviction.Answered{Ticket: a.Ticket, Pod: &p})...)
				case eviction.Delete:
					evicted++
					pending = append(pending, core.Step(now, eviction.PodGone{Name: a.Name, UID: a.UID})...)
					pending = append(pending, core.Step(now, eviction.Answered{Ticket: a.Ticket})...)
				}
			}
		}
		if evicted != tainted*perNode {
			b.Fatalf("%d evicted, want %d", evicted, tainted*perNode)
		}
		b.ReportMetric(float64(time.Since(began).Nanoseconds())/float64(evicted), "ns/eviction")
		runtime.KeepAlive(core)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
