// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import "fmt"

// Allowance bounds the cost of a world; the zero value is unlimited. Servers set it, because a
// one-line request can create a hundred thousand pods.
type Allowance struct {
	// Stop, if set, is called between decisions. Once it returns an error, no further decision is
	// made and the current operation fails with that error. It is usually the Err method of a
	// context.
	Stop func() error
	// Pods and Nodes limit the total numbers of pods and nodes that operations may add; 0 means
	// unlimited.
	Pods, Nodes int
}

// allowed tracks the used part of an Allowance. Once ended is set, it is never cleared: the world
// is incomplete and must not serve requests.
type allowed struct {
	Allowance
	pods, nodes int   // maximum numbers; 0 means unlimited
	ended       error // reason no further decisions are made
	there       func() (pods, nodes int)
}

// countExisting computes the maximum numbers from the existing pods and nodes and the allowance.
func (a *allowed) countExisting() {
	pods, nodes := a.there()
	if a.Pods > 0 {
		a.pods = pods + a.Pods
	}
	if a.Nodes > 0 {
		a.nodes = nodes + a.Nodes
	}
}

// Err returns the reason the world has stopped, or nil.
func (w *World) Err() error { return w.allowed.ended }

// mustStop reports whether to stop. Every loop with a length that depends on an operation or on the
// cluster calls it at least once per decision.
func (a *allowed) mustStop() bool {
	pods, nodes := a.there()
	switch {
	case a.ended != nil:
	case a.pods > 0 && pods > a.pods:
		a.ended = fmt.Errorf("more than %d pods would be added: ask for fewer", a.Pods)
	case a.nodes > 0 && nodes > a.nodes:
		a.ended = fmt.Errorf("more than %d nodes would be added: ask for fewer", a.Nodes)
	case a.Stop != nil:
		a.ended = a.Stop()
	}
	return a.ended != nil
}
