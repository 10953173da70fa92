// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package changefeed

import (
	"context"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-k8s/berth/internal/kube/feed"
)

// observedSource is a source that stores its last error for display. The feed's goroutine writes
// the error; other goroutines read it.
type observedSource struct {
	feed.Source
	mu   sync.Mutex
	last error
}

// wrapSource returns the source with its list and watch functions recording their errors.
func (t *observedSource) wrapSource() feed.Source {
	s := t.Source
	s.List = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		list, err := t.Source.List(ctx, o)
		return list, t.noteError(err)
	}
	s.Watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := t.Source.Watch(ctx, o)
		return w, t.noteError(err)
	}
	return s
}

// noteError records the error of the last request, nil if it succeeded, and returns it.
func (t *observedSource) noteError(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = err
	return err
}

// describeError describes the last error in a few words: the API server's message or its failure to
// respond. The page shows it with the time since the watch broke.
func (t *observedSource) describeError() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.last == nil:
		return "the watch was cut off"
	case apierrors.IsForbidden(t.last):
		return "these credentials may not list and watch " + t.Name
	case apierrors.IsUnauthorized(t.last):
		return "the API server does not accept the credentials"
	case apierrors.ReasonForError(t.last) != metav1.StatusReasonUnknown:
		return t.last.Error()
	}
	return "the API server does not answer"
}
