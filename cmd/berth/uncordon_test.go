// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
)

// TestUncordonSaysWhatKubectlSays verifies that uncordon prints kubectl's messages, and that a dry
// run changes nothing.
func TestUncordonSaysWhatKubectlSays(t *testing.T) {
	client := fake.NewClientset(
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "closed"}, Spec: v1.NodeSpec{Unschedulable: true}},
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "open", Annotations: map[string]string{execute.RollAnnotation: "{}", "other": ""}}},
	)
	for _, c := range []struct{ dryRun, want string }{
		{"client", "node/closed uncordoned (dry run)\nnode/open already uncordoned (dry run)\n"},
		{"none", "node/closed uncordoned\nnode/open already uncordoned\n"},
		{"none", "node/closed already uncordoned\nnode/open already uncordoned\n"},
	} {
		var out bytes.Buffer
		if err := openNodes(t.Context(), &out, client, []string{"closed", "open"}, c.dryRun); err != nil || out.String() != c.want {
			t.Errorf("--dry-run=%s: %v, says %s, want %s", c.dryRun, err, out.String(), c.want)
		}
	}
	// The note of a stopped roll is also removed from a node that is already uncordoned.
	n, err := client.CoreV1().Nodes().Get(t.Context(), "open", metav1.GetOptions{})
	if _, noted := n.Annotations[execute.RollAnnotation]; err != nil || noted || len(n.Annotations) != 1 {
		t.Errorf("%v, annotations %v", err, n.Annotations)
	}
	var out bytes.Buffer
	if err := openNodes(t.Context(), &out, client, []string{"gone", "open"}, "none"); err == nil || out.String() != "node/open already uncordoned\n" {
		t.Errorf("a node that does not exist: %v, says %s", err, out.String())
	}
}
