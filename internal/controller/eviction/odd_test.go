// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/response"
)

var (
	future = metav1.Time{Time: start.AddDate(5000, 0, 0)}
	past   = metav1.Time{Time: start.AddDate(-1900, 0, 0)}
)

// The functions in oddNodes change a node with the taint k:NoExecute as its own credential can, and
// the functions in oddPods change a pod on such a node as a tenant can.
var oddNodes = map[string]func(n *v1.Node){
	"tainted in the future":    func(n *v1.Node) { n.Spec.Taints[0].TimeAdded = &future },
	"tainted before all times": func(n *v1.Node) { n.Spec.Taints[0].TimeAdded = &past },
	"tainted at no time":       func(n *v1.Node) { n.Spec.Taints[0].TimeAdded = &metav1.Time{} },
	"odd effects":              func(n *v1.Node) { n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Effect: "Odd"}, v1.Taint{}) },
	"both opposites, many times": func(n *v1.Node) {
		for _, key := range []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable, v1.TaintNodeNotReady} {
			for _, effect := range []v1.TaintEffect{v1.TaintEffectNoExecute, v1.TaintEffectNoSchedule} {
				n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: key, Effect: effect, TimeAdded: &future}, v1.Taint{Key: key, Effect: effect, TimeAdded: &past})
			}
		}
	},
	"five hundred taints": func(n *v1.Node) {
		for i := range 500 {
			n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: fmt.Sprint("t", i), Value: strings.Repeat("x", 63), Effect: v1.TaintEffectNoExecute})
		}
	},
	"a note that lies": func(n *v1.Node) {
		n.Annotations = map[string]string{eviction.NoteAnnotation: `{"k:NoExecute":"9999-01-01T00:00:00Z"}`}
	},
	"a note that is none": func(n *v1.Node) {
		n.Annotations = map[string]string{eviction.NoteAnnotation: strings.Repeat("[", 100_000)}
	},
	"fields that are none": func(n *v1.Node) {
		for _, text := range []string{"", "null", "{", `{"f:spec":1}`, `{"f:spec":{"f:taints":null}}`} {
			n.ManagedFields = append(n.ManagedFields, metav1.ManagedFieldsEntry{Time: &future, FieldsV1: metav1.NewFieldsV1(text)}, metav1.ManagedFieldsEntry{})
		}
	},
}

var oddPods = map[string]func(p *v1.Pod){
	"from the future": func(p *v1.Pod) { p.CreationTimestamp = future },
	"from no time":    func(p *v1.Pod) { p.CreationTimestamp = metav1.Time{} },
	"bound in the future": func(p *v1.Pod) {
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: future}}
	},
	"bound before all times": func(p *v1.Pod) {
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: past}}
	},
	"marked by somebody": func(p *v1.Pod) {
		p.Status.Conditions = []v1.PodCondition{{Type: v1.DisruptionTarget, Status: "Odd"}, {Type: v1.DisruptionTarget}}
	},
	"leaving in the future":  func(p *v1.Pod) { p.DeletionTimestamp = &future },
	"on a node that is none": func(p *v1.Pod) { p.Spec.NodeName = "none" },
	"of an odd generation":   func(p *v1.Pod) { p.Generation = math.MinInt64 },
	"with a finalizer":       func(p *v1.Pod) { p.Finalizers = []string{"example.com/never"} },
	"tolerates for odd times": func(p *v1.Pod) {
		for i, seconds := range []int64{math.MinInt64, -1, 0, 1, math.MaxInt64 / int64(time.Second), math.MaxInt64} {
			for _, operator := range []v1.TolerationOperator{"", "Exists", "Equal", "Gt", "Lt", "Odd"} {
				p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{Key: []string{"k", ""}[i%2], Operator: operator, Value: "9223372036854775808", TolerationSeconds: &seconds})
			}
		}
	},
	"tolerates two thousand things": func(p *v1.Pod) {
		for i := range 2000 {
			p.Spec.Tolerations = append(p.Spec.Tolerations, v1.Toleration{Key: fmt.Sprint("t", i), Operator: v1.TolerationOpExists, TolerationSeconds: new(int64(i))})
		}
	},
}

// TestOddInputsHoldNobodyUp verifies that despite arbitrary contents of a tenant's pods and of a
// compromised node, and although none of their pods ever terminates, another tenant's pod without
// an unlimited toleration is evicted on time, and a pod with one stays.
func TestOddInputsHoldNobodyUp(t *testing.T) {
	tainted := func(name string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1"}, Spec: v1.NodeSpec{
			Taints: []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoExecute, TimeAdded: &metav1.Time{Time: start}}}}}
	}
	on := func(node, name string) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), ResourceVersion: "1", CreationTimestamp: metav1.Time{Time: start}},
			Spec: v1.PodSpec{NodeName: node}}
	}
	var nodes []*v1.Node
	var pods []*v1.Pod
	each := func(name string, node *v1.Node, pod *v1.Pod) {
		nodes, pods = append(nodes, node), append(pods, pod)
		t.Run(name, func(t *testing.T) { holdsNobodyUp(t, tainted, on, []*v1.Node{node}, []*v1.Pod{pod}) })
	}
	for name, odd := range oddNodes {
		n := tainted("odd " + name)
		odd(n)
		each(name, n, on(n.Name, "on "+name))
	}
	for name, odd := range oddPods {
		n := tainted("under " + name)
		p := on(n.Name, "odd "+name)
		odd(p)
		each(name, n, p)
	}
	t.Run("all of them", func(t *testing.T) { holdsNobodyUp(t, tainted, on, nodes, pods) })
}

func holdsNobodyUp(t *testing.T, tainted func(string) *v1.Node, on func(node, name string) *v1.Pod, nodes []*v1.Node, pods []*v1.Pod) {
	goes, stays := on("witness", "goes"), on("witness", "stays")
	goes.Spec.Tolerations = []v1.Toleration{{Key: "k", Operator: v1.TolerationOpExists, TolerationSeconds: new(int64(60))}}
	stays.Spec.Tolerations = []v1.Toleration{{Key: "k", Operator: v1.TolerationOpExists}}
	nodes, pods = append([]*v1.Node{tainted("witness")}, nodes...), append(append([]*v1.Pod{goes}, pods...), stays)
	core, now, gone := eviction.New(eviction.Options{InFlight: 4}), start, time.Time{}
	var step func(e eviction.Event)
	step = func(e eviction.Event) {
		for _, action := range core.Step(now, e) {
			answer := eviction.Answered{Outcome: response.Refused} // refused by a webhook of the tenant
			switch a := action.(type) {
			case eviction.ReadNode:
				answer.Ticket, answer.Outcome = a.Ticket, response.Gone
				for _, n := range nodes {
					if n.Name == a.Node {
						node := eviction.NodeOf(n)
						answer.Outcome, answer.Node = response.OK, &node
					}
				}
			case eviction.ReadPod:
				answer.Ticket, answer.Outcome = a.Ticket, response.Gone
				for _, p := range pods {
					if p.Name == a.Name.Name && (p != goes || gone.IsZero()) {
						pod := eviction.PodOf(p)
						answer.Outcome, answer.Pod = response.OK, &pod
					}
				}
			case eviction.Mark:
				answer.Ticket = a.Ticket
				if a.UID == goes.UID {
					pod := eviction.PodOf(goes)
					pod.Marked = true
					answer.Outcome, answer.Pod = response.OK, &pod
				}
			case eviction.Delete:
				answer.Ticket = a.Ticket
				switch a.UID {
				case goes.UID:
					gone, answer.Outcome = now, response.OK
					defer step(eviction.PodGone{Name: a.Name, UID: a.UID})
				case stays.UID:
					t.Errorf("a pod that stays is deleted after %v", now.Sub(start))
				}
			case eviction.Annotate:
				answer.Ticket = a.Ticket
			default:
				continue
			}
			step(answer)
		}
	}
	step(eviction.NodesListing{})
	for _, n := range nodes {
		step(eviction.NodeSeen{Node: eviction.NodeOf(n)})
	}
	step(eviction.NodesListed{})
	step(eviction.PodsListing{})
	for _, p := range pods {
		step(eviction.PodSeen{Pod: eviction.PodOf(p)})
	}
	step(eviction.PodsListed{})
	for turns := 0; ; turns++ {
		at, ok := core.Wake()
		if !ok || at.After(start.Add(10*time.Minute)) {
			break
		}
		if turns > 1000*len(pods) {
			t.Errorf("%d turns in %v", turns, now.Sub(start))
			break
		}
		if at.After(now) {
			now = at
		}
		step(eviction.Tick{})
	}
	if after := gone.Sub(start); after < time.Minute || after > 65*time.Second {
		t.Errorf("a pod that tolerates the taint for a minute goes after %v", after)
	}
}
