package extender

import (
	"testing"
	"time"

	configv1 "k8s.io/kube-scheduler/config/v1"
)

func TestWithoutATimeoutRequestsMayTakeFiveSeconds(t *testing.T) {
	e, err := New(configv1.Extender{})
	if err != nil || e.client.Timeout != 5*time.Second {
		t.Errorf("got %v, %v", e.client.Timeout, err)
	}
}
