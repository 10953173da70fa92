// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestDefaultRolesTakeAsLongAsTheyTake verifies that a server creating the default roles slowly
// stays up, and that it ends if stopped meanwhile.
func TestDefaultRolesTakeAsLongAsTheyTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, tries := time.Now(), 0
		slow := func(until time.Duration) func(context.Context) error {
			return func(context.Context) error {
				tries++
				if time.Since(began) < until {
					return errors.New("busy")
				}
				return nil
			}
		}
		retryUntilDone(t.Context(), slow(5*time.Minute))
		if took := time.Since(began); took < 5*time.Minute || took > 5*time.Minute+bootstrapRetryMost || tries < 10 {
			t.Errorf("after %v and %d tries", took, tries)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		retryUntilDone(ctx, slow(24*time.Hour))
		if ctx.Err() == nil {
			t.Error("given up while the server runs")
		}
	})
}
