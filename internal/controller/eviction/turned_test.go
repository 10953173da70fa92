// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// turnedAt returns the event of a node that has failed since one time, and has been in the state
// given by the taint key since another time.
func turnedAt(key string, failed, at time.Time) eviction.Event {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n", ResourceVersion: at.String()}}
	node.Spec.Taints = []v1.Taint{
		{Key: key, Effect: v1.TaintEffectNoSchedule, TimeAdded: &metav1.Time{Time: at}},
		{Key: key, Effect: v1.TaintEffectNoExecute, TimeAdded: &metav1.Time{Time: failed}},
	}
	return eviction.NodeSeen{Node: eviction.NodeOf(node)}
}

func tolerating(key string, seconds int64) v1.Toleration {
	return v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &seconds}
}

// TestAlternatingNodeKeepsNoPods turns a node from not-ready to unreachable and back every 20 s. It
// verifies that a pod that tolerates either taint for 300 s keeps its first deadline, and that a
// pod that tolerates not-ready forever is due 30 s after each change to unreachable. A controller
// that starts in the middle must compute the same deadlines.
func TestAlternatingNodeKeepsNoPods(t *testing.T) {
	states := []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable}
	either := []v1.Toleration{tolerating(states[0], 300), tolerating(states[1], 300)}
	one := []v1.Toleration{{Key: states[0], Operator: v1.TolerationOpExists}, tolerating(states[1], 30)}
	begin := func(event eviction.Event, now time.Time) *eviction.Core {
		core := eviction.New(eviction.Options{})
		core.Step(now, eviction.NodesListing{})
		core.Step(now, event)
		core.Step(now, eviction.NodesListed{})
		core.Step(now, eviction.PodsListing{})
		for uid, tolerations := range map[types.UID][]v1.Toleration{"either": either, "one": one} {
			core.Step(now, eviction.PodSeen{Pod: eviction.Pod{Name: types.NamespacedName{Name: string(uid)}, UID: uid, Node: "n", Tolerations: tolerations}})
		}
		core.Step(now, eviction.PodsListed{})
		return core
	}
	core := begin(turnedAt(states[0], start, start), start)
	for i := range 14 {
		now := start.Add(time.Duration(i) * 20 * time.Second)
		event := turnedAt(states[i%2], start, now)
		core.Step(now, event)
		for _, core := range []*eviction.Core{core, begin(event, now.Add(5*time.Second))} {
			// Times in objects are truncated to whole seconds, so the deadline may be one second
			// later.
			if due, _ := core.Due("either"); due.At.Sub(start)/time.Second < 300 || due.At.Sub(start)/time.Second > 301 {
				t.Errorf("turn %d, to %s: %v, want 300 s after the failure began", i, states[i%2], due)
			}
			due, _ := core.Due("one")
			if late := due.At.Sub(now); i%2 == 0 && !due.Stays() || i%2 == 1 && late.Round(time.Second) != 30*time.Second {
				t.Errorf("turn %d, to %s at %s: %v, want 30 s of unreachable, and not-ready for ever", i, states[i%2], now.Format(time.TimeOnly), due)
			}
		}
	}
}
