package controlplane

import (
	"testing"
	"time"
)

// A server that has become too busy to answer /readyz, or cannot reach etcd, is stopped all the
// same, and the process lives on.
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
