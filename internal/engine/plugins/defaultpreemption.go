// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import "github.com/berth-k8s/berth/internal/engine/queue"

// DefaultPreemption enables preemption at the extension points that list it. The scheduler does the
// work: package decide finds the victims, and the preemptor waits until the API server has
// responded to their removals. No event helps the preemptor before.
type DefaultPreemption struct{}

// Name returns the plugin's name.
func (DefaultPreemption) Name() string { return "DefaultPreemption" }

// Preempter is a plugin that makes the scheduler search for victims at PostFilter, and keeps the
// pod out of the queue at PreEnqueue until the API server has responded to their removals.
type Preempter interface {
	Name() string
	Preempts()
}

// Preempts implements [Preempter].
func (DefaultPreemption) Preempts() {}

// Interests implements Requeuer.
func (DefaultPreemption) Interests(Setting) []queue.Interest { return nil }
