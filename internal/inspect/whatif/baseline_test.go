// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// silent returns a town with its first node unreachable for a minute: the node's pods are evicted
// five minutes after it became unreachable.
func silent(cpu string, pods ...int) []metav1.Object {
	objects := town(cpu, pods...)
	for i, o := range objects {
		switch o := o.(type) {
		case *v1.Node:
			if i == 0 {
				since := metav1.NewTime(noon.Add(-time.Minute))
				o.Spec.Taints = []v1.Taint{
					{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoSchedule, TimeAdded: &since},
					{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute, TimeAdded: &since},
				}
				o.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionUnknown, LastTransitionTime: since}}
			}
		case *v1.Pod:
			grace := int64(300)
			o.Spec.Tolerations = []v1.Toleration{{Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &grace}}
			o.CreationTimestamp = metav1.NewTime(noon.Add(-time.Hour))
			o.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon)}}
		}
	}
	return objects
}

func cordon(node string) whatif.Step {
	return whatif.Step{Words: "cordon " + node, Operation: &simulate.Operation{Cordon: &simulate.Nodes{Node: node}}}
}

// TestWhatHappensAnywayIsNotPutDownToTheOperation verifies that evictions from a silent node are
// not attributed to a cordon.
func TestWhatHappensAnywayIsNotPutDownToTheOperation(t *testing.T) {
	f := forecast(t, silent("8", 3, 1, 1), cordon("node-1"))
	if len(f.Leaving) != 0 || len(f.Anyway) != 3 || f.Holds("evicted") || f.Holds("pending") || f.Holds("pdb") {
		t.Errorf("leaving %+v, anyway %+v", f.Leaving, f.Anyway)
	}
	if u := f.Utilisation.Without; u == nil || u.Pods != 5 {
		t.Errorf("without the cordon: %+v", u)
	}
}

// TestPodsThatFindNoPlaceBecauseOfTheOperation verifies that the forecast attributes the pending
// pods of the silent node to the cordon, because they would have found a node without it.
func TestPodsThatFindNoPlaceBecauseOfTheOperation(t *testing.T) {
	f := forecast(t, silent("4", 3, 1), cordon("node-1"))
	if !f.Holds("pending") || len(f.Leaving) != 0 {
		t.Errorf("pending %+v, leaving %+v", f.Pending, f.Leaving)
	}
	f = forecast(t, silent("4", 3, 4), cordon("node-1"))
	if f.Holds("pending") {
		t.Errorf("the other node was full: %+v", f.Pending)
	}
}

// TestSoonerThanAnyway verifies that the forecast of a drain of the silent node reports both the
// immediate eviction of pods and their later departure without the drain.
func TestSoonerThanAnyway(t *testing.T) {
	f := forecast(t, silent("8", 3, 1), whatif.Step{Operation: &simulate.Operation{Drain: &simulate.Drain{Nodes: simulate.Nodes{Node: "node-0"}}}})
	if len(f.Leaving) != 3 || len(f.Anyway) != 0 || !f.Holds("evicted") {
		t.Fatalf("leaving %+v, anyway %+v", f.Leaving, f.Anyway)
	}
	if o := f.Leaving[0].Otherwise; o == nil || o.After.String() != "240s" || o.Cause != simulate.ByTaint {
		t.Errorf("otherwise: %+v", o)
	}
}

// TestSparedPods verifies that the forecast reports pods that stay because of the operation.
func TestSparedPods(t *testing.T) {
	objects := silent("8", 3, 1)
	for _, o := range objects {
		switch o := o.(type) {
		case *v1.Node:
			o.Status.Conditions = nil
			for i := range o.Spec.Taints {
				o.Spec.Taints[i].Key = "maintenance"
			}
		case *v1.Pod:
			o.Spec.Tolerations[0].Key = "maintenance"
		}
	}
	f := forecast(t, objects, untaint("maintenance"))
	if len(f.Spared) != 3 || len(f.Leaving)+len(f.Anyway) != 0 {
		t.Errorf("spared %+v, leaving %+v, anyway %+v", f.Spared, f.Leaving, f.Anyway)
	}
}

func untaint(key string) whatif.Step {
	return whatif.Step{Operation: &simulate.Operation{Untaint: &simulate.Tainting{Nodes: simulate.Nodes{Node: "node-0"}, Taints: []string{key}}}}
}

// TestATaintOfANodesStateComesBack verifies that removing the taint of a silent node only delays
// the evictions, because node health restores it.
func TestATaintOfANodesStateComesBack(t *testing.T) {
	f := forecast(t, silent("8", 3, 1), untaint(v1.TaintNodeUnreachable))
	if len(f.Spared) != 0 || len(f.Leaving) != 0 || len(f.Anyway) != 3 {
		t.Fatalf("spared %+v, leaving %+v, anyway %+v", f.Spared, f.Leaving, f.Anyway)
	}
	if after := f.Anyway[0].After.Duration(); after < 5*time.Minute || after > 5*time.Minute+10*time.Second {
		t.Errorf("evicted after %s, want 5 minutes after node health's next pass", after)
	}
}

// terminating marks the node's pods as already being deleted. Their ReplicaSet has replaced them,
// up to its desired number.
func terminating(objects []metav1.Object, node string) {
	for _, o := range objects {
		if p, ok := o.(*v1.Pod); ok && p.Spec.NodeName == node {
			due := metav1.NewTime(noon.Add(30 * time.Second))
			p.DeletionTimestamp = &due
		}
	}
}

func TestTerminatingPodsAreNotMadeAgain(t *testing.T) {
	drain := whatif.Step{Operation: &simulate.Operation{Drain: &simulate.Drain{Nodes: simulate.Nodes{Node: "node-0"}}}}
	remove := whatif.Step{Operation: &simulate.Operation{RemoveNode: &simulate.Nodes{Node: "node-0"}}}
	for name, step := range map[string]whatif.Step{"drain": drain, "remove": remove} {
		objects := silent("8", 4, 4)
		terminating(objects, "node-0")
		f := forecast(t, objects, step)
		for _, l := range f.Leaving {
			if l.Next != nil {
				t.Errorf("%s: %s is made again as %s", name, l.Name, l.Next.Name)
			}
		}
		if name == "drain" && (len(f.Leaving) != 0 || len(f.Drains[0].Terminating) != 4) {
			t.Errorf("drain: leaving %+v, %+v", f.Leaving, f.Drains[0])
		}
	}
}

// TestTerminatingPodsEnd verifies that on a responsive node a terminating pod ends after its grace
// period, with and without the operation.
func TestTerminatingPodsEnd(t *testing.T) {
	objects := silent("8", 0, 2, 1)
	terminating(objects, "node-1")
	f := forecast(t, objects, cordon("node-2"))
	if len(f.Anyway) != 2 || len(f.Leaving) != 0 || f.Anyway[0].After.String() != "30s" || f.Anyway[0].Next != nil {
		t.Errorf("anyway %+v, leaving %+v", f.Anyway, f.Leaving)
	}
}

func TestARefusedDrainIsTheHeadline(t *testing.T) {
	objects := town("8", 2, 1)
	objects[1].(*v1.Pod).OwnerReferences = nil
	f := forecast(t, objects, whatif.Step{Words: "drain node-0", Operation: &simulate.Operation{Drain: &simulate.Drain{Nodes: simulate.Nodes{Node: "node-0"}}}})
	if !f.Holds("refused") {
		t.Error("not refused")
	}
	var out bytes.Buffer
	if err := f.Write(&out, ""); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Split(out.String(), "\n"); !strings.HasPrefix(lines[1], "kubectl drain refuses to begin on node-0 because of 1 pod.") {
		t.Errorf("%s", out.String())
	}
}

// TestNothingHappensOnANodeThatHasBeenEmptied verifies that an empty node, silent for a long time,
// causes no events.
func TestNothingHappensOnANodeThatHasBeenEmptied(t *testing.T) {
	f := forecast(t, silent("8", 0, 1, 1), cordon("node-1"))
	if f.For != 0 || !f.Settled || f.Utilisation.Without != nil {
		t.Errorf("after %s, settled %v, without the operation %+v", f.For, f.Settled, f.Utilisation.Without)
	}
}

// TestANodeThatIsAboutToBeUnreachable verifies that the pods of a node that has just fallen silent
// leave, and that the scheduler avoids the node although it is not tainted yet, both with and
// without the operation.
func TestANodeThatIsAboutToBeUnreachable(t *testing.T) {
	objects := town("8", 2, 1, 1)
	for i, o := range objects {
		switch o := o.(type) {
		case *v1.Node:
			renewed := metav1.NewMicroTime(noon)
			if i == 0 {
				renewed = metav1.NewMicroTime(noon.Add(-45 * time.Second))
			}
			o.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastTransitionTime: metav1.NewTime(noon.Add(-time.Hour))}}
			duration := int32(40)
			objects = append(objects, &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceNodeLease, Name: o.Name},
				Spec:       coordinationv1.LeaseSpec{RenewTime: &renewed, LeaseDurationSeconds: &duration},
			})
		case *v1.Pod:
			grace := int64(300)
			o.Spec.Tolerations = []v1.Toleration{{Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &grace}}
		}
	}
	f := forecast(t, objects, cordon("node-1"))
	if len(f.Leaving) != 0 || len(f.Anyway) != 2 || !f.Settled {
		t.Fatalf("leaving %+v, anyway %+v, settled %v", f.Leaving, f.Anyway, f.Settled)
	}
	for _, l := range f.Anyway {
		if l.After.Duration() < 5*time.Minute || l.After.Duration() > 6*time.Minute || l.Next == nil || l.Next.Node != "node-2" {
			t.Errorf("%+v", l)
		}
	}
}

// TestAForecastFitsItsQuestion verifies the default horizon: node health may taint forty of sixty
// unready nodes one by one, a hundred seconds apart. A forecast reports that it does not wait for
// the taints; it does wait for a drain held up by a budget for five minutes on each node.
func TestAForecastFitsItsQuestion(t *testing.T) {
	objects := town("16", slices.Repeat([]int{1}, 60)...)
	var ready []string
	for i, o := range objects {
		if n, ok := o.(*v1.Node); ok {
			status := v1.ConditionFalse
			if i%6 == 0 {
				status, ready = v1.ConditionTrue, append(ready, n.Name)
			}
			n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: status}}
		}
	}
	f := forecast(t, objects, whatif.Step{Operation: &simulate.Operation{Cordon: &simulate.Nodes{Nodes: ready[:1]}}})
	if f.For != simulate.Seconds(time.Hour) || f.Settled {
		t.Errorf("a cordon: after %s, settled %t", f.For, f.Settled)
	}
	if notes := strings.Join(f.Notes, "\n"); !strings.Contains(notes, "the forecast ends after 1h, when things still happen") {
		t.Errorf("a cordon: notes %q", notes)
	}

	objects = append(objects, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: new(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{}},
	})
	drain := &simulate.Drain{Nodes: simulate.Nodes{Nodes: ready}, Timeout: &metav1.Duration{Duration: 5 * time.Minute}}
	f = forecast(t, objects, whatif.Step{Operation: &simulate.Operation{Drain: drain}})
	if held := len(f.Drains[0].Blocked); held != len(ready) || f.For.Duration() < time.Duration(len(ready))*5*time.Minute {
		t.Errorf("a drain: after %s, %d pods of %d held", f.For, held, len(ready))
	}
}
