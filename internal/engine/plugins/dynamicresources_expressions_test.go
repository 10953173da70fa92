// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"testing"
	"testing/synctest"
)

// TestOneNamespacesExpressionsWaitAmongThemselves verifies that the compiler alternates between
// namespaces, even if many pods of one namespace wait. A waiter returns when its context ends.
func TestOneNamespacesExpressionsWaitAmongThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sets := expressionSets{}
		ending, end := context.WithCancel(t.Context())
		defer end()
		leave := sets.awaitTurn(t.Context(), "hostile")

		hostile := newExpressionSet([]string{`device.driver == "a"`})
		ended := make(chan struct{})
		go func() { defer close(ended); sets.compileSet(t.Context(), "hostile", hostile) }()
		given := make(chan struct{})
		go func() { defer close(given); sets.compileSet(ending, "hostile", newExpressionSet(hostile.list)) }()
		synctest.Wait()
		if len(hostile.costs.known) != 0 {
			t.Error("a second pod of the namespace is at the compiler in the first one's turn")
		}

		other := newExpressionSet([]string{`device.driver == "b"`})
		sets.compileSet(t.Context(), "other", other)
		if len(other.costs.known) != 1 {
			t.Error("another namespace's expression is not compiled")
		}

		end()
		<-given
		leave()
		<-ended
		if len(hostile.costs.known) != 1 || len(sets.turns) != 0 {
			t.Errorf("%d expressions are compiled when it is their turn, and %d turns are left", len(hostile.costs.known), len(sets.turns))
		}
	})
}

// TestCostsOfExpressionsAreFoundBeforehand verifies that the costs are known when the pod is
// decided.
func TestCostsOfExpressionsAreFoundBeforehand(t *testing.T) {
	sets, set := expressionSets{}, newExpressionSet([]string{`device.driver == "a"`, `device.driver == "b"`})
	sets.compileSet(t.Context(), "default", set)
	for _, expression := range set.list {
		if _, known := set.costs.known[expression]; !known {
			t.Errorf("what %s costs is found by the goroutine that decides", expression)
		}
	}
}
