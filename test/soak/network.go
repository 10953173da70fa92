// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// weather holds the probability of each kind of failure of a request.
type weather struct {
	refused    float64 // an error is returned without forwarding the request
	lost       float64 // the connection breaks before the request has arrived
	unanswered float64 // the request is carried out, and the connection breaks before the response
	slow       float64 // the request or the response is delayed by up to longestDelay
	// work exempts requests for Leases, so that a leader keeps leading while its other requests
	// fail. Otherwise another replica would take over, and start from the API server's state.
	work bool
}

// network connects a part to the API server: HTTP/2 over TLS on both sides, as between machines.
type network struct {
	counts   *counts
	server   *httptest.Server
	wire     *wire
	forward  *httputil.ReverseProxy
	deletion func(pod string) // called for each deletion of a pod that reaches the API server, with namespace/name

	mu      sync.Mutex // guards the fields below
	rng     *rand.Rand
	weather weather
	watches map[int]*watching
	number  int
	forget  map[string]bool // resources whose next watch fails with an expired version
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

	n := &network{rng: rng, counts: counts, deletion: deletion, watches: map[int]*watching{}, forget: map[string]bool{}}
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

func (n *network) setWeather(w weather) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.weather = w
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
	f := n.chooseFate(r, resource)
	switch {
	case f.status != 0:
		n.counts.addOne("request answered " + fmt.Sprint(f.status))
		writeError(w, f.status)
	case f.lost:
		n.counts.addOne("request lost")
		panic(http.ErrAbortHandler)
	case resource != "":
		n.serveWatch(w, r, resource)
	default:
		n.serveRequest(w, r, f)
	}
}

// fate is the predetermined outcome of a request.
type fate struct {
	status           int
	lost, unanswered bool
	before, after    time.Duration
}

func (n *network) chooseFate(r *http.Request, resource string) (f fate) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.forget[resource] && resource != "" {
		delete(n.forget, resource)
		f.status = http.StatusGone
		return f
	}
	if n.weather.work && strings.Contains(r.URL.Path, "/leases/") {
		return f
	}

	delay := func() time.Duration { return time.Duration(n.rng.Int64N(int64(longestDelay))) }
	dice := n.rng.Float64()
	for _, chance := range []struct {
		of   float64
		then func()
	}{
		{n.weather.refused, func() { f.status = n.anError(r) }},
		{n.weather.lost, func() { f.lost = true }},
		{n.weather.unanswered, func() { f.unanswered, f.after = resource == "", delay()/2 }},
		{n.weather.slow / 2, func() { f.before = delay() }},
		{n.weather.slow / 2, func() { f.after = delay() }},
	} {
		if dice < chance.of {
			chance.then()
			break
		}
		dice -= chance.of
	}

	return f
}

// anError returns a random HTTP error status that the API server could return for the request.
func (n *network) anError(r *http.Request) int {
	codes := []int{http.StatusInternalServerError, http.StatusTooManyRequests, http.StatusServiceUnavailable,
		http.StatusGatewayTimeout, http.StatusConflict}
	switch {
	case path.Base(r.URL.Path) == "binding":
		if n.rng.IntN(2) == 0 {
			return http.StatusConflict // a conflict ends an attempt; other errors cause a retry
		}
	case r.Method == http.MethodGet, r.Method == http.MethodPost:
		codes = codes[:4] // no conflict is possible
	}
	return codes[n.rng.IntN(len(codes))]
}

// serveRequest forwards a request according to its fate.
func (n *network) serveRequest(w http.ResponseWriter, r *http.Request, f fate) {
	if f.before > 0 {
		n.counts.addOne("request late")
		if !sleepFor(r.Context(), f.before) {
			panic(http.ErrAbortHandler)
		}
	}
	if pod, ok := deletedPod(r); ok {
		n.deletion(pod)
	}
	if f.after == 0 && !f.unanswered {
		n.forward.ServeHTTP(w, r)
		return
	}
	answer := httptest.NewRecorder()
	n.forward.ServeHTTP(answer, r.WithContext(context.WithoutCancel(r.Context()))) // independent of the client's connection
	sleepFor(r.Context(), f.after)
	if f.unanswered {
		n.counts.addOne("answer lost")
		panic(http.ErrAbortHandler)
	}
	n.counts.addOne("answer late")
	for key, values := range answer.Header() {
		w.Header()[key] = values
	}
	w.WriteHeader(answer.Code)
	_, _ = io.Copy(w, bytes.NewReader(answer.Body.Bytes())) // the client may have disconnected
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

func writeError(w http.ResponseWriter, code int) {
	reasons := map[int]metav1.StatusReason{
		http.StatusGone: metav1.StatusReasonExpired, http.StatusConflict: metav1.StatusReasonConflict,
		http.StatusInternalServerError: metav1.StatusReasonInternalError, http.StatusTooManyRequests: metav1.StatusReasonTooManyRequests,
		http.StatusServiceUnavailable: metav1.StatusReasonServiceUnavailable, http.StatusGatewayTimeout: metav1.StatusReasonTimeout,
	}
	w.Header().Set("Content-Type", "application/json")
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{ // the client may have disconnected
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reasons[code], Message: refusal,
	})
}
