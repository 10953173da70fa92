// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

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

	for _, object := range w.operations.listObjects() {
		if q, is := object.(*v1.ResourceQuota); is && q.Name == "tight" {
			return
		}
	}
	t.Error("the quota is not among the objects that plans are made from")
}
