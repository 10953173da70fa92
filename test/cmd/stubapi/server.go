// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// server answers the requests of API clients, and those under /stub/ of the benchmark.
type server struct {
	store    *store
	encoders sync.Pool
	load     *load

	mu       sync.Mutex
	requests map[string]int                   // by method, resource and kind of request; SEND: events of watches
	unserved map[string]int                   // requests that the stub does not implement
	leases   map[string]*coordinationv1.Lease // Leases of leader elections
}

func newServer(s *store) *server {
	return &server{
		store: s, encoders: sync.Pool{New: func() any { return newEncoder() }}, load: &load{store: s},
		requests: map[string]int{}, unserved: map[string]int{}, leases: map[string]*coordinationv1.Lease{},
	}
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasPrefix(r.URL.Path, "/stub/"):
		s.serveBenchmark(w, r)
		return
	case strings.HasPrefix(r.URL.Path, "/debug/"): // profiles of the stub
		http.DefaultServeMux.ServeHTTP(w, r)
		return
	}
	t := parsePath(r.URL.Path)
	if t.resource == "" {
		s.count(r.Method + " discovery")
		discover(w, t.version)
		return
	}
	if kinds[t.version][t.resource] == "" {
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
		return
	}
	query := url.Values{}
	if r.URL.RawQuery != "" {
		query = r.URL.Query()
	}
	what := r.Method + " " + t.resource
	switch {
	case query.Get("watch") != "":
		s.count("WATCH " + t.resource)
		s.watch(w, r, t, query)
		return
	case r.Method == http.MethodGet && t.name == "":
		s.count("LIST " + t.resource)
		s.list(w, t, query)
		return
	case t.sub != "":
		what += "/" + t.sub
	}
	s.count(what)
	switch what {
	case "POST pods/binding":
		s.bind(w, r, t)
	case "POST events":
		s.store.addEvent()
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	case "PATCH pods/status", "GET pods":
		index, ok := s.store.podIndex(t.name)
		if !ok {
			fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no such pod")
			return
		}
		if t.sub != "" {
			s.store.setStatus(index)
		}
		s.writePod(w, index)
	case "POST tokenreviews": // each token is the name of its user
		var review authenticationv1.TokenReview
		if body, err := io.ReadAll(r.Body); err != nil || decode(body, &review) != nil {
			fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, "the review cannot be read")
			return
		}
		review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: review.Spec.Token}}
		writeObject(w, http.StatusCreated, t.version, "TokenReview", &review)
	case "POST subjectaccessreviews":
		writeObject(w, http.StatusCreated, t.version, "SubjectAccessReview", &authorizationv1.SubjectAccessReview{
			Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}})
	case "GET nodes", "PATCH nodes", "PATCH nodes/status":
		s.serveNode(w, r, t)
	case "GET leases", "POST leases", "PUT leases", "PATCH leases":
		if t.namespace == v1.NamespaceNodeLease {
			s.serveNodeLease(w, t)
			return
		}
		s.serveLease(w, r, t)
	default:
		s.mu.Lock()
		s.unserved[what]++
		s.mu.Unlock()
		fail(w, http.StatusMethodNotAllowed, metav1.StatusReasonMethodNotAllowed, "the stub does not serve "+what)
	}
}

func (s *server) count(what string) { s.countMany(what, 1) }

func (s *server) countMany(what string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[what] += n
}

func (s *store) addEvent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Events++
}

// bind carries out a binding.
func (s *server) bind(w http.ResponseWriter, r *http.Request, t target) {
	body, err := io.ReadAll(r.Body)
	var binding v1.Binding
	if err == nil {
		err = decode(body, &binding)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
		return
	}
	pod, ok := s.store.podIndex(t.name)
	node, exists := s.store.nodeIndex(binding.Target.Name)
	switch {
	case !ok || !exists:
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no such pod or node")
	case binding.UID != uid('b', pod):
		fail(w, http.StatusConflict, metav1.StatusReasonConflict, "the UID is that of another pod")
	case !s.store.bind(pod, node):
		fail(w, http.StatusConflict, metav1.StatusReasonConflict, "pod "+t.name+" is already assigned to a node")
	default:
		writeObject(w, http.StatusCreated, "v1", "Status", &metav1.Status{Status: metav1.StatusSuccess, Code: http.StatusCreated})
	}
}

// decode decodes an object in the protobuf format or in JSON.
func decode(body []byte, into interface {
	runtime.Object
	Unmarshal([]byte) error
}) error {
	if raw, ok := bytes.CutPrefix(body, []byte("k8s\x00")); ok {
		var unknown runtime.Unknown
		if err := unknown.Unmarshal(raw); err != nil {
			return err
		}
		return into.Unmarshal(unknown.Raw)
	}
	_, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, into)
	return err
}

// writeObject responds with an object.
func writeObject(w http.ResponseWriter, code int, version, kind string, o marshaler) {
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	w.WriteHeader(code)
	_, _ = w.Write(appendObject(appendEnvelope(nil, version, kind), 2, o))
}

// writePod responds with a pod.
func (s *server) writePod(w http.ResponseWriter, index int32) {
	s.store.mu.Lock()
	r := s.store.pods[index]
	b := s.store.batches[r.batch]
	s.store.mu.Unlock()
	e := s.encoders.Get().(*encoder)
	defer s.encoders.Put(e)
	writeObject(w, http.StatusOK, "v1", "Pod", e.podAt(index, r.node, max(r.created, r.bound, r.status), r, b))
}

// serveLease serves the Leases of leader elections, which are stored as whole objects.
func (s *server) serveLease(w http.ResponseWriter, r *http.Request, t target) {
	var lease coordinationv1.Lease
	if r.Method != http.MethodGet {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &lease)
		}
		if err != nil {
			fail(w, http.StatusBadRequest, metav1.StatusReasonBadRequest, err.Error())
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := t.namespace + "/" + t.name
	if t.name == "" {
		key += lease.Name
	}
	stored, exists := s.leases[key]
	switch {
	case !exists && r.Method != http.MethodPost:
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "no such lease")
		return
	case exists && r.Method == http.MethodPost:
		fail(w, http.StatusConflict, metav1.StatusReasonAlreadyExists, "the lease exists")
		return
	case r.Method == http.MethodPut && lease.ResourceVersion != stored.ResourceVersion:
		fail(w, http.StatusConflict, metav1.StatusReasonConflict, "the lease has changed")
		return
	case r.Method != http.MethodGet:
		lease.UID, lease.ResourceVersion = "e", strconv.Itoa(s.requests[r.Method+" leases"])
		stored = &lease
		s.leases[key] = stored
	}
	writeObject(w, http.StatusOK, t.version, "Lease", stored)
}

// report is the response to GET /stub/report.
type report struct {
	CPU      float64        `json:"cpu"` // seconds of the stub
	Counts   counts         `json:"counts"`
	Batches  []batch        `json:"batches"`
	Waits    [3]int32       `json:"waits"` // milliseconds from creation to binding: median, p99, maximum
	Requests map[string]int `json:"requests"`
	Unserved map[string]int `json:"unserved"`
}

// serveBenchmark serves the benchmark: GET /stub/report, with the parameter waits for Waits, and
// POST /stub/load with the parameters of the load that begins.
func (s *server) serveBenchmark(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		if err := s.load.begin(r.URL.Query()); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
	}
	writeJSON(w, http.StatusOK, s.report(r.URL.Query().Has("waits")))
}

func (s *server) report(waits bool) *report {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	out := &report{CPU: time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()}
	s.store.mu.Lock()
	out.Counts = s.store.counts
	if waits {
		out.Waits = quantiles(s.store.waits)
	}
	for _, b := range s.store.batches {
		out.Batches = append(out.Batches, *b)
	}
	s.store.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Requests, out.Unserved = map[string]int{}, map[string]int{}
	for what, n := range s.requests {
		out.Requests[what] = n
	}
	for what, n := range s.unserved {
		out.Unserved[what] = n
	}
	return out
}

// String describes the report in a line.
func (r *report) String() string {
	return fmt.Sprintf("%.1f s of CPU, %+v, unserved %v", r.CPU, r.Counts, r.Unserved)
}
