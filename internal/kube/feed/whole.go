// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import "k8s.io/apimachinery/pkg/runtime"

// Whole passes each list on as a whole. It is for kinds with few objects, and components that must
// process deletions before the existing objects.
type Whole[T runtime.Object] struct {
	Listed     func(list []T, version string)
	Seen, Gone func(T) // for changes between lists
	// Keep, if set, returns the part of an object to pass on, or false to ignore the object.
	Keep func(T) (T, bool)
}

// Sink returns a sink that collects each list. The sink holds the unfinished list, so each feed
// needs a separate one.
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
