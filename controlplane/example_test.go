// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/controlplane"
)

// This test uses a real API server as an administrator and as a user without permissions.
func ExampleStart() {
	TestPods := func(t *testing.T) {
		cluster := controlplane.Start(t) // ends with the test

		admin := kubernetes.NewForConfigOrDie(cluster.Config)
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "nginx"}}},
		}
		if _, err := admin.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}

		jane := kubernetes.NewForConfigOrDie(cluster.ConfigFor("jane", "developers"))
		if _, err := jane.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Fatalf("jane lists pods: %v", err)
		}
	}
	_ = TestPods
}

// State outlives a control plane if the data directory does.
func ExampleCluster_Stop() {
	TestRestart := func(t *testing.T) {
		inOnePlace := func(o *controlplane.Options) { o.DataDir = "testdata/cluster" }

		controlplane.Start(t, inOnePlace).Stop()
		controlplane.Start(t, inOnePlace)
	}
	_ = TestRestart
}
