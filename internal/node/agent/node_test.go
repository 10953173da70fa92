package agent

import (
	"context"
	"strconv"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Somebody deletes the node's object while its agent runs: it is there again, with the labels,
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
				!node.Status.Allocatable.Cpu().IsZero() && !n.isMissing()
		})
	}
}
