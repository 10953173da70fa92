// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"context"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPagesAreOfOneMoment verifies that changes made between two pages of a list are not in the
// list, but are delivered by a watch from the list's version.
func TestPagesAreOfOneMoment(t *testing.T) {
	api := New()
	pod := func(i int) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("p%d", i)}}
	}
	for i := range 10 {
		api.Put(pod(i))
	}
	client := api.Client().CoreV1().Pods("default")
	list := func(token string) (*v1.PodList, error) {
		return client.List(context.Background(), metav1.ListOptions{Limit: 5, Continue: token})
	}

	first, err := list("")
	if err != nil {
		t.Fatal(err)
	}
	api.Put(pod(10)) // by name, it belongs to the first page
	api.Delete(pod(9))
	second, err := list(first.Continue)
	if err != nil {
		t.Fatal(err)
	}
	if len(second.Items) != 5 || second.Items[4].Name != "p9" || second.Continue != "" || second.ResourceVersion != first.ResourceVersion {
		t.Errorf("the second page has %d pods, version %s after %s", len(second.Items), second.ResourceVersion, first.ResourceVersion)
	}

	w, err := client.Watch(context.Background(), metav1.ListOptions{ResourceVersion: second.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, want := range []string{"ADDED p10", "DELETED p9"} {
		e := <-w.ResultChan()
		if got := fmt.Sprint(e.Type, " ", e.Object.(*v1.Pod).Name); got != want {
			t.Errorf("the watch shows %s, want %s", got, want)
		}
	}

	api.Cut("pods", true)
	if _, err := list(first.Continue); !apierrors.IsResourceExpired(err) {
		t.Errorf("a page of a list that is forgotten: %v", err)
	}
}

// TestAGroupVersionThatIsNotServedIsNotFound verifies that clients can detect the served APIs by
// discovery.
func TestAGroupVersionThatIsNotServedIsNotFound(t *testing.T) {
	discovery := New().Client().Discovery()
	for version, served := range map[string]bool{
		"v1": true, "apps/v1": true, "resource.k8s.io/v1": true, "v2": false, "apps/v2": false, "lifecycle.k8s.io/v1alpha1": false,
	} {
		list, err := discovery.ServerResourcesForGroupVersion(version)
		if served && (err != nil || len(list.APIResources) == 0) || !served && !apierrors.IsNotFound(err) {
			t.Errorf("%s: %v, %v", version, list, err)
		}
	}
}
