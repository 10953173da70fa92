// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// TestPriorityClassesNeedGentlePreemption verifies that a scheduler requests PriorityClasses only
// with gentle preemption, that it schedules without them while they may not be read, and that it
// watches them when they may.
func TestPriorityClassesNeedGentlePreemption(t *testing.T) {
	for _, gentle := range []bool{false, true} {
		inWorld(t, func(w *world) {
			var asked, watched, allowed atomic.Bool
			w.api.SetFault(func(r *http.Request) fakeapi.Fault {
				if !strings.HasSuffix(r.URL.Path, "/priorityclasses") {
					return fakeapi.Fault{}
				}
				asked.Store(true)
				if allowed.Load() {
					watched.Store(watched.Load() || r.URL.Query().Get("watch") != "")
					return fakeapi.Fault{}
				}
				return fakeapi.Fault{Status: http.StatusForbidden}
			})
			profile := plugins.Default()
			profile.GentlePreemption = gentle
			w.api.Put(aNode("n", "1"), aPod("p", "1"))
			w.start(Options{Profiles: []cycle.Profile{{Profile: profile}}})
			w.untilBound("p")

			allowed.Store(true)
			w.pass(2 * devicesAgain)
			if asked.Load() != gentle || watched.Load() != gentle {
				t.Errorf("gentle %t: PriorityClasses are requested: %t, and watched: %t", gentle, asked.Load(), watched.Load())
			}
		})
	}
}
