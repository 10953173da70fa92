// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// TestPlansSeeWhatWasApplied verifies that the objects on which plans are based include applied
// objects.
func TestPlansSeeWhatWasApplied(t *testing.T) {
	open := func(text string) *manifest.Set {
		set, err := manifest.Read([]string{"-"}, strings.NewReader(text), manifest.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	w, err := Open(open("apiVersion: v1\nkind: Node\nmetadata: {name: a}\n"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.operations.applySet(open("apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: tight}\nspec: {hard: {pods: 1}}\n")); err != nil {
		t.Fatal(err)
	}

	for object := range w.scheduler.api.Objects() {
		if q, is := object.(*v1.ResourceQuota); is && q.Name == "tight" {
			return
		}
	}
	t.Error("the quota is not among the objects that plans are made from")
}

// TestARebalanceObservesReadiness verifies that a rebalance observes placed pods as ready, and as
// not ready after their node has failed.
func TestARebalanceObservesReadiness(t *testing.T) {
	set, err := manifest.Read([]string{"-"}, strings.NewReader(`
apiVersion: v1
kind: Node
metadata: {name: a}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {nodeName: a, containers: [{name: c, image: i}]}
`), manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := Open(set, Options{})
	if err != nil {
		t.Fatal(err)
	}
	m := &moving{}
	w.rebalances.running = append(w.rebalances.running, m)
	w.rebalances.follow(w.pods.named[Name{"default", "p"}].object, false)
	w.pods.markUnready("a")
	w.pods.unmarkUnready("a")

	var got []v1.ConditionStatus
	for _, e := range m.pods {
		for _, c := range e.(execute.Seen).Object.(*v1.Pod).Status.Conditions {
			got = append(got, c.Status)
		}
	}
	if want := []v1.ConditionStatus{"True", "False", "True"}; !slices.Equal(got, want) {
		t.Errorf("ready: %v, want %v", got, want)
	}
}
