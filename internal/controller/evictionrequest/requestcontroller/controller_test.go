// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package requestcontroller

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// failing is a transport to an API server that responds with errors.
type failing struct{ requests int }

func (f *failing) RoundTrip(r *http.Request) (*http.Response, error) {
	f.requests++
	return &http.Response{StatusCode: http.StatusInternalServerError, Request: r, Body: http.NoBody}, nil
}

// TestAnAPIThatFailsIsAskedRarely verifies that a failing API gets at most 20 requests per minute.
func TestAnAPIThatFailsIsAskedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &failing{}
		c := &Controller{requests: &requests{}}
		c.requests.client = kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://api", Transport: api, QPS: -1})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if c.waitServed(ctx) || api.requests < 10 || api.requests > 20 {
			t.Errorf("asked %d times in a minute", api.requests)
		}
	})
}
