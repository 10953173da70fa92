// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestAConditionIsWrittenOnce verifies that a decided write is not repeated before the watch has
// shown it, except after half a minute, since the write may have been refused. It also verifies
// that Reworded is set if only the message is new.
func TestAConditionIsWrittenOnce(t *testing.T) {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}})
	if err != nil {
		t.Fatal(err)
	}
	now := begin
	// node returns the event of a node. Any node with enough CPU has a taint, so that the pod never
	// fits.
	node := func(name, cpu string, taints ...v1.Taint) Event {
		return Seen{Nodes, &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.NodeSpec{Taints: taints},
			Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourcePods: resource.MustParse("110"), v1.ResourceCPU: resource.MustParse(cpu)}},
		}}
	}
	tainted := v1.Taint{Key: "k", Effect: v1.TaintEffectNoSchedule}
	// The pod is tried each time the node grows.
	grow := func(name string) []Event { return []Event{node(name, "0", tainted), node(name, "2", tainted)} }
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "p", UID: "u", ResourceVersion: "1"},
		Spec: v1.PodSpec{SchedulerName: v1.DefaultSchedulerName, Containers: []v1.Container{{
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}},
		}}},
	}
	// try retries the pod, and returns the written condition, or "".
	try := func(events ...Event) (written string) {
		now = now.Add(10 * time.Second) // longer than the back-off
		for _, e := range append(events, Tick{}) {
			for _, action := range core.Step(now, e) {
				if a, ok := action.(WriteStatus); ok {
					written = fmt.Sprint(a.Condition.Message[:len("0/1 nodes")], " ", a.Reworded)
				}
			}
		}
		return written
	}
	shown := func(version, message string) Event {
		p := pod.DeepCopy()
		p.ResourceVersion = version
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable, Message: message}}
		return Seen{Pods, p}
	}
	for i, step := range []struct {
		what   string
		events []Event
		want   string
	}{
		{"the first time", []Event{Follows{}, Led{}, node("n1", "0"), Seen{Pods, pod}}, "0/1 nodes false"},
		{"another node comes", grow("n2"), "0/2 nodes true"},
		{"that is not shown yet", grow("n2"), ""},
		{"nor half a minute later", grow("n2"), ""},
		{"by then somebody may have refused it", grow("n2"), "0/2 nodes false"},
		{"the watch shows something else", append(grow("n2"), shown("2", "older")), "0/2 nodes true"},
	} {
		if got := try(step.events...); got != step.want {
			t.Errorf("%d. %s: written %q, want %q", i+1, step.what, got, step.want)
		}
	}
}
