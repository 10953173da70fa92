// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/world/virtual"
)

// TestEveryFaultIsSurvived verifies the properties of virtual.Verify: pods that must leave because
// of a taint of their node or a rule for their device are deleted within 75 s after any fault.
func TestEveryFaultIsSurvived(t *testing.T) {
	injected := virtual.Verify(func() *virtual.Subject { return subject(New(0)) }, t.Errorf)
	t.Log(virtual.Summary(injected))
}

func subject(w *World) *virtual.Subject {
	w.AddNode("n")
	w.AddNode("m")
	w.AddNode("o")
	w.AddPod("p", "n", nil)
	w.AddPod("q", "m", nil)
	w.AddPod("r", "o", Tolerating(v1.Toleration{Operator: v1.TolerationOpExists, TolerationSeconds: ptr.To[int64](30)}))
	w.Devices.AddSlice("m", "d1")
	w.Devices.Allocate("q", "d1", nil)
	w.Requests.Until = w.Now.Add(time.Hour) // Truth must not report late evictions
	return &virtual.Subject{
		Time: w.Time, Process: w.Controller, Faults: &w.Requests.Line.Faults, Requests: &w.Requests.Line.Requests, Watches: w.Watches(),
		Kinds: []string{"ReadNode", "ReadPod", "ReadDevices", "Mark", "Delete", "Annotate", "WriteStatus"},
		SetClock: func(ahead time.Duration) {
			w.Controller.Ahead = ahead
			w.Truth.EarlyBy = max(w.Truth.EarlyBy, ahead)
		},
		Begin: func() {
			w.Taint("n", "key", "value", false)
			w.Devices.SetRule("recall", "m", v1.TaintEffectNoExecute)
			w.Taint("o", "key", "value", false)
			// The note of the node contains the start of the first taint.
			w.After(5*time.Second, func() { w.Taint("o", "other", "value", false) })
			w.Touch("p") // a mark conditional on the observed version conflicts
		},
		Recovers: 75 * time.Second,
		Wrong: func() (wrong []string) {
			for _, name := range []string{"p", "q", "r"} {
				if w.PodNamed(name) != nil {
					wrong = append(wrong, "pod "+name+" still exists")
				}
			}
			if is := w.Devices.Rule("recall").Condition; is.Status != metav1.ConditionFalse {
				wrong = append(wrong, fmt.Sprintf("the status of the rule is %s: %s", is.Status, is.Message))
			}
			return append(wrong, w.Truth.Wrong...)
		},
		Clear:   w.Clear,
		Entries: func() int { return w.Core().Entries() },
	}
}

// TestPodsShareTheFailedReadsOfTheirNode verifies that many pods do not increase the number of
// failed reads of their node, and that the pods are evicted soon after the node can be read.
func TestPodsShareTheFailedReadsOfTheirNode(t *testing.T) {
	const pods, within = 20, 6 * time.Second
	w := New(0)
	w.AddNode("n")
	w.AddNode("other")
	for i := range pods {
		after := int64(i)
		for _, node := range []string{"n", "other"} {
			w.AddPod(fmt.Sprintf("%s-%d", node, i), node, []v1.Toleration{{Operator: v1.TolerationOpExists, TolerationSeconds: &after}})
		}
	}

	w.Requests.Line.Rules = []virtual.Rule{{Fault: virtual.Forbidden, Chance: 1, Kind: "ReadNode", Object: "n"}}
	w.Requests.Line.Limit = 20
	w.Controller.Start()
	w.Taint("n", "key", "value", false)
	w.Taint("other", "key", "value", false)
	w.Run(pods * time.Second)
	if w.Requests.Deleted < pods-1 {
		t.Errorf("%d of %d pods of the other node were deleted", w.Requests.Deleted, pods)
	}

	w.Run(10 * time.Minute)
	w.Requests.Line.Rules = nil
	w.Run(within)
	if excess := w.Requests.Line.Excess; len(excess) > 0 {
		t.Error(excess[0])
	}
	if w.Requests.Deleted != 2*pods {
		t.Errorf("%d of %d pods were deleted within %v of the recovery", w.Requests.Deleted-pods, pods, within)
	}
}
