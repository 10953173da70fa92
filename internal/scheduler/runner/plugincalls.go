// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"fmt"
	"runtime/debug"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// pluginCalls calls out-of-tree plugins outside the owner's goroutine. If a plugin panics or does
// not return, only the pod of the call may be affected.
type pluginCalls struct {
	observer cycle.Observer
	life     *lifetime
}

// startTiming begins to measure a call of a plugin, and returns a function to call when the plugin
// has returned. Only sampled attempts are measured, as for upstream's
// plugin_execution_duration_seconds.
func (c *pluginCalls) startTiming(a *cycle.Attempt, plugin string, point plugins.Point) func(ok bool) {
	if !a.Sampled {
		return func(bool) {}
	}
	began := time.Now()
	return func(ok bool) { c.observer.RanPlugin(plugin, point, ok, time.Since(began)) }
}

// timePlugin calls do, and measures it as a call of a PreBind plugin if the attempt is sampled.
func (c *pluginCalls) timePlugin(a *cycle.Attempt, plugin string, do func() cycle.Outcome) cycle.Outcome {
	done := c.startTiming(a, plugin, plugins.PreBind)
	o := do()
	done(o.Fault == nil)
	return o
}

// callGuarded calls an out-of-tree plugin on a separate goroutine and recovers from panics, which
// are returned as errors. It also returns an error if the call has not returned when the context
// finishing ends.
func callGuarded[T any](c *pluginCalls, plugin cycle.Extension, ask func() (T, error)) (T, error) {
	type answer struct {
		said T
		err  error
	}
	answers := make(chan answer, 1)

	go func() {
		var a answer
		defer func() {
			if value := recover(); value != nil {
				a.err = fmt.Errorf("plugin %q panicked: %v", plugin.Name(), value)
				klog.Background().Error(a.err, "An out-of-tree plugin panicked", "stack", string(debug.Stack()))
				c.observer.Panics()
			}
			answers <- a
		}()
		a.said, a.err = ask()
	}()

	select {
	case a := <-answers:
		return a.said, a.err
	case <-c.life.finishing.Done():
		var a answer
		a.err = fmt.Errorf("plugin %q did not return within %v after the scheduler was to stop", plugin.Name(), finishWithin)
		klog.Background().Error(a.err, "An out-of-tree plugin is not waited for")
		return a.said, a.err
	}
}
