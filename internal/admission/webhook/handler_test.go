// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/admission/lookup"
)

// silent is an API server that blocks all requests until it ends.
type silent struct {
	asked chan struct{}
	ended chan struct{}
}

func (s silent) RoundTrip(*http.Request) (*http.Response, error) {
	s.asked <- struct{}{}
	<-s.ended
	return nil, http.ErrServerClosed
}

// TestLookupsThatHaveNoTurnAreToBeTriedAgain verifies that the API server gets 503 and Retry-After
// if a review requires a lookup without a free slot, or if the caches are cold.
func TestLookupsThatHaveNoTurnAreToBeTriedAgain(t *testing.T) {
	api := silent{asked: make(chan struct{}), ended: make(chan struct{})}
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://api", Transport: api, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	known := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(known, 0)
	w, r := testWebhook(), &reviewer{caches: lookup.NewCaches(client, factory)}
	close(w.warm)
	handler := w.newHandler(r)
	unknown := func(name, timeout string) *httptest.ResponseRecorder {
		body := strings.Replace(reviewOf(`{"metadata":{"namespace":"`+name+`"},"spec":{}}`), `"group"`, `"`+name+`"`, 1)
		return post(handler, mutatePath+"?timeout="+timeout, body)
	}
	comeAgain := func(what string, got *httptest.ResponseRecorder) {
		if got.Code != http.StatusServiceUnavailable || got.Header().Get("Retry-After") == "" {
			t.Errorf("%s: %d, Retry-After %q: %s", what, got.Code, got.Header().Get("Retry-After"), got.Body)
		}
	}

	comeAgain("cold caches", unknown("a", "10s"))
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	ended := make(chan struct{})
	const lookups = 4 // the limit of package lookup
	for _, name := range []string{"a", "b", "c", "d"} {
		go func() { unknown(name, "30s"); ended <- struct{}{} }()
		<-api.asked
	}
	comeAgain("a look too many", unknown("e", "200ms"))
	close(api.ended)
	for range lookups {
		<-ended
	}
}
