// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"math"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/pacing"
)

// Held is a NoExecute taint of a node or a device, with its start.
type Held struct {
	Taint v1.Taint
	Since time.Time
	// Turned is the time at which a not-ready or unreachable taint replaced the opposite one, if it
	// did. The field Since then holds the start of the earlier taint.
	Turned time.Time

	Written        time.Time // the field Since, converted to the wall clock
	Reported       time.Time `json:"Said"`       // start recorded in the object; zero if absent
	ReportedTurned time.Time `json:"SaidTurned"` // the field Turned as recorded in the object; zero if absent
}

// ID identifies the taint on its node: key=value:NoExecute.
func (h Held) ID() string { return h.Taint.ToString() }

// Due is a pod's deadline. The zero Due means that the pod may stay.
type Due struct {
	At    time.Time
	Taint v1.Taint // the taint with the earliest deadline
	// Device is the tainted device, and Rule the DeviceTaintRule causing the taint, or "" for a
	// taint in the device's ResourceSlice. Both are empty for a taint of the pod's node.
	Device Device `json:",omitzero"`
	Rule   string `json:",omitempty"`
}

// OfDevice reports whether the taint belongs to a device.
func (d Due) OfDevice() bool { return d.Device != Device{} }

// Stays reports whether no taint evicts the pod.
func (d Due) Stays() bool { return d.Taint.Key == "" }

// IsDue reports whether the deadline is now or earlier.
func (d Due) IsDue(now time.Time) bool { return !d.Stays() && !d.At.After(now) }

// String formats the deadline for logs and tests, with the time of day in UTC.
func (d Due) String() string {
	if d.Stays() {
		return "stays"
	}
	return "due " + d.At.UTC().Format(time.TimeOnly) + " for " + d.Cause()
}

// Cause returns the taint of the deadline as key=value:effect, with its device and rule, if any.
func (d Due) Cause() string {
	text := d.Taint.ToString()
	if d.OfDevice() {
		text += " of device " + d.Device.String()
	}
	if d.Rule != "" {
		text += " by DeviceTaintRule " + d.Rule
	}
	return text
}

// equalTo reports whether two deadlines are equal.
func (d Due) equalTo(o Due) bool {
	return d.Stays() == o.Stays() && d.At.Equal(o.At) && d.Taint.MatchTaint(&o.Taint) && d.Taint.Value == o.Taint.Value &&
		d.Device == o.Device && d.Rule == o.Rule
}

// soonerOf returns the earlier deadline, or d if they are equal.
func (d Due) soonerOf(o Due) Due {
	if d.Stays() || !o.Stays() && o.At.Before(d.At) {
		return o
	}
	return d
}

// Deadline returns the time at which a pod with these tolerations, bound to its node at the given
// time, must leave because of these taints.
//
// Like upstream, it uses the first matching toleration for each taint, not the longest: without a
// toleration the pod is evicted immediately, with a toleration without seconds it is not evicted,
// and otherwise the seconds count from the addition of the taint or the binding of the pod,
// whichever was later. The result is the earliest deadline over all taints.
//
// For example, a pod that tolerates not-ready for 300 s was bound at 10:00. Its node becomes
// not-ready at 10:10, so it is due at 10:15. If the node has a second taint since 10:12 that the
// pod does not tolerate at all, it is due at 10:12.
//
// If a node turns from not-ready to unreachable, or back, the outage is still the same (see
// Held.Turned). The seconds for the second taint count from the start of the second taint. If both
// tolerations are limited, the pod also stays no longer than the larger limit, counted from the
// beginning of the outage.
func Deadline(tolerations []v1.Toleration, bound time.Time, taints []Held) Due {
	var least Due
	for _, held := range taints {
		stay, ends := toleratedFor(&held.Taint, tolerations)
		if !ends {
			continue
		}
		at := pacing.Later(held.Since, bound).Add(stay)
		if held.Turned.After(held.Since) {
			at = pacing.Later(held.Turned, bound).Add(stay)
			if before, ends := toleratedFor(oppositeTaint(&held.Taint), tolerations); ends {
				at = pacing.Earlier(at, pacing.Later(held.Since, bound).Add(max(stay, before)))
			}
		}
		if least.Stays() || at.Before(least.At) {
			least = Due{At: at, Taint: held.Taint}
		}
	}

	return least
}

// toleratedFor returns the duration for which a pod tolerates the taint. ends is false if it does
// so forever.
func toleratedFor(taint *v1.Taint, tolerations []v1.Toleration) (stay time.Duration, ends bool) {
	toleration := rules.TolerationOf(taint, tolerations)
	switch {
	case toleration == nil:
		return 0, true
	case toleration.TolerationSeconds == nil:
		return 0, false
	}
	return stayDuration(*toleration.TolerationSeconds)
}

// oppositeTaint returns unreachable for not-ready and vice versa, nil for other taints. The node
// lifecycle controller replaces one by the other while a node is unhealthy.
func oppositeTaint(taint *v1.Taint) *v1.Taint {
	switch taint.Key {
	case v1.TaintNodeNotReady:
		return &v1.Taint{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute}
	case v1.TaintNodeUnreachable:
		return &v1.Taint{Key: v1.TaintNodeNotReady, Effect: v1.TaintEffectNoExecute}
	}
	return nil
}

// stayDuration converts tolerationSeconds. Zero or less means immediately. A value beyond the range
// of a Duration (292 years) means forever; upstream lets it overflow into an immediate eviction.
func stayDuration(seconds int64) (stay time.Duration, ends bool) {
	if seconds <= 0 {
		return 0, true
	}
	if seconds > math.MaxInt64/int64(time.Second) {
		return 0, false
	}
	return time.Duration(seconds) * time.Second, true
}
