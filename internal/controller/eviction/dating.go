// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/pacing"
)

// dating determines the start of each taint of a node or a device. It is stateless: prior knowledge
// is passed in with the object.
//
// A taint's own timeAdded counts, but no later than now: a time in the future results from a clock
// that is ahead. A taint without timeAdded (kubectl sets none) was added when the list of taints
// was first written with it. The managed fields record only the last write of the list. If another
// taint has been written since, the earlier time is in the node's note. A note is valid only for
// the list it was made for. The times remembered by the Core are valid as long as it has not missed
// an event. After a missed event, nothing remembered is certain: if the list was rewritten, a taint
// may have been removed and added again, so it counts as new. A pod may then be evicted late, but
// never early.
type dating struct {
	clock clock
}

// nodeTaints returns the node's current taints; n is the node as observed before.
func (d dating) nodeTaints(now time.Time, n *node, seen Node, missed bool) []Held {
	if len(seen.Taints) == 0 {
		return nil
	}
	var noted map[string]time.Time
	if missed {
		// A note made for another list of taints does not count.
		if n, ok := parseNote(seen.Note); ok && n.Of.Equal(seen.Witness) {
			noted = n.Since
		}
	}

	remembers := !missed || n.Known && seen.ResourceVersion == n.Version && n.Version != ""
	held := make([]Held, 0, len(seen.Taints))
	for _, taint := range seen.Taints {
		before, had := findTaint(n.Held, &taint)
		switch said := d.taintSince(&taint, seen, noted); {
		case had && before.Taint.TimeAdded.Equal(taint.TimeAdded) && (!taint.TimeAdded.IsZero() || remembers),
			had && !said.IsZero() && said.Equal(before.Reported):
			before.Taint = taint
		default:
			before = d.newlyHeld(now, taint, said, missed)
		}
		if said := seen.Turned; oppositeTaint(&taint) != nil && !said.Equal(before.ReportedTurned) {
			before.ReportedTurned, before.Turned = said, time.Time{}
			if !said.IsZero() {
				before.Turned = d.clock.toClockSince(now, said, missed)
			}
		}
		held = append(held, before)
	}

	return held
}

// taintSince returns the start of a taint according to the node object.
func (d dating) taintSince(taint *v1.Taint, seen Node, noted map[string]time.Time) time.Time {
	if !taint.TimeAdded.IsZero() {
		return taint.TimeAdded.Time
	}
	if since, ok := noted[Held{Taint: *taint}.ID()]; ok {
		return since
	}
	return seen.Witness
}

// newlyHeld returns a taint for which there is no valid prior knowledge. The taint starts at the
// time recorded in its object, or now if there is none.
func (d dating) newlyHeld(now time.Time, taint v1.Taint, said time.Time, missed bool) Held {
	h := Held{Taint: taint, Since: now, Written: d.clock.wall.At(now), Reported: said}
	if !said.IsZero() {
		h.Since, h.Written = d.clock.toClockSince(now, said, missed), pacing.Earlier(said, h.Written)
	}
	return h
}

// sliceTaints returns the taints of a slice's devices, by device; before is the slice's previous
// state. The API server sets a time on every device taint, so notes are unnecessary, and a known
// taint keeps its start unless its time changes.
func (d dating) sliceTaints(now time.Time, s, before *slice, missed bool) map[string][]Held {
	held := map[string][]Held{}
	for i := range s.Devices {
		device := &s.Devices[i]
		for _, taint := range device.Taints {
			var known []Held
			if before != nil {
				known = before.held[device.Name]
			}
			held[device.Name] = append(held[device.Name], d.deviceTaint(now, taint, known, missed))
		}
	}
	return held
}

// deviceTaint is sliceTaints for a single taint of a slice or a rule.
func (d dating) deviceTaint(now time.Time, taint v1.Taint, known []Held, missed bool) Held {
	var said time.Time
	if !taint.TimeAdded.IsZero() {
		said = taint.TimeAdded.Time
	}
	if before, had := findTaint(known, &taint); had && said.Equal(before.Reported) {
		before.Taint = taint
		return before
	}
	return d.newlyHeld(now, taint, said, missed)
}

// findTaint returns the held taint with the same key, effect and value, regardless of its time.
func findTaint(held []Held, taint *v1.Taint) (Held, bool) {
	for _, h := range held {
		if h.Taint.MatchTaint(taint) && h.Taint.Value == taint.Value {
			return h, true
		}
	}
	return Held{}, false
}

// sameTaints reports whether two lists lead to the same deadlines.
func sameTaints(a, b []Held) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(held Held) bool {
		h, ok := findTaint(b, &held.Taint)
		return !ok || !h.Since.Equal(held.Since) || !h.Turned.Equal(held.Turned)
	})
}

// clock converts between the Core's own clock and the wall clock used for times in objects. The
// Core's clock is never adjusted, so a correction of a wall clock cannot move a deadline.
type clock struct {
	wall pacing.Wall // Options.Wall
}

// toClock converts a time written into an object to the Core's clock. The result is never in the
// future. Callers keep it, so that later adjustments of wall clocks do not change it.
func (c clock) toClock(now, written time.Time) time.Time {
	return pacing.Earlier(now, now.Add(written.Sub(c.wall.At(now))))
}

// toClockSince is toClock for the time of an observed event. Times in objects are truncated to
// whole seconds, so the event counts from the end of the written second, or from now if that is
// earlier: pods are never evicted early. If missed is set, events may have been missed, and the
// written time counts.
func (c clock) toClockSince(now, written time.Time, missed bool) time.Time {
	if missed {
		return c.toClock(now, written)
	}
	return c.toClock(now, written.Add(time.Second))
}
