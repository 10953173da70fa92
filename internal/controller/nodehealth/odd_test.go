// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
)

// The functions in oddNodes change a node as its own credential can, and return the renewal times
// that its Lease has in turn.
var oddNodes = map[string]func(n *v1.Node) []time.Time{
	"renewed in the future":    func(*v1.Node) []time.Time { return []time.Time{begin.AddDate(5000, 0, 0)} },
	"renewed before all times": func(*v1.Node) []time.Time { return []time.Time{{}, begin.AddDate(-1900, 0, 0)} },
	"renewed back and forth": func(*v1.Node) []time.Time {
		return []time.Time{begin.Add(time.Hour), begin, begin.AddDate(5000, 0, 0), {}}
	},
	"from the future": func(n *v1.Node) []time.Time {
		n.CreationTimestamp = metav1.Time{Time: begin.AddDate(5000, 0, 0)}
		return nil
	},
	"from no time":       func(n *v1.Node) []time.Time { n.CreationTimestamp = metav1.Time{}; return nil },
	"without conditions": func(n *v1.Node) []time.Time { n.Status.Conditions = nil; return nil },
	"with many, from the future": func(n *v1.Node) []time.Time {
		later := metav1.Time{Time: begin.AddDate(5000, 0, 0)}
		for _, kind := range []v1.NodeConditionType{v1.NodeReady, v1.NodeMemoryPressure, v1.NodeNetworkUnavailable, "Odd"} {
			for _, status := range []v1.ConditionStatus{"", "Odd", v1.ConditionTrue, v1.ConditionFalse, v1.ConditionUnknown} {
				n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: kind, Status: status, LastHeartbeatTime: later, LastTransitionTime: later})
			}
		}
		return nil
	},
	"with odd taints": func(n *v1.Node) []time.Time {
		for i := range 500 {
			n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: []string{v1.TaintNodeUnreachable, v1.TaintNodeNotReady, "", "k"}[i%4],
				Value: strings.Repeat("x", i%7), Effect: []v1.TaintEffect{"Odd", "", v1.TaintEffectNoExecute}[i%3], TimeAdded: &metav1.Time{Time: begin.AddDate(5000, 0, 0)}})
		}
		return nil
	},
	"in an odd zone": func(n *v1.Node) []time.Time {
		n.Labels = map[string]string{v1.LabelTopologyZone: strings.Repeat("\x00", 10_000), v1.LabelTopologyRegion: ":", v1.LabelOSStable: strings.Repeat("x", 10_000)}
		return nil
	},
	"in the zone of others": func(n *v1.Node) []time.Time { n.Labels = map[string]string{v1.LabelTopologyZone: "z"}; return nil },
	"leaving": func(n *v1.Node) []time.Time {
		n.DeletionTimestamp = &metav1.Time{Time: begin.AddDate(-1900, 0, 0)}
		return nil
	},
}

// TestOddInputsHoldNobodyUp verifies that despite arbitrary reports of a compromised node, a silent
// node among five other nodes is detected as unreachable in time, and that the other four are
// unchanged.
func TestOddInputsHoldNobodyUp(t *testing.T) {
	all := map[string]func(*v1.Node) []time.Time{}
	for name, odd := range oddNodes {
		t.Run(name, func(t *testing.T) { besideOdd(t, map[string]func(*v1.Node) []time.Time{name: odd}) })
		all[name] = odd
	}
	t.Run("all of them", func(t *testing.T) { besideOdd(t, all) })
}

func besideOdd(t *testing.T, odd map[string]func(*v1.Node) []time.Time) {
	core, now := nodehealth.New(nodehealth.Defaults()), begin
	nodes, leases := map[string]*v1.Node{}, map[string][]time.Time{}
	node := func(name string) *v1.Node {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: "1", CreationTimestamp: metav1.Time{Time: begin.Add(-time.Hour)},
			Labels: map[string]string{v1.LabelTopologyZone: "z"}}}
		n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: metav1.Time{Time: begin}, LastTransitionTime: metav1.Time{Time: begin}}}
		nodes[name] = n
		return n
	}
	for i := range 5 {
		node(fmt.Sprint("n", i))
	}
	for name, change := range odd {
		n := node("odd " + name)
		leases[n.Name] = change(n)
	}
	var unreachable time.Time
	writes := map[string]int{}
	var step func(e nodehealth.Event)
	step = func(e nodehealth.Event) {
		for _, action := range core.Step(now, e) {
			var answer nodehealth.Answered
			var name string
			switch a := action.(type) {
			case nodehealth.WriteStatus:
				answer.Ticket, name = a.Ticket, a.Node
				n := nodes[name].DeepCopy()
				for _, c := range a.Conditions {
					n.Status.Conditions = append(slices.DeleteFunc(n.Status.Conditions, func(o v1.NodeCondition) bool { return o.Type == c.Type }), c)
				}
				nodes[name] = n
			case nodehealth.WriteNode:
				answer.Ticket, name = a.Ticket, a.Node
				n := nodes[name].DeepCopy()
				if a.SetTaints {
					n.Spec.Taints = a.Taints
				}
				maps.Copy(n.Labels, a.Labels)
				nodes[name] = n
				if a.SetTaints && strings.HasPrefix(name, "n") {
					if name != "n0" {
						t.Errorf("after %v: %s", now.Sub(begin), a)
					} else if strings.Contains(a.String(), "unreachable:NoExecute") {
						unreachable = now
					}
				}
			case nodehealth.MarkPods:
				step(nodehealth.Answered{Ticket: a.Ticket})
				continue
			default:
				continue
			}
			if writes[name]++; writes[name] > 100 {
				t.Fatalf("after %v, written for the %d. time: %s", now.Sub(begin), writes[name], action)
			}
			after := nodehealth.NodeOf(nodes[name])
			answer.Node = &after
			step(answer)
		}
	}
	step(nodehealth.NodesListing{})
	for _, name := range sortedNames(nodes) {
		step(nodehealth.NodeSeen{Node: nodehealth.NodeOf(nodes[name])})
	}
	step(nodehealth.NodesListed{})
	step(nodehealth.LeasesListed{})
	for beats := range 30 { // five minutes
		for _, name := range sortedNames(nodes) {
			renewed := begin.Add(time.Duration(beats) * beat)
			if says := leases[name]; len(says) > 0 {
				renewed = says[beats%len(says)]
			}
			if name != "n0" || beats < 3 { // n0 falls silent
				step(nodehealth.LeaseSeen{Name: name, ResourceVersion: fmt.Sprint(beats), Renewed: renewed})
			}
		}
		for end := begin.Add(time.Duration(beats+1) * beat); ; {
			at := core.Wake(now)
			if !at.Before(end) {
				now = end
				break
			}
			if at.After(now) {
				now = at
			}
			step(nodehealth.Tick{})
		}
	}
	silent := begin.Add(2 * beat)
	if after := unreachable.Sub(silent); after < 50*time.Second || after > 70*time.Second {
		t.Errorf("unreachable %v after its last sign of life", after)
	}
}

func sortedNames(nodes map[string]*v1.Node) (names []string) {
	for name := range nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
