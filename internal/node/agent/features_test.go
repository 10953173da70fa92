package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What the runtime says that it can do is told in the node's status; a pod that insists on more is
// refused.
func TestNodeTellsWhatTheRuntimeCanDo(t *testing.T) {
	strict := v1.SupplementalGroupsPolicyStrict
	for _, can := range []bool{false, true} {
		pod := boundPod("p")
		pod.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroupsPolicy: &strict}
		n, ctx := newNode(t, pod)
		if can {
			n.runtime.features = &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true}
			n.runtime.handlers = []*runtimeapi.RuntimeHandler{
				{Name: "runc", Features: &runtimeapi.RuntimeHandlerFeatures{}}, {Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}},
			}
		}
		state, err := n.Agent.runtime.State(ctx)
		if err != nil {
			t.Fatal(err)
		}
		n.health.answer(time.Now(), state)
		status := n.nodeStatus(n.Node(), time.Now())
		if got := *status.Features.SupplementalGroupsPolicy; got != can {
			t.Errorf("features: %t, want %t", got, can)
		}
		if got := fmt.Sprint(status.DeclaredFeatures); got != "[ExtendWebSocketsToKubelet]" {
			t.Errorf("declared features: %s", got)
		}
		if can && (len(status.RuntimeHandlers) != 2 || !*status.RuntimeHandlers[0].Features.RecursiveReadOnlyMounts || status.RuntimeHandlers[1].Name != "runc") {
			t.Errorf("handlers: %v", status.RuntimeHandlers)
		}
		if got := n.recursiveReadOnly(pod); got != can {
			t.Errorf("recursive read-only mounts: %t, want %t", got, can)
		}
		n.podSeen(ctx, pod)
		await(t, "the pod is taken or refused", func() bool {
			status := statusIn(t, n.api, "p")
			return can && status.Phase == v1.PodRunning ||
				!can && status.Reason == "SupplementalGroupsPolicyNotSupported" && strings.HasPrefix(status.Message, "Pod was rejected: ")
		})
		const counted = `kubelet_admission_rejections_total{reason="SupplementalGroupsPolicyNotSupported"} 1`
		if got := strings.Contains(exposition(t, n), counted); got == can {
			t.Errorf("the rejection is counted: %t, want %t", got, !can)
		}
	}
}
