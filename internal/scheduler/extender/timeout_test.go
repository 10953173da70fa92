// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package extender

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

func TestWithoutATimeoutRequestsMayTakeFiveSeconds(t *testing.T) {
	e, err := New(configv1.Extender{})
	if err != nil || e.client.Timeout != 5*time.Second {
		t.Errorf("got %v, %v", e.client.Timeout, err)
	}
}

// TestAnAnswerWithoutEndIsNotReadToIt verifies that an endless response is not kept in memory.
func TestAnAnswerWithoutEndIsNotReadToIt(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"error":"`)
		for piece := strings.Repeat("x", 1<<20); r.Context().Err() == nil; {
			if _, err := fmt.Fprint(w, piece); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	patience := metav1.Duration{Duration: time.Minute} // so long that the length limit ends the request
	e, err := New(configv1.Extender{URLPrefix: server.URL, FilterVerb: "filter", HTTPTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := e.Filter(&v1.Pod{}, nil); err == nil || !strings.Contains(err.Error(), "the answer is longer than") {
		t.Errorf("got %v", err)
	}
}
