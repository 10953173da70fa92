// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2edeploy

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/deploy"
)

// recorder is a proxy between a component and the API server. It records the permissions used by
// requests. It fails some requests itself, as an overloaded API server does, so that the component
// also executes rare code paths.
type recorder struct {
	url       string
	authority []byte // CA of the recorder's certificate
	forward   *httputil.ReverseProxy
	parse     request.RequestInfoResolver

	mu     sync.Mutex // guards the fields below
	used   map[deploy.Right]int
	denied []string
	faults []*fault
}

// fault is an error response to matching requests, which are not forwarded to the API server.
type fault struct {
	verb, resource, name string // the name "" matches any name
	query                string // text in the URL's query; "" matches any query
	status               int
	reason               metav1.StatusReason
	times                int // number of requests that fail; negative for all
}

func record(t testing.TB, api *rest.Config, faults ...*fault) *recorder {
	t.Helper()
	target, err := url.Parse(api.Host)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(api)) // the component's requests contain its token
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{
		parse: &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")},
		used:  map[deploy.Right]int{}, faults: faults,
	}
	r.forward = &httputil.ReverseProxy{
		Rewrite:        func(p *httputil.ProxyRequest) { p.SetURL(target); p.Out.Host = target.Host },
		Transport:      transport,
		FlushInterval:  -1,
		ModifyResponse: r.answered,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	server := httptest.NewUnstartedServer(r)
	server.Config.ErrorLog = nil
	server.StartTLS() // clients send tokens only over TLS
	t.Cleanup(func() { server.CloseClientConnections(); server.Close() })
	r.url = server.URL
	r.authority = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return r
}

func (r *recorder) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	info, err := r.parse.NewRequestInfo(request)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if f := r.note(info, request.URL.RawQuery); f != nil {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(f.status)
		_ = json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(f.status), Reason: f.reason, Message: "refused for a test",
		})
		return
	}
	r.forward.ServeHTTP(w, request)
}

func (r *recorder) note(info *request.RequestInfo, query string) *fault {
	if !info.IsResourceRequest {
		return nil
	}
	right := rightOf(info)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used[right]++
	for _, f := range r.faults {
		if f.times != 0 && f.verb == right.Verb && f.resource == right.Resource && (f.name == "" || f.name == right.Name) && strings.Contains(query, f.query) {
			f.times--
			return f
		}
	}
	return nil
}

func rightOf(info *request.RequestInfo) deploy.Right {
	resource := info.Resource
	if info.Subresource != "" {
		resource += "/" + info.Subresource
	}
	return deploy.Right{Namespace: info.Namespace, Verb: info.Verb, Group: info.APIGroup, Resource: resource, Name: info.Name}
}

// answered records the requests that the API server forbids.
func (r *recorder) answered(response *http.Response) error {
	if response.StatusCode != http.StatusForbidden {
		return nil
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.denied = append(r.denied, fmt.Sprintf("%s %s: %s", response.Request.Method, response.Request.URL.Path, strings.ToValidUTF8(string(body), "")))
	return nil
}

func (r *recorder) has(right deploy.Right) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(slices.Collect(maps.Keys(r.used)), func(used deploy.Right) bool { return covers(right, used) })
}

// forget clears the recorded use of permissions.
func (r *recorder) forget(rights ...deploy.Right) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.used, func(used deploy.Right, _ int) bool {
		return slices.ContainsFunc(rights, func(right deploy.Right) bool { return covers(right, used) })
	})
}

// left returns the permissions that have not been used.
func (r *recorder) left(granted []deploy.Right) []string {
	var left []string
	for _, right := range granted {
		if !r.has(right) {
			left = append(left, right.String())
		}
	}
	return left
}

func (r *recorder) refused() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.denied)
}

// covers reports whether a permission permits a request.
func covers(right, used deploy.Right) bool {
	return right.Verb == used.Verb && right.Group == used.Group && right.Resource == used.Resource &&
		(right.Namespace == "" || right.Namespace == used.Namespace) && (right.Name == "" || right.Name == used.Name)
}
