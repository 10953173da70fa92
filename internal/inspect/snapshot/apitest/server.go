// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package apitest is an API server for tests of code that reads a cluster, over a network. It fails
// the test on every request that is not a read, or that reads secrets.
package apitest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// Object is an object as decoded from JSON.
type Object map[string]any

// Server is an API server. Set changes its objects; see [fakeapi.Server].
type Server struct {
	*fakeapi.Server
	Config *rest.Config

	t      testing.TB
	proxy  httputil.ReverseProxy // to the in-memory server
	mu     sync.Mutex
	reads  []string
	refuse map[string]int // status of refused requests, by resource
}

// New starts a server, which is stopped at the end of the test.
func New(t testing.TB) *Server {
	s := &Server{Server: fakeapi.New(), t: t, refuse: map[string]int{}}
	s.proxy = httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}, Transport: s.Server, FlushInterval: -1}
	s.SetFault(s.checkRequest)
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

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.proxy.ServeHTTP(w, r) }

// checkRequest records a read, and returns a fault for a refused one.
func (s *Server) checkRequest(r *http.Request) fakeapi.Fault {
	if r.Method != http.MethodGet || strings.Contains(r.URL.Path, "secrets") {
		s.t.Errorf("%s %s was sent", r.Method, r.URL)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads = append(s.reads, r.URL.Path)
	return fakeapi.Fault{Status: s.refuse[path.Base(r.URL.Path)]}
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
	text, err := json.Marshal(o)
	if err != nil {
		s.t.Fatal(err)
	}
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	if err != nil {
		s.t.Fatalf("%s: %v", resource, err)
	}
	s.Put(object.(fakeapi.Object))
}
