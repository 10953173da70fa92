// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// longestLook bounds a scrape's wait for the scheduler to be between two decisions. After that, the
// scrape shows the previous result.
const longestLook = 200 * time.Millisecond

// WatchDevices makes every scrape measure the free devices of profiles with the plugin
// Fragmentation. look must call its argument with the scheduler's state, later, on the deciding
// goroutine between two decisions. Measuring delays decisions, so it is done only for a scrape.
func (r *Recorder) WatchDevices(look func(func(cycle.View))) { r.look.Store(&look) }

// lookAtDevices measures the devices and waits for the result. While a measurement is pending,
// further scrapes do not start another.
func (r *Recorder) lookAtDevices() {
	look := r.look.Load()
	if look == nil || !r.looking.CompareAndSwap(false, true) {
		return
	}

	done := make(chan struct{})
	(*look)(func(v cycle.View) {
		defer close(done)
		defer r.looking.Store(false)
		r.measureDevices(v)
	})
	select {
	case <-done:
	case <-time.After(longestLook):
	}
}

// measureDevices sets the gauges, in whole devices; amounts are in thousandths.
func (r *Recorder) measureDevices(v cycle.View) {
	r.devices.Reset() // pools may have been removed
	for name, profile := range v.Profiles {
		valuer := profile.DeviceValuer()
		if valuer == nil {
			continue
		}
		resource, _ := valuer.Resource()
		for pool, room := range valuer.RoomByPool(v.Cluster) {
			for state, amount := range map[string]int64{"size": room.Size, "free": room.Free, "usable": room.Usable, "left": room.Left} {
				r.devices.WithLabelValues(name, string(resource), pool, state).Set(float64(amount) / 1000)
			}
		}
	}
}
