// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"testing"
)

// TestTheEndOfTheAPIServerIsAnError verifies that the startup fails with the server's error even if
// the API server has ended and the context is not cancelled yet.
func TestTheEndOfTheAPIServerIsAnError(t *testing.T) {
	own, others, over := errors.New("out of memory"), errors.New("etcd ended"), errors.New("not ready")
	cancelled, cancel := context.WithCancelCause(t.Context())
	cancel(others)
	for _, c := range []struct {
		ctx   context.Context
		ended bool
		want  error
	}{{t.Context(), true, own}, {cancelled, true, own}, {cancelled, false, others}, {t.Context(), false, over}} {
		a := &apiServer{ended: make(chan struct{})}
		if c.ended {
			close(a.ended)
		}
		if got := a.reason(c.ctx, over, func() error { return own }); !errors.Is(got, c.want) {
			t.Errorf("ended: %v: %v, expected %v", c.ended, got, c.want)
		}
	}
}
