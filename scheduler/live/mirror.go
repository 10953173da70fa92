package live

import (
	"context"
	"time"

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
	set  func(object, old T)
	gone func(name cluster.Name, uid types.UID, last T)

	known  map[cluster.Name]types.UID
	kept   map[cluster.Name]T // the objects, if somebody wants to see them again when they change
	keep   *bool
	single func(object T) T      // if set, takes an object out of the list that it came in, which would be kept as a whole otherwise
	listed map[cluster.Name]bool // what a list under way has shown; nil between lists
}

// listable is a typed client of one kind.
type listable[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// follow adds a kind to those that are watched.
func follow[T metav1.Object, L runtime.Object](s *Scheduler, name string, kind queue.Resource, client listable[L], set func(object, old T), gone func(cluster.Name, types.UID, T)) *mirror[T] {
	m := &mirror[T]{set: set, gone: gone, known: map[cluster.Name]types.UID{}, kept: map[cluster.Name]T{}, keep: &s.outside}
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
					s.inbox.put(func() {
						began, action := time.Now(), queue.Add
						if _, known := m.known[nameOf(object)]; known {
							action = queue.Update
						}
						m.seen(object)
						s.observer.Handled(kind, action, time.Since(began))
					})
				}
			},
			Gone: func(o runtime.Object) {
				if object, ok := o.(T); ok {
					s.inbox.put(func() {
						began := time.Now()
						m.lost(nameOf(object), object.GetUID(), object)
						s.observer.Handled(kind, queue.Delete, time.Since(began))
					})
				}
			},
		})
	})
	s.unsynced++
	return m
}

// followTable adds a kind that is kept as it comes, and that may help waiting pods when it changes.
func followTable[T metav1.Object, L runtime.Object](s *Scheduler, name string, client listable[L], table *cluster.Table[T], resource queue.Resource) {
	followTableAs(s, name, client, table, resource, func(object T) T { return object })
}

// followTableAs keeps what is made of the objects.
func followTableAs[T metav1.Object, L runtime.Object](s *Scheduler, name string, client listable[L], table *cluster.Table[T], resource queue.Resource, as func(T) T) {
	follow(s, name, resource, client,
		func(object, _ T) {
			e := queue.Event{Resource: resource, Action: queue.Add, Label: string(resource) + "Add", New: object}
			if old, ok := table.Get(object.GetNamespace(), object.GetName()); ok {
				e.Action, e.Label, e.Old = queue.Update, string(resource)+"Update", old
			}
			table.Set(as(object))
			s.conditionNews = true
			s.happened(e)
		},
		func(n cluster.Name, _ types.UID, _ T) {
			e := queue.Event{Resource: resource, Action: queue.Delete, Label: string(resource) + "Delete"}
			if old, ok := table.Get(n.Namespace, n.Name); ok {
				e.Old = old
			}
			table.Delete(n.Namespace, n.Name)
			s.conditionNews = true
			s.happened(e)
		})
}

func nameOf(object metav1.Object) cluster.Name {
	return cluster.Name{Namespace: object.GetNamespace(), Name: object.GetName()}
}

func (m *mirror[T]) listing() { m.listed = map[cluster.Name]bool{} }

func (m *mirror[T]) done() {
	for name, uid := range m.known {
		if !m.listed[name] {
			var last T
			m.lost(name, uid, last)
		}
	}
	m.listed = nil
}

// seen takes in an object; another one of its name has gone without a word.
func (m *mirror[T]) seen(object T) {
	name := nameOf(object)
	old := m.kept[name]
	if uid, ok := m.known[name]; ok && uid != object.GetUID() {
		m.gone(name, uid, old)
		var none T
		old = none
	}
	m.known[name] = object.GetUID()
	if *m.keep {
		m.kept[name] = object
	}
	if m.listed != nil {
		m.listed[name] = true
		if m.single != nil {
			object = m.single(object)
		}
	}
	m.set(object, old)
}

func (m *mirror[T]) lost(name cluster.Name, uid types.UID, last T) {
	if m.known[name] == uid {
		delete(m.known, name)
		delete(m.kept, name)
		m.gone(name, uid, last)
	}
}
