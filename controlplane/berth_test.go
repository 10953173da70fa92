// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/controlplane"
)

func TestWithBerthPodsRun(t *testing.T) {
	cluster := controlplane.Start(t)
	cluster.RunBerth(2)
	pods := kubernetes.NewForConfigOrDie(cluster.Config).CoreV1().Pods("default")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx"}}},
	}
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		now, err := pods.Get(ctx, "web", metav1.GetOptions{})
		return err == nil && now.Status.Phase == corev1.PodRunning && now.Spec.NodeName != "", nil
	})
	if err != nil {
		t.Fatalf("the pod does not run: %v", err)
	}
}
