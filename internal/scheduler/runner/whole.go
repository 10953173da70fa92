// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-k8s/berth/internal/engine/journal"
)

// fetchWhole returns the object to write. If objects are stripped for a journal, it reads the whole
// object and applies the decision to it. The result has the resource version of the decision, so
// the API server reports a conflict if the object has changed since. The object is read by a list,
// because the scheduler lacks the permission to get volumes, and a journal must not require further
// permissions.
func fetchWhole[O metav1.Object, L runtime.Object](ctx context.Context, w *writer,
	list func(context.Context, metav1.ListOptions) (L, error), decided O) (O, error) {
	if !w.strips() {
		return decided, nil
	}
	name := decided.GetName()
	found, err := list(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
	if err != nil {
		return decided, fmt.Errorf("read %s: %w", name, err)
	}

	all, err := meta.ExtractList(found)
	if err != nil {
		return decided, err
	}

	for _, o := range all {
		if current, is := o.(O); is && current.GetName() == name && current.GetUID() == decided.GetUID() {
			putDecided(current, decided)
			return current, nil
		}
	}
	return decided, fmt.Errorf("%s is gone", name)
}

// putDecided applies a decision about a volume or a claim to the current object.
func putDecided(current, decided metav1.Object) {
	current.SetResourceVersion(decided.GetResourceVersion())
	current.SetAnnotations(journal.Restored(decided.GetAnnotations(), current.GetAnnotations()))
	if volume, is := current.(*v1.PersistentVolume); is {
		volume.Spec.ClaimRef = decided.(*v1.PersistentVolume).Spec.ClaimRef
	}
}
