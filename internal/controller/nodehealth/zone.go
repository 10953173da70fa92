package nodehealth

import "time"

// State is how much of a zone is disrupted.
type State string

const (
	Initial           State = "Initial"
	Normal            State = "Normal"
	PartialDisruption State = "PartialDisruption" // enough of it is not ready to look like a partition
	FullDisruption    State = "FullDisruption"    // nothing in it is ready
)

// fewestForPartial is upstream's.
const fewestForPartial = 3 // fewer nodes that are not ready do not disrupt a zone

// zone is a failure domain: its nodes may fail together, so taints that evict are added to one
// after the other. It exists while a node has its labels; nodes without labels form a zone of their
// own.
type zone struct {
	name      string
	state     State
	tainting  bucket
	marking   bucket  // for Options.MarkPodsAtZoneRate
	toTaint   []*node // wait for a taint that evicts, in this order
	toMark    []*node // wait for their pods to be marked, if that is limited
	size      int     // as of the last pass, like the next one
	unhealthy int
	evictions int // nodes that were admitted to the taint since the Core began
}

// stateOf returns the state of a zone with this many nodes ready and not ready.
func (o *Options) stateOf(ready, notReady int) State {
	switch {
	case ready == 0 && notReady > 0:
		return FullDisruption
	case notReady >= fewestForPartial && float64(notReady)/float64(notReady+ready) >= o.UnhealthyZoneThreshold:
		return PartialDisruption
	}
	return Normal
}

// rateOf returns how many nodes per second may get a taint that evicts. A zone that is entirely
// down has the full rate, as upstream: its pods have nowhere to stay. In a small zone that is
// partially disrupted nothing is evicted. When every zone is down, updateZones overrides this with
// 0.
func (o *Options) rateOf(state State, size int) float64 {
	if state != PartialDisruption {
		return o.EvictionRate
	}
	if size > o.LargeClusterSize {
		return o.SecondaryEvictionRate
	}
	return 0
}

// bucket is a token bucket of size one, in virtual time. As upstream's, it lets one node pass at
// once and the next ones at the rate: at 0.1 per second, of ten nodes that fail together one is
// tainted every 10 s.
type bucket struct {
	rate   float64 // tokens per second, 0: never
	tokens float64 // at last
	last   time.Time
}

// newBucket returns a bucket with its token.
func newBucket(now time.Time, rate float64) bucket { return bucket{rate: rate, tokens: 1, last: now} }

// refillTokens adds what has come since last.
func (b *bucket) refillTokens(now time.Time) {
	if passed := now.Sub(b.last).Seconds(); passed > 0 {
		b.tokens = min(1, b.tokens+passed*b.rate)
		b.last = now
	}
}

// almost compensates for times being rounded to nanoseconds.
const almost = 1 - 1e-6

// takeToken takes the token, and reports whether there was one.
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

// furthest bounds how far in the future nextToken looks: a rate can be so low that the time of a
// token does not fit into a Duration.
const furthest = 24 * time.Hour

// nextToken returns when a token will be there, or a time before that when to look again. It
// changes nothing: the result must not depend on how often it is called.
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

// setRate changes the rate. As upstream's, a bucket that was empty or closed starts empty at the
// new rate, and one that had its token keeps it, so that a zone that goes back and forth gains no
// evictions by it.
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
