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

// fewestForPartial has the same value as in upstream.
const fewestForPartial = 3 // minimum number of unready nodes for PartialDisruption

// zone is a failure domain: its nodes may fail together, so evicting taints are added one by one. A
// zone exists while a node has its labels; unlabelled nodes form a separate zone.
type zone struct {
	zoneRecord
	toTaint []*node // nodes waiting for an evicting taint, in this order
	toMark  []*node // nodes waiting for the marking of their pods (Options.MarkPodsAtZoneRate)
}

// zoneRecord is the part of a zone's state that Knowledge stores unchanged.
type zoneRecord struct {
	Name      string
	State     State
	Tainting  bucket
	Marking   bucket // for Options.MarkPodsAtZoneRate
	Size      int    // number of counted nodes in the last pass
	Unhealthy int
	Evictions int // nodes admitted to the taint since the start of the Core
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

// rateOf returns the number of nodes per second admitted to an evicting taint. Like upstream, a
// zone without ready nodes has the full rate. In a small, partially disrupted zone, no nodes are
// admitted. While every zone is down, updateZones overrides this with 0.
func (o *Options) rateOf(state State, size int) float64 {
	if state != PartialDisruption {
		return o.EvictionRate
	}
	if size > o.LargeClusterSize {
		return o.SecondaryEvictionRate
	}
	return 0
}

// bucket is a token bucket of size one, in virtual time. Like upstream, it admits one node
// immediately and further nodes at the rate: at 0.1 per second, ten nodes that fail together are
// tainted 10 s apart.
type bucket struct {
	Rate   float64 // tokens per second; 0 disables
	Tokens float64 // number of tokens at time last
	Last   time.Time
}

// newBucket returns a bucket with one token.
func newBucket(now time.Time, rate float64) bucket { return bucket{Rate: rate, Tokens: 1, Last: now} }

// refillTokens adds the tokens accumulated since last.
func (b *bucket) refillTokens(now time.Time) {
	if passed := now.Sub(b.Last).Seconds(); passed > 0 {
		b.Tokens = min(1, b.Tokens+passed*b.Rate)
		b.Last = now
	}
}

// almost is the number of tokens that counts as one token, because times are rounded to
// nanoseconds.
const almost = 1 - 1e-6

// takeToken takes a token and reports whether one was available.
func (b *bucket) takeToken(now time.Time) bool {
	if b.Rate <= 0 {
		return false
	}
	b.refillTokens(now)
	if b.Tokens < almost {
		return false
	}
	b.Tokens = max(0, b.Tokens-1)
	return true
}

// furthest bounds the horizon of nextToken: at a very low rate, the time to the next token does not
// fit into a Duration.
const furthest = 24 * time.Hour

// nextToken returns the time of the next token, or an earlier time to check again. It does not
// modify the bucket, so the number of calls does not matter.
func (b bucket) nextToken(now time.Time) (time.Time, bool) {
	if b.Rate <= 0 {
		return time.Time{}, false
	}
	b.refillTokens(now)
	if b.Tokens >= almost {
		return now, true
	}
	seconds := min((1-b.Tokens)/b.Rate, furthest.Seconds())
	return now.Add(time.Duration(seconds * float64(time.Second))), true
}

// setRate changes the rate. Like upstream, a full bucket keeps its token, and any other bucket
// starts empty at the new rate, so that a zone that alternates between states does not gain tokens.
func (b *bucket) setRate(now time.Time, rate float64) {
	if b.Rate == rate {
		return
	}
	empty := !b.takeToken(now)
	*b = newBucket(now, rate)
	if empty {
		b.Tokens = 0
	}
}
