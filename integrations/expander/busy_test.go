// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package expander

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
)

// TestLongQuestionsAreAskedAgain verifies the choice if the query service answers one long question
// of a caller at a time, and refuses the others, as it does. Its sleeps take virtual time.
func TestLongQuestionsAreAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Bool
		registry := prometheus.NewRegistry()
		e, err := New(queryFunc(func(ctx context.Context, r *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error) {
			if !running.CompareAndSwap(false, true) {
				time.Sleep(250 * time.Millisecond) // queryserver.refusalDelay
				err := connect.NewError(connect.CodeResourceExhausted, errors.New("a long question of this caller is in progress"))
				err.Meta().Set("Retry-After", "1")
				return nil, err
			}
			defer running.Store(false)
			time.Sleep(300 * time.Millisecond)
			placed := int32(1)
			if groupOf(r) == "best" {
				placed = 9
			}
			return &berthv1alpha1.FitsResponse{Placed: placed, Wanted: 9}, nil
		}), registry, Defaults())
		if err != nil {
			t.Fatal(err)
		}
		answer, err := e.BestOptions(t.Context(), scaleUp(t, 9, "a", "b", "c", "best", "d", "e", "f", "g"))
		if err != nil {
			t.Fatal(err)
		}
		if got := answer.GetOptions(); len(got) != 1 || got[0].GetNodeGroupId() != "best" || scaleUps(t, registry, "chosen") != 1 {
			t.Errorf("the autoscaler gets %d options, first %s; without some options: %v", len(got), got[0].GetNodeGroupId(), scaleUps(t, registry, "partial"))
		}
	})
}
