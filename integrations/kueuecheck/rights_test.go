// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package kueuecheck

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	kueuefake "sigs.k8s.io/kueue/client-go/clientset/versioned/fake"

	"github.com/berth-k8s/berth/deploy"
	components "github.com/berth-k8s/berth/integrations/deploy"
)

// TestRightsAreThoseUsed verifies that the manifests grant exactly the requests for a decision, the
// Lease, and the permissions required by berth serve.
func TestRightsAreThoseUsed(t *testing.T) {
	text, err := components.Text("kueue")
	if err != nil {
		t.Fatal(err)
	}
	rights, err := deploy.Granted(text, deploy.Namespace, "berth-kueue")
	if err != nil {
		t.Fatal(err)
	}
	granted := map[string]bool{}
	for _, right := range rights {
		granted[right.String()] = true
	}

	client := kueuefake.NewSimpleClientset(workload("a", 1, 0, kueue.CheckStatePending, 0),
		&kueue.AdmissionCheck{ObjectMeta: metav1.ObjectMeta{Name: "places"}, Spec: kueue.AdmissionCheckSpec{ControllerName: ControllerName}},
		&kueue.ResourceFlavor{ObjectMeta: metav1.ObjectMeta{Name: "spot"}})
	core := fake.NewClientset()
	c, err := New(client, core, &room{pods: 10}, prometheus.NewRegistry(), Defaults())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	defer func() { stop(); <-done }()
	want := map[string]bool{
		"list nodes": true, // by berth serve
		"create leases.coordination.k8s.io in kube-system":             true,
		"get leases.coordination.k8s.io berth-kueue in kube-system":    true,
		"update leases.coordination.k8s.io berth-kueue in kube-system": true,
	}
	err = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		for _, action := range append(core.Actions(), client.Actions()...) {
			resource := action.GetResource().Resource
			if sub := action.GetSubresource(); sub != "" {
				resource += "/" + sub
			}
			want[deploy.Right{Verb: action.GetVerb(), Group: action.GetResource().Group, Resource: resource}.String()] = true
		}
		return maps.Equal(want, granted), nil
	})
	if err != nil {
		t.Errorf("granted are\n%v, used\n%v", slices.Sorted(maps.Keys(granted)), slices.Sorted(maps.Keys(want)))
	}
}
