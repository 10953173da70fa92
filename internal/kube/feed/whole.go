// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import "k8s.io/apimachinery/pkg/runtime"

// Whole receives each list as a whole, for components that follow few objects and must learn of
// deletions before they look at the existing objects.
type Whole[T runtime.Object] struct {
	Listed     func(list []T, version string)
	Seen, Gone func(T) // between lists
	// Keep, if set, returns the part of an object to keep, and false if the object is of no
	// interest.
	Keep func(T) (T, bool)
}

// Sink returns a sink that collects each list. It is for one feed: it holds the unfinished list.
func (w Whole[T]) Sink() Sink {
	var list []T
	var version string
	listing := false
	keep := w.Keep
	if keep == nil {
		keep = func(o T) (T, bool) { return o, true }
	}

	return Sink{
		Listing: func() { list, listing = nil, true },
		Version: func(v string) { version = v },
		Listed: func() {
			w.Listed(list, version)
			list, listing = nil, false
		},
		Seen: func(o runtime.Object) {
			kept, ok := keep(o.(T))
			switch {
			case !ok:
			case listing:
				list = append(list, kept)
			default:
				w.Seen(kept)
			}
		},
		Gone: func(o runtime.Object) {
			if kept, ok := keep(o.(T)); ok {
				w.Gone(kept)
			}
		},
	}
}
