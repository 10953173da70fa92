package feed

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// Whole receives each list as a whole, for components that follow few objects and have to know what
// is gone before they look at what is there.
type Whole[T runtime.Object] struct {
	Listed     func(list []T, version string)
	Seen, Gone func(T) // between lists
	// Keep, if set, returns what is to be kept of an object, and false if the object is of no
	// interest.
	Keep func(T) (T, bool)
}

// Sink returns a sink that collects each list.
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

// Typed is a resource as a typed client shows it.
type Typed[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// From is a resource, or those of its objects that a field selector selects.
func From[L runtime.Object](name string, client Typed[L], selector string) Source {
	return Source{
		Name: name, Selector: selector,
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return checkOpened(client.Watch(ctx, o))
		},
	}
}
