// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth

import (
	"cmp"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/response"
)

// Options holds kube-controller-manager's flags for node health, and further options of Berth.
// Rates are in nodes per second; a rate of 0 or less admits no nodes.
type Options struct {
	MonitorPeriod          time.Duration // --node-monitor-period
	MonitorGracePeriod     time.Duration // --node-monitor-grace-period
	StartupGracePeriod     time.Duration // --node-startup-grace-period
	EvictionRate           float64       // --node-eviction-rate
	SecondaryEvictionRate  float64       // --secondary-node-eviction-rate
	UnhealthyZoneThreshold float64       // --unhealthy-zone-threshold
	LargeClusterSize       int           // --large-cluster-size-threshold
	// MarkPodsAtZoneRate limits the marking of silent nodes' pods as NotReady to the rate of
	// tainting in the zone, and suspends it while every zone is down. Services then keep their
	// endpoints in a partition (kubernetes/kubernetes#105617).
	MarkPodsAtZoneRate bool
	// InFlight bounds concurrent writes, and separately concurrent reads.
	InFlight int
	// ReadsLeases requires a live read of a node's Lease before the node counts as silent, because
	// the watch may lag. Journals of earlier versions lack it.
	ReadsLeases bool `json:",omitempty"`
	// Wall converts the Core's monotonic clock to wall-clock time for written objects; nil means
	// that both clocks are the same.
	Wall pacing.Wall `json:"-"`
}

// Defaults returns kube-controller-manager's defaults.
func Defaults() Options {
	return Options{
		MonitorPeriod:          5 * time.Second,
		MonitorGracePeriod:     50 * time.Second,
		StartupGracePeriod:     60 * time.Second,
		EvictionRate:           0.1,
		SecondaryEvictionRate:  0.01,
		UnhealthyZoneThreshold: 0.55,
		LargeClusterSize:       50,
		InFlight:               16,
	}
}

// Core decides which conditions, taints and labels of nodes are written because of the nodes'
// health. It belongs to one goroutine; see Step.
//
// Invariants: at most one write of a node is in flight, based on the newest observed version; the
// node's pods may be marked concurrently. Evicting taints are added only after all nodes and Leases
// were listed once, and never while every zone is down. Silence is measured by the Core's own
// clock, from the observation of signs of life.
//
// In this example from testdata/silence.txt, a node falls silent in a healthy zone:
//
//	45 s  event NodeNotReady: Node a-1 status is now: NodeNotReady
//	      status of a-1: Ready=Unknown MemoryPressure=Unknown DiskPressure=Unknown PIDPressure=Unknown
//	      taints of a-1: node.kubernetes.io/unreachable:NoSchedule node.kubernetes.io/unreachable:NoExecute
//	      pods of a-1: Ready=False
//
// Its pods are then evicted by package eviction, after 300 s by default. If its kubelet reports
// before that, the taints are removed and the pods stay.
type Core struct {
	options Options

	nodes   map[string]*node
	leases  map[string]lease // by node, including unobserved nodes
	zones   map[string]*zone
	sorted  sorted
	dirty   []*node // nodes with possible writes, in order of discovery
	asked   map[response.Ticket]request
	marking int // number of MarkPods in asked

	suspects  []*node                   // seemingly silent nodes with unread Leases
	reading   map[response.Ticket]*node // nodes with Lease reads in flight
	releaseAt time.Time                 // earliest time at which a zone may admit a queued node; zero if unknown
	recount   bool                      // within a step: all nodes must be examined, even if no pass is due
	polled    bool                      // within a step: signs of life have just been listed (Polled)

	record  coreRecord
	actions []Action
}

// sorted holds nodes and zones by name. A slice is nil after a node or a zone was added or removed:
// a million nodes take more than a second to sort.
type sorted struct {
	nodes []*node
	zones []*zone
}

// coreRecord is the part of a Core's own state that Knowledge stores unchanged.
type coreRecord struct {
	Behind   string    `json:",omitempty"` // version of a Lease that was read, but not delivered by the watch yet; empty if the watch does not lag
	BehindAt time.Time `json:",omitzero"`  // time at which the lag was discovered

	Tickets  response.Ticket // the last ticket issued
	NodeList uint32          // number of the current list
	Listing  bool
	// Nodes are not examined before the first complete lists, because zones would look too small.
	NodesListed, LeasesListed bool
	NextPass                  time.Time // time of the next examination of all nodes
	Passes                    int       // number of examinations
	BlindSince                time.Time // start of the silence not counted yet; zero while the watches work
	AllDown                   bool      // every zone is fully disrupted: evictions are suspended
}

// request is a write in flight. A node has at most one, plus one MarkPods.
type request struct {
	node    *node
	pace    *paced // the node's pace for this kind of request
	marks   bool   // a MarkPods
	stopped bool   // StopMarking was sent
}

// lease is the observed state of a node's Lease. renewed is compared only, never used as a time,
// because it is set by the node's clock.
type lease struct {
	Renewed time.Time // as written by the node
	Version string    // resource version of the Lease
	Seen    time.Time // when the renewal was observed, by the Core's clock
}

// node is a node with its health.
type node struct {
	nodeRecord
	zone    *zone
	asked   bool // in Core.suspects, or with a Lease read in flight
	marking bool // MarkPods is in flight
}

// nodeRecord is the part of a node's state that Knowledge stores unchanged.
type nodeRecord struct {
	Node
	List   uint32
	Sign   time.Time // the last sign of life, by the Core's clock
	Silent bool      // counted as silent: no sign of life for the grace period
	Known  bool      // included in an earlier pass
	Evict  bool      // admitted to the evicting taint by the rate of its zone
	Marks  bool      // its pods must be marked NotReady
	Gone   bool

	Queued  bool // in Core.dirty
	Writing bool // a write other than MarkPods is in flight
	// Status, Spec and Pods space the writes of conditions, of taints and labels, and of pods.
	Status, Spec, Pods paced     `json:",omitzero"`
	NotYet             time.Time // earliest next write after a failure
	Later              time.Time `json:",omitzero"` // earliest time of a repeated write; zero if none is pending
}

// New returns an empty Core. Its state is built from lists and watches.
func New(options Options) *Core {
	return &Core{
		options: options,
		nodes:   map[string]*node{},
		leases:  map[string]lease{},
		zones:   map[string]*zone{},
		asked:   map[response.Ticket]request{},
		reading: map[response.Ticket]*node{},
	}
}

// Step applies an event and returns the resulting actions. now must not decrease. All nodes are
// examined in a pass every MonitorPeriod; between two passes, only nodes affected by events are
// examined.
func (c *Core) Step(now time.Time, event Event) []Action {
	c.actions = nil
	switch e := event.(type) {
	case NodeSeen:
		c.nodeSeen(now, e.Node)
	case NodeGone:
		if n := c.nodes[e.Name]; n != nil {
			c.nodeGone(n)
		}
	case NodesListing:
		c.record.NodeList++
		c.record.Listing = true
	case NodesListed:
		c.record.Listing, c.record.NodesListed = false, true
		for _, n := range c.sortedNodes() {
			if n.List != c.record.NodeList {
				c.nodeGone(n)
			}
		}
	case LeaseSeen:
		c.leaseSeen(now, e)
	case LeaseGone:
		delete(c.leases, e.Name)
	// The list contains all renewals, so the watch no longer lags. A Lease without a node may have
	// been deleted before the list.
	case LeasesListed:
		c.record.LeasesListed, c.record.Behind = true, ""
		maps.DeleteFunc(c.leases, func(name string, _ lease) bool { return c.record.NodesListed && c.nodes[name] == nil })
	case Blind:
		if c.record.BlindSince.IsZero() {
			c.record.BlindSince = now
		}
	case Polled:
		c.pollSeen(now)
	case Sighted:
		c.endBlindness(now)
	case Away:
		if c.record.BlindSince.IsZero() {
			c.forgiveSilence(e.From, now)
		}
	case Answered:
		c.routeAnswer(now, e)
	case Tick:
	}

	if due := !now.Before(c.record.NextPass); c.record.NodesListed && c.record.LeasesListed && (due || c.recount) {
		c.examineNodes(now)
		c.record.Passes++
		if due {
			c.record.NextPass = now.Add(c.options.MonitorPeriod)
		}
	}

	c.recount, c.polled = false, false
	c.releaseAll(now)
	c.sendWrites(now)
	c.readLeases()
	return c.actions
}

// Wake returns the time of the next Tick if no event arrives first: the next pass, the next token
// of a zone, or the next retry of a write.
func (c *Core) Wake(now time.Time) time.Time {
	at := pacing.Later(now, c.record.NextPass)
	if !c.record.NodesListed || !c.record.LeasesListed {
		at = now.Add(c.options.MonitorPeriod) // the lists must complete first
	}
	sooner := func(t time.Time) { at = pacing.Earlier(at, t) }
	if c.releaseAt.IsZero() {
		sooner(c.nextRelease(now))
	} else {
		sooner(c.releaseAt)
	}

	if len(c.asked) >= c.options.InFlight {
		return at // nothing is written before a response
	}
	for _, n := range c.dirty {
		if at := pacing.Later(n.NotYet, n.Later); !n.Writing && at.After(now) {
			sooner(at)
		}
	}
	return at
}

// sortedNodes returns the nodes by name, so that results do not depend on map order.
func (c *Core) sortedNodes() []*node {
	if c.sorted.nodes == nil {
		c.sorted.nodes = slices.SortedFunc(maps.Values(c.nodes), func(a, b *node) int { return cmp.Compare(a.Name, b.Name) })
	}
	return c.sorted.nodes
}

// sortedZones returns the zones by name, for the same reason.
func (c *Core) sortedZones() []*zone {
	if c.sorted.zones == nil {
		c.sorted.zones = slices.SortedFunc(maps.Values(c.zones), func(a, b *zone) int { return cmp.Compare(a.Name, b.Name) })
	}
	return c.sorted.zones
}

// addAction appends an action to the result of Step.
func (c *Core) addAction(action Action) { c.actions = append(c.actions, action) }

// effectiveStatus is the status of the node's Ready condition, or Unknown for silent nodes.
func (n *node) effectiveStatus() v1.ConditionStatus {
	if n.Silent {
		return v1.ConditionUnknown
	}
	return n.readyStatus()
}

// Passes returns the number of examinations of all nodes.
func (c *Core) Passes() int { return c.record.Passes }

// Zone is the state of a zone, for metrics and the status page.
type Zone struct {
	Name            string
	State           State
	Size, Unhealthy int     // without excluded nodes
	Rate            float64 // admissions to evicting taints per second
	Waiting         int     // nodes waiting for an evicting taint
	Evictions       int     // nodes admitted to an evicting taint
}

// Zones returns the zones by name, as of the last pass.
func (c *Core) Zones() []Zone {
	return rules.Mapped(c.sortedZones(), func(z *zone) Zone {
		return Zone{
			Name: z.Name, State: z.State, Size: z.Size, Unhealthy: z.Unhealthy,
			Rate: z.Tainting.Rate, Waiting: len(z.toTaint), Evictions: z.Evictions,
		}
	})
}
