// Package fakeapi is an API server for tests of code that reads a cluster. It lists in pages and
// watches, and fails the test on every request that is not a read, or that reads secrets.
package fakeapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/inspect/snapshot"
)

// Object is an object as decoded from JSON.
type Object map[string]any

// Server is an API server. Its objects are changed by Set and Delete.
type Server struct {
	Config *rest.Config
	// PageLimit bounds the objects per page, whatever the client asks for; 0: no bound.
	PageLimit int

	t       testing.TB
	mu      sync.Mutex
	objects map[string][]Object // by resource
	version int
	changed chan struct{}
	events  []event
	reads   []string
	refuse  map[string]int // status by resource
	kinds   map[string]string
}

type event struct {
	version  int
	resource string
	Type     string `json:"type"`
	Object   Object `json:"object"`
}

// New starts a server, which ends with the test.
func New(t testing.TB) *Server {
	s := &Server{t: t, objects: map[string][]Object{}, changed: make(chan struct{}), refuse: map[string]int{},
		kinds: map[string]string{}, version: 1}
	for _, k := range snapshot.Kinds() {
		s.kinds[k.Resource] = k.Kind
	}
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	s.Config = &rest.Config{Host: server.URL, QPS: -1}
	s.Set("namespaces", Object{"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": "kube-system", "uid": "this-cluster"}})
	return s
}

// Refuse makes requests for a resource fail with a status.
func (s *Server) Refuse(resource string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse[resource] = status
}

// Reads returns the paths that were read.
func (s *Server) Reads() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.reads)
}

// Set adds an object or replaces the one of its name.
func (s *Server) Set(resource string, o Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	o.meta()["resourceVersion"] = strconv.Itoa(s.version)
	kind := "ADDED"
	list := slices.DeleteFunc(s.objects[resource], func(other Object) bool { return other.key() == o.key() })
	if len(list) < len(s.objects[resource]) {
		kind = "MODIFIED"
	}
	s.objects[resource] = append(list, o)
	s.happened(event{s.version, resource, kind, o})
}

// Delete removes an object.
func (s *Server) Delete(resource, namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	s.objects[resource] = slices.DeleteFunc(s.objects[resource], func(o Object) bool {
		if o.key() != namespace+"/"+name {
			return false
		}
		s.happened(event{s.version, resource, "DELETED", o})
		return true
	})
}

func (s *Server) happened(e event) {
	s.events = append(s.events, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

func (o Object) meta() map[string]any { return o["metadata"].(map[string]any) }

func (o Object) key() string {
	namespace, _ := o.meta()["namespace"].(string)
	return namespace + "/" + o.meta()["name"].(string)
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := path.Base(r.URL.Path)
	if r.Method != http.MethodGet || strings.Contains(r.URL.Path, "secrets") {
		s.t.Errorf("%s %s was sent", r.Method, r.URL)
	}

	s.mu.Lock()
	s.reads = append(s.reads, r.URL.Path)
	status, system := s.refuse[resource], s.objects["namespaces"][0]
	s.mu.Unlock()
	switch {
	case status != 0:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,"message":"no"}`,
			map[int]string{403: "Forbidden", 404: "NotFound"}[status], status)
	case strings.HasSuffix(r.URL.Path, "/namespaces/kube-system"):
		s.answer(w, system)
	case resource == "v1beta1":
		s.answer(w, map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "scheduling.k8s.io/v1beta1",
			"resources": []any{map[string]any{"name": "podgroups", "kind": "PodGroup", "namespaced": true}}})
	case strings.HasSuffix(r.URL.Path, "/resource.k8s.io/v1"):
		s.answer(w, map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "resource.k8s.io/v1",
			"resources": []any{map[string]any{"name": "resourceclaims", "kind": "ResourceClaim", "namespaced": true}}})
	case r.URL.Query().Get("watch") != "":
		s.watch(w, r, resource)
	default:
		s.list(w, r, resource)
	}
}

func (s *Server) answer(w http.ResponseWriter, o any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(o); err != nil {
		s.t.Error(err)
	}
}

func (s *Server) list(w http.ResponseWriter, r *http.Request, resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	if s.PageLimit > 0 && (limit == 0 || limit > s.PageLimit) {
		limit = s.PageLimit
	}

	objects := s.objects[resource][from:]
	meta := map[string]any{"resourceVersion": strconv.Itoa(s.version)}
	if limit > 0 && len(objects) > limit {
		objects = objects[:limit]
		meta["continue"] = strconv.Itoa(from + limit)
	}

	if objects == nil {
		objects = []Object{}
	}
	version := strings.TrimPrefix(strings.TrimPrefix(path.Dir(r.URL.Path), "/apis/"), "/api/")
	s.answer(w, map[string]any{"kind": s.kinds[resource] + "List", "apiVersion": version, "metadata": meta, "items": objects})
}

func (s *Server) watch(w http.ResponseWriter, r *http.Request, resource string) {
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnprocessableEntity) // this server does not support streaming lists
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422,`+
			`"message":"sendInitialEvents is forbidden"}`)
		return
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	w.Header().Set("Content-Type", "application/json")
	w.(http.Flusher).Flush()
	next := 0
	for {
		s.mu.Lock()
		events, changed := s.events[next:], s.changed
		next = len(s.events)
		s.mu.Unlock()
		for _, e := range events {
			if e.resource == resource && e.version > from {
				s.answer(w, e)
			}
		}
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}
