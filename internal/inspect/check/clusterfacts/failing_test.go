// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package clusterfacts

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/inspect/check"
)

// TestFailingContainersOfBerth verifies that only Berth's containers are reported, unless they are
// about to be created.
func TestFailingContainersOfBerth(t *testing.T) {
	podOf := func(label, reason string) *v1.Pod {
		return &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "a", Labels: map[string]string{
				"app.kubernetes.io/part-of": label, "app.kubernetes.io/component": "webhook"}},
			Status: v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{
				{Image: "i", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}}, {Image: "runs"}}},
		}
	}
	failing := []check.Failing{{Part: deploy.Webhook, Where: "berth-system/a", Image: "i", Reason: "ImagePullBackOff"}}
	for _, c := range []struct {
		pod  *v1.Pod
		want []check.Failing
	}{
		{podOf("berth", "ImagePullBackOff"), failing},
		{podOf("berth", "ContainerCreating"), nil},
		{podOf("other", "ImagePullBackOff"), nil},
	} {
		if got := failingIn(c.pod); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v", c.pod.Labels, got)
		}
	}
}
