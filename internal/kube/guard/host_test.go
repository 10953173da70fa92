// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestAForeignNameThatLeadsHereIsRefused verifies the protection from DNS rebinding, in which the
// name of a foreign site resolves to 127.0.0.1.
func TestAForeignNameThatLeadsHereIsRefused(t *testing.T) {
	served := RefuseRebound(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, c := range []struct {
		from, host string
		want       int
	}{
		{"127.0.0.1:1", "127.0.0.1:10251", 200},
		{"127.0.0.1:1", "localhost:10251", 200},
		{"[::1]:1", "[::1]:10251", 200},
		{"127.0.0.1:1", "10.0.0.1", 200},
		{"127.0.0.1:1", "rebound.example.com:10251", 421},
		{"[::1]:1", "rebound.example.com", 421},
		{"127.0.0.1:1", "", 421},
		{"10.0.0.1:1", "berth-controller.berth-system.svc:10357", 200}, // not from a browser on this machine
	} {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.RemoteAddr, r.Host = c.from, c.host
		w := httptest.NewRecorder()
		served.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("from %s by %q: %d, want %d", c.from, c.host, w.Code, c.want)
		}
	}
}

func TestOnlyNamedHostsAreServed(t *testing.T) {
	served := OnlyNamed([]string{"webhook.berth-system.svc"}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for host, want := range map[string]int{
		"webhook.berth-system.svc": http.StatusOK, "WEBHOOK.berth-system.svc:443": http.StatusOK, "webhook.berth-system.svc.:443": http.StatusOK,
		"127.0.0.1:9443": http.StatusOK, "[::1]:9443": http.StatusOK, "localhost": http.StatusOK,
		"evil.example.com": http.StatusMisdirectedRequest, "": http.StatusMisdirectedRequest, "webhook.berth-system.svc.evil.example.com": http.StatusMisdirectedRequest,
	} {
		request := httptest.NewRequest(http.MethodPost, "/validate", nil)
		request.Host = host
		answer := httptest.NewRecorder()
		if served.ServeHTTP(answer, request); answer.Code != want {
			t.Errorf("host %q: %d, expected %d", host, answer.Code, want)
		}
	}
}
