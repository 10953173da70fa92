// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package fakeapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/pacing"
)

// target is the object or list addressed by a request.
type target struct {
	version, resource, sub string
	name                   types.NamespacedName
}

// parsePath parses a path such as /api/v1/namespaces/n/pods/p/binding. Fields for missing parts
// stay empty:
//
//	/api/v1/nodes                                version v1, resource nodes: a list
//	/apis/apps/v1/namespaces/n/replicasets/r     name n/r: one object
//	/apis/resource.k8s.io/v1                     no resource: discovery
func parsePath(path string) (t target) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	upTo := min(3, len(parts))
	if parts[0] == "api" {
		upTo = min(2, len(parts))
	}
	t.version, parts = strings.Join(parts[1:upTo], "/"), parts[upTo:]
	if len(parts) > 2 && parts[0] == "namespaces" {
		t.name.Namespace, parts = parts[1], parts[2:]
	}
	for i, field := range []*string{&t.resource, &t.name.Name, &t.sub} {
		if i < len(parts) {
			*field = parts[i]
		}
	}
	return t
}

// RoundTrip implements http.RoundTripper, so that a client can use the Server as its transport. It
// carries out the request, unless the request's Fault prevents that. Faults apply in this order:
// the request is delayed (Late), lost (Lost) or refused (Status); after it was carried out, the
// response is lost (Unanswered) or delayed (Slow).
func (s *Server) RoundTrip(r *http.Request) (*http.Response, error) {
	var f Fault
	s.mu.Lock()
	fault := s.fault
	s.mu.Unlock()
	if fault != nil {
		f = fault(r)
	}

	if f.Late > 0 && !pacing.Sleep(r.Context(), f.Late) {
		return nil, r.Context().Err()
	}
	switch {
	case f.Lost:
		return nil, errors.New("connection reset by peer")
	case f.Status != 0:
		return failureResponse(r, apierrors.NewGenericServerResponse(
			f.Status, "", schema.GroupResource{}, "", http.StatusText(f.Status), 0, false)), nil
	}

	if r.URL.Query().Get("watch") != "" {
		return s.startWatch(r)
	}
	response := s.answerRequest(r)
	if f.Unanswered {
		return nil, io.ErrUnexpectedEOF
	}
	if f.Slow > 0 && !pacing.Sleep(r.Context(), f.Slow) {
		return nil, r.Context().Err()
	}
	return response, nil
}

// failureResponse returns a response with an error, as a Status object.
func failureResponse(r *http.Request, err error) *http.Response {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	st := status.Status()
	st.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return encodeResponse(r, int(st.Code), &st)
}

// encodeResponse returns a response with an object, always in JSON. A response with status 429 has
// a Retry-After header, like in a real API server.
func encodeResponse(r *http.Request, code int, o any) *http.Response {
	body, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if code == http.StatusTooManyRequests {
		header.Set("Retry-After", "1")
	}
	return &http.Response{
		StatusCode: code, Status: strconv.Itoa(code), Request: r, Header: header,
		Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}
}

// answerRequest carries out a request other than a watch. Requests take effect sequentially, under
// the lock.
func (s *Server) answerRequest(r *http.Request) *http.Response {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		body = asJSON(r.Header.Get("Content-Type"), body)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, err := s.carryOut(r, parsePath(r.URL.Path), body)
	if err != nil {
		return failureResponse(r, err)
	}
	return encodeResponse(r, http.StatusOK, o)
}

// asJSON converts the object of a request to JSON.
func asJSON(contentType string, body []byte) []byte {
	if contentType != runtime.ContentTypeProtobuf {
		return body
	}
	o, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err == nil {
		body, err = json.Marshal(o)
	}
	if err != nil {
		panic(err)
	}
	return body
}

// carryOut executes the method on the path, and returns the object of the response. The lock is
// held.
func (s *Server) carryOut(r *http.Request, to target, body []byte) (any, error) {
	if to.resource == "" {
		return discover(to.version)
	}

	// Events are recorded separately, because no client lists or watches them.
	if to.resource == "events" && r.Method != http.MethodGet {
		var event v1.Event
		if err := json.Unmarshal(body, &event); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		s.events = append(s.events, &event)
		return &event, nil
	}

	t, ok := s.tables[to.resource]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: to.resource}, to.name.Name)
	}
	// This precedes the lookup by name, because a Binding may name its pod only in the body.
	if to.sub == "binding" {
		return s.bindPod(t, body)
	}
	if to.name.Name == "" {
		if r.Method == http.MethodGet {
			return s.listPage(t, r.URL.Query())
		}
		return s.createObject(t, body)
	}

	current, ok := t.objects[to.name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: to.resource}, to.name.Name)
	}
	switch dryRun := r.URL.Query().Has("dryRun"); r.Method {
	case http.MethodPost:
		return s.evictPod(t, current, body)
	case http.MethodPut:
		return s.updateObject(t, current, to.sub, body, dryRun)
	case http.MethodPatch:
		return s.patchObject(t, current, to.sub, body, dryRun)
	case http.MethodDelete:
		return s.deleteObject(t, current, body)
	}
	return current, nil
}

// discover lists the resources of a group version, for clients that check whether an API is served.
// For other paths without a resource, such as /apis and /version, the list is empty.
func discover(version string) (any, error) {
	resources, ok := kinds[version]
	if !ok && version != "" {
		return nil, apierrors.NewGenericServerResponse(
			http.StatusNotFound, "GET", schema.GroupResource{}, "", "404 page not found", 0, true)
	}
	list := &metav1.APIResourceList{GroupVersion: version}
	list.Kind = "APIResourceList"
	for resource, kind := range resources {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: resource, Kind: kind})
	}
	return list, nil
}

// listPage lists a table, or a page of it. All pages of a list have the content and the version of
// the table at the time of the first page, so that a watch from this version misses no changes. A
// continue token is "version-offset". If the list is no longer kept, the token is refused with 410,
// like after a compaction of etcd.
func (s *Server) listPage(t *table, query url.Values) (_ any, err error) {
	version, from, all := s.version, 0, []Object(nil)
	if token := query.Get("continue"); token != "" {
		_, _ = fmt.Sscanf(token, "%d-%d", &version, &from)
		if all = t.lists[version]; from >= len(all) {
			return nil, apierrors.NewResourceExpired("the provided continue parameter is too old")
		}
	} else if all, err = selectObjects(t.sortedObjects(), query.Get("fieldSelector")); err != nil {
		return nil, err
	}

	limit, _ := strconv.Atoi(query.Get("limit"))
	if s.PageLimit > 0 && (limit == 0 || limit > s.PageLimit) {
		limit = s.PageLimit
	}
	page := append([]Object{}, all[from:]...)
	meta := map[string]any{"resourceVersion": strconv.Itoa(version)}
	if limit > 0 && len(page) > limit {
		page = page[:limit]
		meta["continue"] = fmt.Sprintf("%d-%d", version, from+limit)
		t.keepList(version, all)
	}
	return map[string]any{"metadata": meta, "items": page, "kind": t.kind.Kind + "List", "apiVersion": t.kind.GroupVersion().String()}, nil
}

// selectObjects returns the objects of a list matching a field selector. Watches ignore field
// selectors.
func selectObjects(all []Object, selector string) ([]Object, error) {
	parsed, err := fields.ParseSelector(selector)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return slices.DeleteFunc(all, func(o Object) bool {
		has := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
		switch o := o.(type) {
		case *v1.Pod:
			has["spec.nodeName"], has["status.phase"] = o.Spec.NodeName, string(o.Status.Phase)
		case *resourcev1.ResourceSlice:
			has[resourcev1.ResourceSliceSelectorDriver] = o.Spec.Driver
			has[resourcev1.ResourceSliceSelectorNodeName] = ptr.Deref(o.Spec.NodeName, "")
		}
		return !parsed.Matches(has)
	}), nil
}

// keepList keeps the content of a list for its next pages. Only the 16 lists with the latest
// versions are kept.
func (t *table) keepList(version int, all []Object) {
	const most = 16
	t.lists[version] = all
	if len(t.lists) > most {
		delete(t.lists, slices.Min(slices.Collect(maps.Keys(t.lists))))
	}
}

// watcher is an open watch. Its goroutine writes to a pipe; the other end is the body of the
// response.
type watcher struct {
	table *table
	more  chan struct{} // has an element if there may be new changes
	over  chan struct{}
	ended bool // guarded by the server's lock, like the closing of the channel over
}

// endWatch ends the watch on the server's side. It may be called more than once. The server's lock
// is held.
func (w *watcher) endWatch() {
	if !w.ended {
		w.ended = true
		close(w.over)
	}
}

// startWatch responds with a stream of the changes after the client's version. If that version was
// dropped, it responds with 410, so that the client lists again. There are no bookmarks.
func (s *Server) startWatch(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tables[parsePath(r.URL.Path).resource]
	from, err := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if err != nil || from < t.floor {
		return failureResponse(r, apierrors.NewResourceExpired("too old resource version")), nil
	}

	w := &watcher{table: t, more: make(chan struct{}, 1), over: make(chan struct{})}
	s.watchers[w] = true
	timeout := time.Hour
	if seconds, err := strconv.Atoi(r.URL.Query().Get("timeoutSeconds")); err == nil {
		timeout = time.Duration(seconds) * time.Second
	}

	reader, writer := io.Pipe()
	go s.showChanges(r, w, writer, from, timeout)
	pacing.Signal(w.more)
	return &http.Response{
		StatusCode: http.StatusOK, Status: "200", Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: reader, ContentLength: -1,
	}, nil
}

// showChanges writes all changes after a version until the watch ends because of its timeout, the
// client, or Cut. A client that does not read delays only its own watch.
func (s *Server) showChanges(r *http.Request, w *watcher, into *io.PipeWriter, from int, timeout time.Duration) {
	defer into.Close()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, w)
	}()

	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		select {
		case <-w.more:
		case <-w.over:
			return
		case <-timer.C:
			return
		case <-r.Context().Done():
			return
		}
		for _, c := range s.changesSince(w, from) {
			line, err := json.Marshal(map[string]any{"type": c.kind, "object": c.object})
			if err != nil {
				panic(err)
			}
			if _, err := into.Write(append(line, '\n')); err != nil {
				return
			}
			from = c.version
		}
	}
}

// changesSince returns the changes after a version, except for held changes. For an ended watch it
// returns none, because changes may have been dropped.
func (s *Server) changesSince(w *watcher, version int) []change {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := w.table
	if w.ended {
		return nil
	}
	first, _ := slices.BinarySearchFunc(t.log, version+1, func(c change, v int) int { return c.version - v })
	changes := t.log[first:]
	if t.held >= 0 {
		last, _ := slices.BinarySearchFunc(changes, t.held+1, func(c change, v int) int { return c.version - v })
		changes = changes[:last]
	}
	return slices.Clone(changes)
}
