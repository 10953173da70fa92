// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package apitest

import (
	"net/http"
	"sync"
	"testing"
)

// TestRefuseWhileRequestsAreServed verifies that the refused requests may change while clients send
// requests.
func TestRefuseWhileRequestsAreServed(t *testing.T) {
	s := New(t)
	var asking sync.WaitGroup
	for range 2 {
		asking.Go(func() {
			for range 200 {
				answer, err := http.Get(s.Config.Host + "/api/v1/events")
				if err != nil {
					t.Error(err)
					return
				}
				answer.Body.Close()
			}
		})
	}
	done := make(chan struct{})
	go func() { asking.Wait(); close(done) }()
	for status := http.StatusForbidden; ; status++ {
		s.Refuse("events", status%2*http.StatusForbidden)
		select {
		case <-done:
			s.Refuse("events", http.StatusForbidden)
			answer, err := http.Get(s.Config.Host + "/api/v1/events")
			if err != nil || answer.StatusCode != http.StatusForbidden {
				t.Errorf("%v, %v", answer, err)
			}
			return
		default:
		}
	}
}
