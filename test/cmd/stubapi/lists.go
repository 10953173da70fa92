// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// target is the object or list addressed by a request.
type target struct{ version, resource, namespace, name, sub string }

// parsePath parses a path such as /api/v1/namespaces/n/pods/p/binding.
func parsePath(path string) (t target) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	upTo := min(3, len(parts))
	if parts[0] == "api" {
		upTo = min(2, len(parts))
	}
	t.version, parts = strings.Join(parts[1:upTo], "/"), parts[upTo:]
	if len(parts) > 2 && parts[0] == "namespaces" {
		t.namespace, parts = parts[1], parts[2:]
	}
	for i, field := range []*string{&t.resource, &t.name, &t.sub} {
		if i < len(parts) {
			*field = parts[i]
		}
	}
	return t
}

// kinds maps each served version and resource to its kind.
var kinds = func() map[string]map[string]string {
	all := map[string]map[string]string{}
	for _, version := range []string{
		"v1", "apps/v1", "authentication.k8s.io/v1", "authorization.k8s.io/v1", "batch/v1", "coordination.k8s.io/v1", "node.k8s.io/v1", "policy/v1", "resource.k8s.io/v1", "scheduling.k8s.io/v1", "storage.k8s.io/v1",
	} {
		parsed, _ := schema.ParseGroupVersion(version)
		all[version] = map[string]string{}
		for kind := range scheme.Scheme.KnownTypes(parsed) {
			resource, _ := meta.UnsafeGuessKindToResource(parsed.WithKind(kind))
			all[version][resource.Resource] = kind
		}
	}
	return all
}()

// discover lists the resources of a group version.
func discover(w http.ResponseWriter, version string) {
	resources, ok := kinds[version]
	if !ok && version != "" {
		fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "the server could not find the requested resource")
		return
	}
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version}
	for resource, kind := range resources {
		list.APIResources = append(list.APIResources, metav1.APIResource{Name: resource, Kind: kind})
	}
	writeJSON(w, http.StatusOK, list)
}

func writeJSON(w http.ResponseWriter, code int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}

// fail responds with an error as the API server does.
func fail(w http.ResponseWriter, code int, reason metav1.StatusReason, message string) {
	writeJSON(w, code, &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Message: message,
		Code: int32(code),
	})
}

// row is an object of a list: its index, and its state at the version of the list.
type row struct {
	index, node int32
	version     int64
	pod         podRecord
	batch       *batch
	marks       uint8
	renewed     time.Time
}

// list responds with a page of a list. A continue token is "version-index": all pages show the
// state at the version of the first page, so that a watch from it misses nothing.
func (s *server) list(w http.ResponseWriter, t target, query url.Values) {
	version, from := int64(0), 0
	if token := query.Get("continue"); token != "" {
		_, _ = fmt.Sscanf(token, "%d-%d", &version, &from)
	}
	limit, _ := strconv.Atoi(query.Get("limit"))
	page, next, version := s.store.page(t, version, from, limit, query.Get("fieldSelector"))
	listMeta := metav1.ListMeta{ResourceVersion: strconv.FormatInt(version, 10)}
	if next > 0 {
		listMeta.Continue = fmt.Sprintf("%d-%d", version, next)
	}
	kind := kinds[t.version][t.resource]
	body := appendObject(nil, 1, &listMeta)
	e := s.encoders.Get().(*encoder)
	for i := range page {
		body = appendObject(body, 2, e.encodeRow(t.resource, &page[i]))
	}
	s.encoders.Put(e)
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	_, _ = w.Write(appendField(appendEnvelope(nil, t.version, kind+"List"), 2, body))
}

// encodeRow returns the object of a row. The result is valid until the next call.
func (e *encoder) encodeRow(resource string, r *row) marshaler {
	switch resource {
	case "nodes":
		return e.nodeAt(r.index, r.version, r.marks, r.renewed)
	case "pods":
		return e.podAt(r.index, r.node, r.version, r.pod, r.batch)
	default:
		return e.leaseAt(r.index, r.version, r.renewed)
	}
}

// page returns the rows of a page. next is the index at which the next page begins, or 0. Lists of
// all resources but nodes, pods and the nodes' Leases are empty.
func (s *store) page(t target, version int64, from, limit int, selector string) (rows []row, next int, at int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if version == 0 {
		version = s.version
	}
	count := 0
	switch {
	case selector != "": // only names are selected, of objects that do not exist
	case t.resource == "nodes", t.resource == "leases" && t.namespace != "kube-system":
		count = len(s.nodes)
	case t.resource == "pods":
		count = len(s.pods)
	}
	if limit == 0 {
		limit = count
	}
	for i := from; i < count; i++ {
		if len(rows) == limit {
			return rows, i, version
		}
		r := row{index: int32(i), node: -1}
		switch t.resource {
		case "nodes":
			r.version, r.marks, r.renewed = s.nodes[i].version, s.nodes[i].marks, s.nodes[i].lastBeat()
		case "leases":
			r.version, r.renewed = s.nodes[i].renewed, s.nodes[i].lastRenewal()
		case "pods":
			p := s.pods[i]
			if p.created > version {
				return rows, 0, version // pods are in the order of their creation
			}
			r.pod, r.batch, r.version = p, s.batches[p.batch], p.created
			if p.bound > 0 && p.bound <= version {
				r.node, r.version = p.node, p.bound
			}
		}
		rows = append(rows, r)
	}
	return rows, 0, version
}
