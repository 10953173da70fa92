package live

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/controller/feed"
	"github.com/berth-k8s/berth/queue"
)

// mirror follows one kind of object into the scheduler's state. Its fields belong to the owner of that state.
type mirror[T metav1.Object] struct {
	set  func(object T)
	gone func(name cluster.Name, uid types.UID)

	known  map[cluster.Name]types.UID
	listed map[cluster.Name]bool // what a list under way has shown; nil between lists
}

// listable is a typed client of one kind.
type listable[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// follow adds a kind to those that are watched.
func follow[T metav1.Object, L runtime.Object](s *Scheduler, name string, client listable[L], set func(T), gone func(cluster.Name, types.UID)) {
	m := &mirror[T]{set: set, gone: gone, known: map[cluster.Name]types.UID{}}
	source := feed.Source{
		Name:  name,
		List:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
		Watch: client.Watch,
	}
	first := true
	s.feeds = append(s.feeds, func(ctx context.Context) {
		feed.Run(ctx, source, feed.Sink{
			Listing: func() { s.inbox.put(m.listing) },
			Listed: func() {
				s.inbox.put(m.done)
				if first {
					first = false
					s.inbox.put(func() { s.unsynced-- })
				}
			},
			Seen: func(o runtime.Object) {
				if object, ok := o.(T); ok {
					s.inbox.put(func() { m.seen(object) })
				}
			},
			Gone: func(o runtime.Object) {
				if object, ok := o.(T); ok {
					s.inbox.put(func() { m.lost(nameOf(object), object.GetUID()) })
				}
			},
		})
	})
	s.unsynced++
}

// followTable adds a kind that is kept as it comes, and that may help waiting pods when it changes.
func followTable[T metav1.Object, L runtime.Object](s *Scheduler, name string, client listable[L], table *cluster.Table[T], event queue.Event) {
	follow(s, name, client,
		func(object T) { table.Set(object); s.happened(event) },
		func(n cluster.Name, _ types.UID) { table.Delete(n.Namespace, n.Name); s.happened(event) })
}

func nameOf(object metav1.Object) cluster.Name {
	return cluster.Name{Namespace: object.GetNamespace(), Name: object.GetName()}
}

func (m *mirror[T]) listing() { m.listed = map[cluster.Name]bool{} }

func (m *mirror[T]) done() {
	for name, uid := range m.known {
		if !m.listed[name] {
			m.lost(name, uid)
		}
	}
	m.listed = nil
}

// seen takes in an object; another one of its name has gone without a word.
func (m *mirror[T]) seen(object T) {
	name := nameOf(object)
	if uid, ok := m.known[name]; ok && uid != object.GetUID() {
		m.gone(name, uid)
	}
	m.known[name] = object.GetUID()
	if m.listed != nil {
		m.listed[name] = true
	}
	m.set(object)
}

func (m *mirror[T]) lost(name cluster.Name, uid types.UID) {
	if m.known[name] == uid {
		delete(m.known, name)
		m.gone(name, uid)
	}
}
