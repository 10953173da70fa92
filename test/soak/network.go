// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// network connects a part to the API server: HTTP/2 over TLS on both sides, as between machines.
type network struct {
	counts  *counts
	server  *httptest.Server
	wire    *wire
	forward *httputil.ReverseProxy
	// limit, if set, returns the maximum number of such requests per minute, for each object or
	// together; 0 means no limit.
	limit    func(t virtual.Target) (limit int, together bool)
	deletion func(pod string) // called for each deletion of a pod that reaches the API server, with namespace/name

	mu      sync.Mutex    // guards the fields below
	time    *virtual.Time // its time is set for each request
	faults  virtual.Faults
	kinds   map[string]bool           // kinds of the requests sent so far
	sent    map[int]*virtual.Requests // requests, by their limit
	watches map[int]*watching
	number  int
	forget  map[string]bool // resources whose next watch fails with an expired version
	stalled bool            // the events of new watches are withheld
	// elects exempts requests of leader election from faults, so that a leader keeps leading while
	// its other requests fail. Otherwise another replica would take over, and start from the API
	// server's state.
	elects bool
}

// watching is a running watch.
type watching struct {
	resource string
	cancel   context.CancelFunc
	gate     gate
}

func newNetwork(api *rest.Config, rng *rand.Rand, counts *counts, deletion func(string)) (*network, error) {
	target, err := url.Parse(api.Host)
	if err != nil {
		return nil, err
	}

	transport, err := rest.TransportFor(api)
	if err != nil {
		return nil, err
	}

	n := &network{time: &virtual.Time{Rand: rng}, counts: counts, deletion: deletion, watches: map[int]*watching{},
		forget: map[string]bool{}, kinds: map[string]bool{}, sent: map[int]*virtual.Requests{}}
	n.forward = &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target); r.Out.Host = target.Host },
		Transport:      transport,
		FlushInterval:  -1,
		ModifyResponse: n.gateWatch,
		ErrorLog:       quiet,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}

	n.server = httptest.NewUnstartedServer(n)
	n.server.EnableHTTP2 = true
	n.server.Config.ErrorLog = quiet
	n.wire = newWire(n.server.Listener)
	n.server.Listener = n.wire
	n.server.StartTLS()
	return n, nil
}

// writeKubeconfig writes a kubeconfig for the API server behind this network.
func (n *network) writeKubeconfig(file string) error {
	config := clientcmdapi.NewConfig()
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: n.server.Certificate().Raw})
	config.Clusters["soak"] = &clientcmdapi.Cluster{Server: n.server.URL, CertificateAuthorityData: ca}
	config.AuthInfos["soak"] = clientcmdapi.NewAuthInfo()
	config.Contexts["soak"] = &clientcmdapi.Context{Cluster: "soak", AuthInfo: "soak"}
	config.CurrentContext = "soak"
	return clientcmd.WriteToFile(*config, file)
}

func (n *network) close() {
	n.wire.open()
	n.breakConnections()
	n.server.Close()
}

func (n *network) breakConnections() { n.wire.breakConnections() }

// setRules sets the faults of requests. elects exempts requests of leader election.
func (n *network) setRules(elects bool, rules ...virtual.Rule) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults.Rules, n.elects = rules, elects
}

// watchedResource returns the resource watched by the request, or "".
func watchedResource(r *http.Request) string {
	if w := r.URL.Query().Get("watch"); w != "true" && w != "1" {
		return ""
	}
	return path.Base(r.URL.Path)
}

func (n *network) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	resource := watchedResource(r)
	target := targetOf(r)
	fate, expired := n.chooseFate(r, target, resource)
	if fate.Fault != virtual.None {
		n.counts.addOne(fate.Fault.String())
	}
	if fate.Before > 0 {
		n.counts.addOne("request late")
		if !sleepFor(r.Context(), fate.Before) {
			panic(http.ErrAbortHandler)
		}
	}
	_, done := fate.Fault.Outcome()
	switch {
	case expired:
		writeError(w, virtual.None, http.StatusGone, 0)
	case resource != "" && done:
		n.serveWatch(w, r, resource)
	default:
		n.serveRequest(w, r, target, fate)
	}
}

// targetOf returns the target of a request. Its kind is the verb and the resource with its
// subresource, such as "create pods/eviction". A list has no object.
func targetOf(r *http.Request) (t virtual.Target) {
	words := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case words[0] == "api" && len(words) > 2:
		words = words[2:] // api v1
	case words[0] == "apis" && len(words) > 3:
		words = words[3:] // apis GROUP VERSION
	default: // discovery, health
		return virtual.Target{Kind: "get " + r.URL.Path, Reads: true}
	}
	if len(words) > 2 && words[0] == "namespaces" {
		t.Namespace, words = words[1], words[2:]
	}
	verb := map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch",
		http.MethodDelete: "delete"}[r.Method]
	t.Reads = r.Method == http.MethodGet
	if t.Reads && len(words) == 1 {
		verb = "list"
	}
	if watchedResource(r) != "" {
		verb = "watch"
	}
	if len(words) > 1 {
		t.Object = words[1]
	}
	t.Kind = verb + " " + strings.Join(slices.Delete(slices.Clone(words), min(1, len(words)), min(2, len(words))), "/")
	return t
}

// chooseFate draws the fault of a request and counts the request. It reports whether the version of
// a watch counts as expired.
func (n *network) chooseFate(r *http.Request, t virtual.Target, watched string) (fate virtual.Fate, expired bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.time.Now = time.Now()
	election := strings.Contains(r.URL.Path, "/leases") && t.Namespace != v1.NamespaceNodeLease
	if !election {
		n.count(r, t)
	}
	if n.forget[watched] && watched != "" {
		delete(n.forget, watched)
		return fate, true
	}
	if election && n.elects {
		return fate, false
	}
	fate = n.faults.Draw(n.time, t, true)
	if fate.Fault == virtual.Unanswered || fate.Fault == virtual.Belated {
		fate.After += n.time.Between(0, virtual.Timeout)
	}
	return fate, false
}

// count counts a request for checkRequests. The caller holds mu.
func (n *network) count(r *http.Request, t virtual.Target) {
	if n.limit == nil {
		return
	}
	n.kinds[t.Kind] = true
	subject := t.Namespace + "/" + t.Object
	if t.Object == "" {
		subject = r.URL.Query().Get("fieldSelector") + r.URL.Query().Get("continue")
	}
	limit, together := n.limit(t)
	if together {
		subject = "in total"
	}
	if limit > 0 && n.sent[limit] == nil {
		n.sent[limit] = &virtual.Requests{Limit: limit}
	}
	if limit > 0 {
		n.sent[limit].Count(n.time.Now, t.Kind, subject)
	}
}

// serveRequest serves a request, or a watch that does not begin, according to its fate.
func (n *network) serveRequest(w http.ResponseWriter, r *http.Request, t virtual.Target, fate virtual.Fate) {
	outcome, done := fate.Fault.Outcome()
	if pod, ok := deletedPod(r); ok && (done || fate.Fault == virtual.Belated) {
		n.deletion(pod)
	}
	if fate.Fault == virtual.None && fate.After == 0 {
		n.forward.ServeHTTP(w, r)
		return
	}

	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	// The request is independent of the client's connection.
	detached := r.Clone(context.WithoutCancel(r.Context()))
	detached.Body = io.NopCloser(bytes.NewReader(body))
	answer := httptest.NewRecorder()
	switch {
	case fate.Fault == virtual.Ineffective:
		n.forward.ServeHTTP(answer, withoutEffect(detached))
	case done:
		n.forward.ServeHTTP(answer, detached)
	}
	if fate.After > 0 && !sleepFor(r.Context(), fate.After) || outcome == response.Failed && fate.Fault != virtual.Failing {
		if fate.Fault == virtual.Belated {
			go n.carryOut(detached)
		}
		panic(http.ErrAbortHandler)
	}
	if outcome != response.OK {
		writeError(w, fate.Fault, n.statusOf(outcome, t), fate.RetryAfter)
		return
	}
	for key, values := range answer.Header() {
		w.Header()[key] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = io.Copy(w, bytes.NewReader(answer.Body.Bytes())) // the client may have disconnected
}

// carryOut carries out a request whose client has disconnected.
func (n *network) carryOut(r *http.Request) {
	defer func() { _ = recover() }() // the API server may be unreachable
	n.forward.ServeHTTP(httptest.NewRecorder(), r)
}

// withoutEffect returns a request with a successful response that changes nothing: for a change or
// a deletion, the object as it is.
func withoutEffect(r *http.Request) *http.Request {
	if r.Method != http.MethodPost {
		r.Method, r.URL.RawQuery, r.Body, r.ContentLength = http.MethodGet, "", http.NoBody, 0
		r.Header.Del("Content-Type")
		return r
	}
	query := r.URL.Query()
	query.Set("dryRun", metav1.DryRunAll)
	r.URL.RawQuery = query.Encode()
	return r
}

// statusOf returns the HTTP status of an outcome.
func (n *network) statusOf(outcome response.Outcome, t virtual.Target) int {
	switch outcome {
	case response.Refused:
		return http.StatusForbidden
	case response.Gone:
		return http.StatusNotFound
	case response.Conflict:
		return http.StatusConflict
	case response.Busy:
		return http.StatusTooManyRequests
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	failures := []int{http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusGatewayTimeout}
	return failures[n.time.Rand.IntN(len(failures))]
}

// deletedPod reports whether the request deletes or evicts a pod, and returns the pod.
func deletedPod(r *http.Request) (string, bool) {
	words := strings.Split(strings.Trim(r.URL.Path, "/"), "/") // api v1 namespaces NS pods NAME
	if len(words) < 6 || words[4] != "pods" {
		return "", false
	}
	evicts := r.Method == http.MethodPost && len(words) == 7 && words[6] == "eviction"
	return words[3] + "/" + words[5], evicts || r.Method == http.MethodDelete && len(words) == 6
}

// refusal is the message of error responses generated by the network.
const refusal = "as the campaign asks"

func writeError(w http.ResponseWriter, fault virtual.Fault, code int, retryAfter time.Duration) {
	reasons := map[int]metav1.StatusReason{
		http.StatusGone: metav1.StatusReasonExpired, http.StatusConflict: metav1.StatusReasonConflict,
		http.StatusForbidden: metav1.StatusReasonForbidden, http.StatusNotFound: metav1.StatusReasonNotFound,
		http.StatusInternalServerError: metav1.StatusReasonInternalError, http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests,
		http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable, http.StatusGatewayTimeout: metav1.StatusReasonTimeout,
	}
	w.Header().Set("Content-Type", "application/json")
	if fault == virtual.BusyFor {
		w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter.Seconds())))
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{ // the client may have disconnected
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reasons[code], Message: refusal,
	})
}
