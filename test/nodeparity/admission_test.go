// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodeparity

import (
	"context"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-k8s/berth/internal/node/admit"
)

// TestAdmission verifies that simulated nodes admit the same pods as a kubelet, and refuse other
// pods with the kubelet's reason and message. A kubelet would also preempt pods for a critical pod,
// which the test's failure handler does not.
func TestAdmission(t *testing.T) {
	reasons := map[string]int{}
	each(t, func(d dice) string {
		node, pod, others := d.node(), d.pod("new"), d.pods(4)
		handler := lifecycle.NewPredicateAdmitHandler(
			func(context.Context, bool) (*v1.Node, error) { return node, nil },
			lifecycle.NewAdmissionFailureHandlerStub(),
			func(*framework.NodeInfo, *lifecycle.PodAdmitAttributes) error { return nil })
		theirs := handler.Admit(t.Context(), &lifecycle.PodAdmitAttributes{Pod: pod, OtherPods: others})
		reasons[theirs.Reason]++

		var taken []admit.Demand
		for _, other := range others {
			taken = append(taken, admit.DemandOf(other, true))
		}
		ours := lifecycle.PodAdmitResult{Admit: true}
		if refused := admit.Fit(pod, node, taken); refused != nil {
			ours = lifecycle.PodAdmitResult{Reason: refused.Reason, Message: refused.Message}
		}
		if ours != theirs {
			return fmt.Sprintf("ours %+v, the kubelet's %+v\nnode %+v\npod %+v\nothers %+v", ours, theirs, node, pod, others)
		}
		return ""
	})
	t.Logf("%v", reasons)
	if len(reasons) < 9 {
		t.Errorf("only %d reasons were met", len(reasons))
	}
}
