package agent

import (
	"context"
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Someone deletes the node's object while its agent runs: it is there again, with the labels,
// taints and resources that it registers with.
func TestDeletedNodeComesBack(t *testing.T) {
	n, ctx := newNode(t)
	n.Agent.config.Taints = []v1.Taint{{Key: "dedicated", Value: "lab", Effect: v1.TaintEffectNoSchedule}}
	if !n.register(ctx) {
		t.Fatal("not registered")
	}
	n.pods.running.Go(func() { n.watchNode(ctx) })
	n.pods.running.Go(func() { n.keepNode(ctx) })
	nodes := n.api.CoreV1().Nodes()
	for range 2 {
		// Others' marks do not come back with it. The fake API loses what is written between a list
		// and its watch: it is written until it is seen.
		tries := 0
		await(t, "the agent has seen the node as it is", func() bool {
			marked, err := nodes.Get(context.Background(), "node-1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			tries++
			marked = marked.DeepCopy()
			marked.Spec.Unschedulable, marked.Labels["tries"] = true, strconv.Itoa(tries)
			if _, err := nodes.Update(context.Background(), marked, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			return n.Node().Spec.Unschedulable
		})
		if err := nodes.Delete(context.Background(), "node-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		await(t, "the node is back", func() bool {
			node, err := nodes.Get(context.Background(), "node-1", metav1.GetOptions{})
			return err == nil && !node.Spec.Unschedulable && len(node.Spec.Taints) == 1 && node.Labels[v1.LabelHostname] == "node-1" &&
				!node.Status.Allocatable.Cpu().IsZero() && !n.object.isMissing()
		})
	}
}

// The answer to a request comes after the watch has told of a later change, or of the deletion:
// what is newer stays.
func TestNodeIsAsTheNewestWordHasIt(t *testing.T) {
	n, _ := newNode(t)
	version := func(of string, taints ...v1.Taint) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", ResourceVersion: of}, Spec: v1.NodeSpec{Taints: taints}}
	}
	notReady := v1.Taint{Key: v1.TaintNodeNotReady, Effect: v1.TaintEffectNoSchedule}
	watch := n.ownNode()
	for _, step := range []struct {
		told    func()
		taints  int
		missing bool
	}{
		{func() { n.object.seen(version("9", notReady)) }, 1, false},
		{func() { watch.Seen(version("11")) }, 0, false},
		{func() { n.object.seen(version("10", notReady)) }, 0, false},
		{func() { watch.Gone(version("13")) }, 0, true},
		{func() { n.object.seen(version("12", notReady)) }, 0, true},
		{func() { n.object.seen(version("100", notReady)) }, 1, false},
		{func() { watch.Gone(version("13")) }, 1, false},
		{func() { watch.Listed(nil, "99") }, 1, false},
		{func() { watch.Listed(nil, "101") }, 1, true},
	} {
		step.told()
		if got := n.Node(); len(got.Spec.Taints) != step.taints || n.object.isMissing() != step.missing {
			t.Fatalf("the node is %s with taints %v, missing: %v; want %+v", got.ResourceVersion, got.Spec.Taints, n.object.isMissing(), step)
		}
	}
}

// Others change the node all the time: what the agent writes is its status and nothing else, and
// never on top of a status that it has not seen.
func TestStatusIsWrittenAlone(t *testing.T) {
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "uid", ResourceVersion: "7", Labels: map[string]string{"a": "b"}},
		Spec:       v1.NodeSpec{Taints: []v1.Taint{{Key: "a", Effect: v1.TaintEffectNoSchedule}}},
		Status:     v1.NodeStatus{Phase: v1.NodeRunning, Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}},
	}
	status := *node.Status.DeepCopy()
	status.Conditions[0].Status = v1.ConditionFalse
	status.Phase = ""
	patch, err := statusPatch(node, status)
	want := `{"metadata":{"resourceVersion":"7","uid":"uid"},"status":{"conditions":[{"lastHeartbeatTime":null,"lastTransitionTime":null,"status":"False","type":"Ready"}],"phase":null}}`
	if err != nil || string(patch) != want {
		t.Errorf("patch: %s, %v\nwant   %s", patch, err, want)
	}
}

// An API server that drops a field of the status is not sent it at every check.
func TestDroppedFeaturesAreNotSentAgain(t *testing.T) {
	n, ctx := newNode(t)
	if !n.register(ctx) {
		t.Fatal("not registered")
	}
	dropped := n.Node().DeepCopy()
	dropped.Status.DeclaredFeatures = nil
	n.object.seen(dropped)
	n.api.ClearActions()
	if err := n.updateNode(ctx, false); err != nil {
		t.Fatal(err)
	}
	if actions := n.api.Actions(); len(actions) != 0 {
		t.Errorf("written again: %v", actions)
	}
}
