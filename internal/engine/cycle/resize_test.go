// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// deferred returns a pod of priority 10 on node n that grows from 1 CPU to the given amount, which
// the kubelet has deferred.
func deferred(cpu string) *v1.Pod {
	pod := aPod("grows", cpu)
	pod.Spec.NodeName, *pod.Spec.Priority = "n", 10
	one := v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
	pod.Status.ContainerStatuses = []v1.ContainerStatus{{
		Name: pod.Spec.Containers[0].Name, AllocatedResources: one, Resources: &v1.ResourceRequirements{Requests: one},
	}}
	pod.Status.Conditions = []v1.PodCondition{{Type: v1.PodResizePending, Status: v1.ConditionTrue, Reason: v1.PodReasonDeferred}}
	return pod
}

// placedPod returns a pod on node n.
func placedPod(name, cpu string, priority int32) *v1.Pod {
	pod := aPod(name, cpu)
	pod.Spec.NodeName, *pod.Spec.Priority = "n", priority
	return pod
}

// resizing is a core with the gate, and the actions of its steps.
type resizing struct {
	*Core
	now     time.Time
	actions []Action
}

func newResizing(t *testing.T, gate bool, objects ...Event) *resizing {
	t.Helper()
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, ResizePreemption: gate})
	if err != nil {
		t.Fatal(err)
	}
	r := &resizing{Core: core, now: begin}
	r.tell(append(append([]Event{Follows{}}, objects...), Led{})...)
	return r
}

// tell passes events to the core, and lets it decide until it rests.
func (r *resizing) tell(events ...Event) {
	r.actions = nil
	for _, e := range append(events, Tick{}, Tick{}, Tick{}) {
		r.actions = append(r.actions, r.Step(r.now, e)...)
	}
}

// victims lists the pods removed since the last events.
func (r *resizing) victims() (names string) {
	for _, a := range r.actions {
		if remove, ok := a.(Remove); ok {
			names += remove.Victim.Name
		}
	}
	return names
}

// attempts returns the number of attempts at the resize, -1 if it is not in the queue.
func (r *resizing) attempts() int {
	if item := r.View().Queue.Get(deferred("1").UID); item != nil {
		return item.Attempts
	}
	return -1
}

func (r *resizing) message() string {
	if d := r.Decision(cluster.Name{Namespace: "default", Name: "grows"}); d != nil {
		return d.Message
	}
	return ""
}

// TestDeferredResizePreempts follows a resize from the kubelet's deferral to its acceptance: the
// pods of lower priority on the node leave, and nothing is written to the running pod.
func TestDeferredResizePreempts(t *testing.T) {
	low, high := placedPod("low", "2", 0), placedPod("high", "1", 20)
	r := newResizing(t, true, Seen{Nodes, aNode("n", "4")}, Seen{Nodes, aNode("other", "8")},
		Seen{Pods, low}, Seen{Pods, high}, Seen{Pods, deferred("3")})
	if got := r.victims(); got != "low" {
		t.Fatalf("victims %q, want low; %s", got, r.message())
	}
	var ticket Ticket
	for _, action := range r.actions {
		switch a := action.(type) {
		case Remove:
			ticket = a.Ticket
		case WriteStatus, RecordEvent, Bind:
			t.Errorf("unexpected %v", a)
		}
	}

	r.now = r.now.Add(time.Minute)
	low.DeletionTimestamp = ptr.To(aPod("x", "1").CreationTimestamp)
	low.Status.Conditions = []v1.PodCondition{{
		Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler,
	}}
	if r.tell(Answered{Ticket: ticket}, Seen{Pods, low}); r.victims() != "" {
		t.Errorf("%q leaves while the victim terminates", r.victims())
	}

	before := r.attempts()
	if r.tell(Gone{Pods, low}); r.attempts() != before+1 || !strings.Contains(r.message(), "waiting for Kubelet actuation") {
		t.Errorf("after the victim has left: %d attempts, want %d; %q", r.attempts(), before+1, r.message())
	}
	if p := r.View().Cluster.Pod(high.UID); p == nil || r.View().Cluster.Node("n").Requested.MilliCPU != 4000 {
		t.Errorf("node n has %v", r.View().Cluster.Node("n").Requested)
	}
	accepted := deferred("3")
	accepted.Status.Conditions = nil
	if r.tell(Seen{Pods, accepted}); r.attempts() != -1 {
		t.Error("the accepted resize is still in the queue")
	}
}

// TestDeferredResizeWithoutPreemption verifies when a deferred resize preempts no pod, and the
// reason that is kept.
func TestDeferredResizeWithoutPreemption(t *testing.T) {
	spares := aNode("n", "4")
	spares.Spec.PodPreemptionPolicy = &v1.NodePodPreemptionPolicy{DisableResizePreemption: []string{"example.com/operator"}}
	never := deferred("3")
	never.Spec.PreemptionPolicy = ptr.To(v1.PreemptNever)
	infeasible := deferred("3")
	infeasible.Status.Conditions[0].Reason = v1.PodReasonInfeasible
	terminating := deferred("3")
	terminating.DeletionTimestamp = ptr.To(terminating.CreationTimestamp)

	for name, row := range map[string]struct {
		gate      bool
		node      *v1.Node
		low, pod  *v1.Pod
		queued    bool
		explained string
	}{
		"the gate is off":      {false, aNode("n", "4"), placedPod("low", "2", 0), deferred("3"), false, ""},
		"the node spares pods": {true, spares, placedPod("low", "2", 0), deferred("3"), true, "node had resize preemption disabled"},
		"policy Never":         {true, aNode("n", "4"), placedPod("low", "2", 0), never, true, "not eligible due to preemptionPolicy=Never."},
		"equal priority":       {true, aNode("n", "4"), placedPod("low", "2", 10), deferred("3"), true, "No preemption victims found"},
		"too large":            {true, aNode("n", "4"), placedPod("low", "2", 0), deferred("5"), true, "Preemption is not helpful"},
		"room for it":          {true, aNode("n", "5"), placedPod("low", "2", 0), deferred("3"), true, "pod resize fits"},
		"infeasible":           {true, aNode("n", "4"), placedPod("low", "2", 0), infeasible, false, ""},
		"terminating":          {true, aNode("n", "4"), placedPod("low", "2", 0), terminating, false, ""},
	} {
		r := newResizing(t, row.gate, Seen{Nodes, row.node}, Seen{Nodes, aNode("other", "8")}, Seen{Pods, row.low}, Seen{Pods, row.pod})
		if got := r.victims(); got != "" || row.queued != (r.attempts() >= 0) || !strings.Contains(r.message(), row.explained) {
			t.Errorf("%s: victims %q, %d attempts, %q; want %q", name, got, r.attempts(), r.message(), row.explained)
		}
	}
}

// TestDeferredResizeIsTriedAgain verifies which events trigger a new attempt at a resize that does
// not fit, or that fits and waits for the kubelet.
func TestDeferredResizeIsTriedAgain(t *testing.T) {
	larger := aNode("n", "6")
	labeled := placedPod("rest", "3", 10)
	labeled.Labels = map[string]string{"new": "label"}
	spares := aNode("n", "4")
	spares.Spec.PodPreemptionPolicy = &v1.NodePodPreemptionPolicy{DisableResizePreemption: []string{"example.com/operator"}}
	elsewhere := placedPod("elsewhere", "1", 0)
	elsewhere.Spec.NodeName = "other"

	for name, row := range map[string]struct {
		node   *v1.Node // n at first
		cpu    string   // of the resize
		event  Event
		wanted bool
	}{
		"a pod of the node ends":        {aNode("n", "4"), "3", Gone{Pods, placedPod("rest", "3", 10)}, true},
		"a pod of the node shrinks":     {aNode("n", "4"), "3", Seen{Pods, placedPod("rest", "1", 10)}, true},
		"it shrinks too little":         {aNode("n", "4"), "3", Seen{Pods, placedPod("rest", "2", 10)}, false},
		"a pod of another node ends":    {aNode("n", "4"), "3", Gone{Pods, elsewhere}, false},
		"a label changes":               {aNode("n", "4"), "3", Seen{Pods, labeled}, false},
		"the node grows":                {aNode("n", "4"), "3", Seen{Nodes, larger}, true},
		"another node is added":         {aNode("n", "4"), "3", Seen{Nodes, aNode("new", "9")}, false},
		"the resize becomes smaller":    {aNode("n", "4"), "3", Seen{Pods, deferred("2")}, true},
		"preemption is disabled":        {aNode("n", "4"), "3", Seen{Nodes, spares}, false},
		"preemption is enabled":         {spares, "3", Seen{Nodes, aNode("n", "4")}, true},
		"it fits, and the room is gone": {aNode("n", "6"), "3", Seen{Pods, placedPod("rest", "4", 10)}, true},
		"it fits, and still does":       {aNode("n", "9"), "3", Seen{Pods, placedPod("rest", "4", 10)}, false},
		"it fits, and grows":            {aNode("n", "6"), "3", Seen{Pods, deferred("4")}, true},
	} {
		r := newResizing(t, true, Seen{Nodes, row.node}, Seen{Nodes, aNode("other", "8")}, Seen{Pods, elsewhere},
			Seen{Pods, placedPod("rest", "3", 10)}, Seen{Pods, deferred(row.cpu)})
		before := r.attempts()
		if item := r.View().Queue.Get(deferred("1").UID); before < 1 || item.Place() != queue.Waiting {
			t.Fatalf("%s: %d attempts: %s", name, before, r.message())
		}
		r.now = r.now.Add(20 * time.Second)
		if r.tell(row.event); (r.attempts() > before) != row.wanted {
			t.Errorf("%s: tried again %t, want %t; %s", name, r.attempts() > before, row.wanted, r.message())
		}
	}
}
