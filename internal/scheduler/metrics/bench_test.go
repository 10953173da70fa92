// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// BenchmarkPod measures the cost of the metrics of one pod placed immediately.
func BenchmarkPod(b *testing.B) {
	r := New()
	b.ReportAllocs()
	for b.Loop() {
		r.Handled(queue.Pod, queue.Add, time.Microsecond)
		r.Queued(queue.Active, queue.Appeared)
		r.Decided(time.Microsecond)
		r.Binding(1)
		r.Ran("default-scheduler", plugins.Bind, true, time.Millisecond)
		r.Binding(-1)
		r.Attempted("default-scheduler", cycle.Scheduled, time.Millisecond)
		r.Bound(1, time.Millisecond, false)
		r.Handled(queue.Pod, queue.UpdatePodLabel, time.Microsecond)
	}
}
