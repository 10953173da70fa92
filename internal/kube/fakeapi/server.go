// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/pacing"
)

// Server is the API server. Its methods may be called from any goroutine. Clients use RoundTrip.
// Tests use the other methods to act on behalf of another client (Put, Change, Delete), or to cause
// failures (SetFault, Hold, Cut).
type Server struct {
	// PageLimit bounds the number of objects in a page, whatever the client's limit; 0 means no
	// bound.
	PageLimit int

	mu       sync.Mutex
	fault    func(r *http.Request) Fault
	policy   func(o Object)    // changes written objects, like mutating admission
	version  int               // the last resource version; one sequence for all objects, as in etcd
	tables   map[string]*table // by resource
	watchers map[*watcher]bool // open watches
	events   []*v1.Event       // events written by clients, in order
	bound    []Bound           // completed bindings, in order
}

// Fault configures the failure of a request. The zero value is no failure.
type Fault struct {
	// Late delays the request, and Slow delays the response.
	Late, Slow time.Duration
	// Status, if not 0, is the status code of an error returned instead of carrying out the
	// request.
	Status int
	// Lost breaks the connection before the request arrives, and Unanswered after it was carried
	// out.
	Lost, Unanswered bool
}

// Bound is a completed binding.
type Bound struct {
	Pod  types.NamespacedName
	UID  types.UID
	Node string
}

// Object is an API object.
type Object interface {
	metav1.Object
	runtime.Object
}

// table holds all objects of one resource, and the recent changes for watches. Stored objects are
// never changed, only replaced, because lists, watches and responses share them.
type table struct {
	kind    schema.GroupVersionKind // the only served version
	objects map[types.NamespacedName]Object
	log     []change         // recent changes, in the order of versions
	lists   map[int][]Object // content of lists with remaining pages, by version
	floor   int              // watches from older versions are refused
	held    int              // changes after this version are withheld; -1 if none are
}

// change is one change of an object, as sent by a watch.
type change struct {
	version int
	kind    string // ADDED, MODIFIED or DELETED
	object  Object
}

// kinds holds the served kinds by version and resource. Each resource is served only in the last of
// the listed versions that has it.
var kinds = func() map[string]map[string]string {
	all := map[string]map[string]string{}
	for _, version := range []string{
		"v1", "apps/v1", "batch/v1", "coordination.k8s.io/v1", "node.k8s.io/v1", "policy/v1", "resource.k8s.io/v1", "scheduling.k8s.io/v1",
		"scheduling.k8s.io/v1alpha3", "scheduling.k8s.io/v1beta1", "storage.k8s.io/v1",
	} {
		parsed, _ := schema.ParseGroupVersion(version)
		all[version] = map[string]string{}
		for kind, typ := range scheme.Scheme.KnownTypes(parsed) {
			if _, ok := reflect.New(typ).Interface().(Object); ok {
				resource, _ := meta.UnsafeGuessKindToResource(parsed.WithKind(kind))
				for _, earlier := range all {
					delete(earlier, resource.Resource)
				}
				all[version][resource.Resource] = kind
			}
		}
	}
	return all
}()

// New returns an empty server that serves all resources in kinds. For example, a test of a
// component may begin with:
//
//	s := fakeapi.New()
//	s.Put(&v1.Node{...}, &v1.Pod{...})
//	component := New(s.Client())
//	s.SetFault(func(r *http.Request) fakeapi.Fault { return fakeapi.Fault{Status: 500} })
func New() *Server {
	s := &Server{version: 1, tables: map[string]*table{}, watchers: map[*watcher]bool{}}
	for version, list := range kinds {
		for resource, kind := range list {
			kind := schema.FromAPIVersionAndKind(version, kind)
			s.tables[resource] = &table{kind: kind, objects: map[types.NamespacedName]Object{}, lists: map[int][]Object{}, held: -1}
		}
	}
	return s
}

// Client returns a client without a rate limit. Each call returns a new client.
func (s *Server) Client() kubernetes.Interface { return ClientOf(s) }

// ClientOf returns a client that uses the given transport, which usually wraps a Server.
func ClientOf(transport http.RoundTripper) kubernetes.Interface {
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "http://fake", Transport: transport, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"},
	})
	if err != nil {
		panic(err)
	}
	return client
}

// tableOf returns the table for objects of this type. It panics if the server does not serve the
// type.
func (s *Server) tableOf(object Object) *table {
	list, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		panic(err)
	}
	for _, t := range s.tables {
		if slices.Contains(list, t.kind) {
			return t
		}
	}
	panic(fmt.Sprintf("no table for %T", object))
}

// nameOf returns the key of an object in its table.
func nameOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

// SetFault sets the function that determines the Fault of each request, including watches. If it is
// nil, no request fails.
func (s *Server) SetFault(fault func(r *http.Request) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// SetPolicy sets a function that changes each object written by a request before it is stored, like
// a mutating webhook or policy; nil disables it.
func (s *Server) SetPolicy(policy func(o Object)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy = policy
}

// Put creates or replaces objects on behalf of another client. The objects are copied, so the
// caller may change them later.
func (s *Server) Put(objects ...Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range objects {
		s.storeObject(s.tableOf(o), o.DeepCopyObject().(Object))
	}
}

// Change changes the existing object with the name of example, if any. The function must not call
// the server.
func Change[T Object](s *Server, example T, change func(T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tableOf(example)
	if o, ok := t.objects[nameOf(example)]; ok {
		changed := o.DeepCopyObject().(T)
		change(changed)
		s.storeObject(t, changed)
	}
}

// Delete removes an object immediately, without a grace period, whatever its UID.
func (s *Server) Delete(o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tableOf(o)
	if current, ok := t.objects[nameOf(o)]; ok {
		s.removeObject(t, current)
	}
}

// Pods returns all pods.
func (s *Server) Pods() []*v1.Pod { return All[*v1.Pod](s, &v1.Pod{}) }

// All returns copies of all objects of example's kind, sorted by namespace and name.
func All[T Object](s *Server, example T) []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return answer.Mapped(s.tableOf(example).sortedObjects(), func(o Object) T { return o.DeepCopyObject().(T) })
}

// Bindings returns the completed bindings, in order.
func (s *Server) Bindings() []Bound {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bound)
}

// Events returns the written events, in order.
func (s *Server) Events() []*v1.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

// sortedObjects lists the objects by namespace and name. The lock is held.
func (t *table) sortedObjects() []Object {
	return slices.SortedFunc(maps.Values(t.objects), func(a, b Object) int {
		return strings.Compare(nameOf(a).String(), nameOf(b).String())
	})
}

// storeObject stores an object and records the change. The caller must not change the object any
// more. The lock is held.
func (s *Server) storeObject(t *table, o Object) {
	kind := "ADDED"
	if _, ok := t.objects[nameOf(o)]; ok {
		kind = "MODIFIED"
	}
	s.stampObject(o)
	o.GetObjectKind().SetGroupVersionKind(t.kind)
	t.objects[nameOf(o)] = o
	s.recordChange(t, kind, o)
}

// stampObject gives an object the next version and, if it is new, a UID and a creation time.
func (s *Server) stampObject(o Object) {
	s.version++
	o.SetResourceVersion(strconv.Itoa(s.version))
	if o.GetUID() == "" {
		o.SetUID(types.UID(fmt.Sprintf("uid-%d", s.version)))
	}
	if created := o.GetCreationTimestamp(); created.IsZero() {
		o.SetCreationTimestamp(metav1.Now())
	}
}

// removeObject removes an object. Like in a real API server, watches deliver the last state of the
// object with a new version.
func (s *Server) removeObject(t *table, o Object) {
	delete(t.objects, nameOf(o))
	last := o.DeepCopyObject().(Object)
	s.version++
	last.SetResourceVersion(strconv.Itoa(s.version))
	s.recordChange(t, "DELETED", last)
}

// keep is the minimum number of changes per resource kept for watches.
const keep = 2000

// recordChange adds a change to the log and wakes the watches. The older half of a long log is
// dropped: a watch from before the remaining half gets 410.
func (s *Server) recordChange(t *table, kind string, o Object) {
	t.log = append(t.log, change{s.version, kind, o})
	if len(t.log) > 2*keep {
		t.floor = t.log[keep-1].version
		t.log = slices.Clone(t.log[keep:])
	}
	for w := range s.watchers {
		if w.table == t {
			pacing.Signal(w.more)
		}
	}
}

// Hold stops the watches of a resource from delivering changes until Release, like a lagging watch
// cache. Lists are not affected.
func (s *Server) Hold(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tables[resource].held = s.version
}

// Release makes watches deliver the held changes.
func (s *Server) Release(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tables[resource].held = -1
	for w := range s.watchers {
		pacing.Signal(w.more)
	}
}

// Cut ends all watches of a resource. If forget is set, watches cannot resume from their versions,
// and unfinished lists cannot continue.
func (s *Server) Cut(resource string, forget bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[resource]
	if forget {
		s.version++
		t.floor, t.log, t.lists = s.version, nil, map[int][]Object{}
	}
	for w := range s.watchers {
		if w.table == t {
			w.endWatch()
		}
	}
}
