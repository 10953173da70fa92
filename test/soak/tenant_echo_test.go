// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"testing"
	"time"
)

// TestWhatTheAPIServerTakes verifies that the latency of a change counts for the waits that overlap
// it, whether the change has been observed or not, and for no other waits.
func TestWhatTheAPIServerTakes(t *testing.T) {
	at := func(seconds float64) time.Time {
		return time.Unix(0, 0).Add(time.Duration(seconds * float64(time.Second)))
	}
	var e echoes
	e.beginRequest(at(1))
	e.endRequest(at(1.5))
	e.beginRequest(at(10))
	e.beginRequest(at(11)) // ignored: the first change has not been observed yet
	for _, c := range []struct {
		from, to float64
		want     time.Duration
	}{
		{0, 0.9, 0}, {0, 5, 500 * time.Millisecond}, {1.2, 1.3, 500 * time.Millisecond}, {2, 5, 0},
		{9, 12, 2 * time.Second}, {11, 13, 3 * time.Second},
	} {
		if got := e.longest(at(c.from), at(c.to)); got != c.want {
			t.Errorf("from %v to %v: %v, want %v", c.from, c.to, got, c.want)
		}
	}
	e.endRequest(at(12))
	if got := e.longest(at(11.5), at(20)); got != 2*time.Second {
		t.Errorf("seen after all: %v", got)
	}
	e.beginRequest(at(500))
	if got := e.longest(at(0), at(400)); got != 0 {
		t.Errorf("it is remembered for ever: %v", got)
	}
}

// TestThePartOfTheAPIServerIsNotBerths verifies that a pod of the witness is late if its wait
// exceeds the bound plus twice the API server's latency: once for the creation of the pod, and once
// for its binding.
func TestThePartOfTheAPIServerIsNotBerths(t *testing.T) {
	late := make(chan string, 10)
	s := newServed(nil, func(name string, _ time.Duration) { late <- name })
	s.setBound(time.Second)
	began := time.Now().Add(-5 * time.Second)
	s.echoes.beginRequest(began)
	s.echoes.endRequest(began.Add(1500 * time.Millisecond))
	s.waiting["in time"], s.waiting["late"] = began, began
	s.notePlaced(probePod("in time"), began.Add(3900*time.Millisecond))
	s.tooLate(began.Add(3900 * time.Millisecond))
	select {
	case name := <-late:
		t.Errorf("%s is not late: the API server took 1.5 s for a change", name)
	case <-time.After(50 * time.Millisecond):
	}
	s.notePlaced(probePod("late"), began.Add(4100*time.Millisecond))
	select {
	case name := <-late:
		if name != "late" {
			t.Errorf("%s is late", name)
		}
	case <-time.After(5 * time.Second):
		t.Error("4.1 s are not late, where the bound is one and the API server took 1.5")
	}
}
