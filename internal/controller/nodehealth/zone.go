// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth

import "time"

// State is the degree of disruption of a zone.
type State string

const (
	Initial           State = "Initial"
	Normal            State = "Normal"
	PartialDisruption State = "PartialDisruption" // enough unready nodes to suggest a partition
	FullDisruption    State = "FullDisruption"    // no ready nodes
)

// fewestForPartial is upstream's constant.
const fewestForPartial = 3 // minimum of unready nodes for a disruption

// zone is a failure domain: its nodes may fail together, so evicting taints are added one by one.
// It exists while a node has its labels; unlabelled nodes form a separate zone.
type zone struct {
	name      string
	state     State
	tainting  bucket
	marking   bucket  // for Options.MarkPodsAtZoneRate
	toTaint   []*node // nodes waiting for an evicting taint, in this order
	toMark    []*node // nodes waiting for the marking of their pods, if it is limited
	size      int     // as of the last pass, like unhealthy
	unhealthy int
	evictions int // nodes admitted to the taint since the start of the Core
}

// stateOf returns the state of a zone from its numbers of ready and unready nodes.
func (o *Options) stateOf(ready, notReady int) State {
	switch {
	case ready == 0 && notReady > 0:
		return FullDisruption
	case notReady >= fewestForPartial && float64(notReady)/float64(notReady+ready) >= o.UnhealthyZoneThreshold:
		return PartialDisruption
	}
	return Normal
}

// rateOf returns the number of nodes per second admitted to an evicting taint. A zone that is down
// entirely has the full rate, like upstream, because its pods have no node to stay on. In a small,
// partially disrupted zone evictions stop. While every zone is down, updateZones overrides this
// with 0.
func (o *Options) rateOf(state State, size int) float64 {
	if state != PartialDisruption {
		return o.EvictionRate
	}
	if size > o.LargeClusterSize {
		return o.SecondaryEvictionRate
	}
	return 0
}

// bucket is a token bucket of size one, in virtual time. Like upstream's, it admits one node
// immediately and further ones at the rate: at 0.1 per second, ten nodes failing together are
// tainted 10 s apart.
type bucket struct {
	rate   float64 // tokens per second; 0 disables
	tokens float64 // at the time last
	last   time.Time
}

// newBucket returns a bucket with one token.
func newBucket(now time.Time, rate float64) bucket { return bucket{rate: rate, tokens: 1, last: now} }

// refillTokens adds the tokens accumulated since last.
func (b *bucket) refillTokens(now time.Time) {
	if passed := now.Sub(b.last).Seconds(); passed > 0 {
		b.tokens = min(1, b.tokens+passed*b.rate)
		b.last = now
	}
}

// almost compensates for times being rounded to nanoseconds.
const almost = 1 - 1e-6

// takeToken takes a token and reports whether one was available.
func (b *bucket) takeToken(now time.Time) bool {
	if b.rate <= 0 {
		return false
	}
	b.refillTokens(now)
	if b.tokens < almost {
		return false
	}
	b.tokens = max(0, b.tokens-1)
	return true
}

// furthest bounds the horizon of nextToken: at a very low rate, the time to the next token does not
// fit into a Duration.
const furthest = 24 * time.Hour

// nextToken returns the time of the next token, or an earlier time to check again. It has no side
// effects, so its result does not depend on the number of calls.
func (b bucket) nextToken(now time.Time) (time.Time, bool) {
	if b.rate <= 0 {
		return time.Time{}, false
	}
	b.refillTokens(now)
	if b.tokens >= almost {
		return now, true
	}
	seconds := min((1-b.tokens)/b.rate, furthest.Seconds())
	return now.Add(time.Duration(seconds * float64(time.Second))), true
}

// setRate changes the rate. Like upstream, an empty or closed bucket starts empty at the new rate,
// and a full one keeps its token, so that a zone alternating between states gains no evictions.
func (b *bucket) setRate(now time.Time, rate float64) {
	if b.rate == rate {
		return
	}
	empty := !b.takeToken(now)
	*b = newBucket(now, rate)
	if empty {
		b.tokens = 0
	}
}
