// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"testing"
	"time"
)

// TestServerThatIsNotReadyAnyMoreIsStopped verifies that a server that was ready once, and is now
// cut off from etcd, can still be stopped without ending the process.
func TestServerThatIsNotReadyAnyMoreIsStopped(t *testing.T) {
	c := Start(t)
	c.running.etcd.server.Stop()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.Stop()
	}()
	select {
	case <-stopped:
	case <-time.After(time.Minute):
		t.Fatal("does not stop")
	}
	select {
	case <-c.running.api.ended:
	default:
		t.Error("the server runs on")
	}
}
