package nodehealth

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// Options are kube-controller-manager's flags for node health, and Berth's own. Rates are in nodes
// per second; a rate of 0 or less is never.
type Options struct {
	MonitorPeriod          time.Duration // --node-monitor-period
	MonitorGracePeriod     time.Duration // --node-monitor-grace-period
	StartupGracePeriod     time.Duration // --node-startup-grace-period
	EvictionRate           float64       // --node-eviction-rate
	SecondaryEvictionRate  float64       // --secondary-node-eviction-rate
	UnhealthyZoneThreshold float64       // --unhealthy-zone-threshold
	LargeClusterSize       int           // --large-cluster-size-threshold
	// MarkPodsAtZoneRate is set if the pods of silent nodes are marked NotReady node by node, at
	// the rate at which the zone's nodes may be tainted, and not at all while every zone is down.
	// Services then keep their endpoints in a partition (kubernetes/kubernetes#105617).
	MarkPodsAtZoneRate bool
	// InFlight bounds the writes in flight, and the reads.
	InFlight int
	// ReadsLeases is set if a node's Lease is read before the node is taken for silent: the watch
	// may be behind. Journals of earlier versions do without.
	ReadsLeases bool `json:",omitempty"`
	// Wall converts a moment of the Core's own clock, which is never set, to wall-clock time, which
	// is written into objects. nil: both are the same.
	Wall func(now time.Time) time.Time `json:"-"`
}

// Defaults are kube-controller-manager's.
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

// Core decides what is written on nodes for their health. It belongs to one goroutine; see Step.
//
// Invariants: at most one write per node is in flight, and it is based on the newest version of the
// node that was seen; its pods may be marked meanwhile. No taint that evicts is added before every
// node and Lease was listed once, nor while every zone is down. Silence is measured by the Core's
// own clock, from the moments at which it saw signs of life.
//
// What becomes of a node that falls silent in a healthy zone, from testdata/silence.txt:
//
//	45 s  event NodeNotReady: Node a-1 status is now: NodeNotReady
//	      status of a-1: Ready=Unknown MemoryPressure=Unknown DiskPressure=Unknown PIDPressure=Unknown
//	      taints of a-1: node.kubernetes.io/unreachable:NoSchedule node.kubernetes.io/unreachable:NoExecute
//	      pods of a-1: Ready=False
//
// Its pods are then evicted by package eviction, 300 s later by default. If its kubelet speaks
// before that, the taints are removed and the pods stay.
type Core struct {
	options Options

	nodes   map[string]*node
	leases  map[string]lease // by node, also of nodes not seen yet
	zones   map[string]*zone
	dirty   []*node // may need a write, in the order in which that came up
	asked   map[Ticket]request
	tickets Ticket
	marking int // of asked, how many are MarkPods

	suspects []*node          // seem silent, and their Leases are still to be read
	reading  map[Ticket]*node // whose Leases are being read
	behind   string           // a Lease's version that the watch has not reached; "": none is known
	behindAt time.Time        // when that was found
	recount  bool             // within a step: the last of them has been read
	polled   bool             // within a step: all Leases have just been listed

	nodeList uint32 // number of the current list
	listing  bool
	// Before everything has been listed once, a zone would look smaller than it is.
	nodesListed, leasesListed bool
	nextPass                  time.Time // when all nodes are looked at again
	passes                    int       // how often they were
	blindSince                time.Time // zero: signs of life can be seen
	allDown                   bool      // every zone is fully disrupted: no pod is evicted
	actions                   []Action
}

// request is a write in flight. A node has at most one, and one MarkPods beside it.
type request struct {
	node    *node
	of      *paced // the node's, of the kind of the request
	marks   bool   // it is MarkPods
	stopped bool   // StopMarking followed
}

// lease is what is known of a node's Lease. renewed is compared and never read as a time: it is by
// the node's clock.
type lease struct {
	renewed time.Time // as the node wrote it
	version string    // of the lease, as the API server counts
	seen    time.Time // when that was seen, by Core's clock
}

// node is a node and its health.
type node struct {
	Node
	list   uint32
	zone   *zone
	sign   time.Time // the last sign of life, by Core's clock
	silent bool      // none for the grace period, as of the last pass
	known  bool      // a pass has seen it
	asked  bool      // it is in Core.suspects, or its Lease is being read
	evict  bool      // its zone's rate has admitted it to the taint that evicts
	mark   bool      // its pods are to be marked NotReady, now that they may be
	gone   bool

	queued  bool // in Core.dirty
	writing bool // a write is in flight, other than MarkPods
	marking bool // its pods are being marked
	// status, spec and pods space the writes of each kind.
	status, spec, pods paced
	notYet             time.Time // no write before: back-off after a failure
	later              time.Time // when a repeated write is due; zero: none is
}

// New returns an empty Core. It learns everything from lists and watches, and writes nothing before
// both have been listed.
func New(options Options) *Core {
	return &Core{
		options: options,
		nodes:   map[string]*node{},
		leases:  map[string]lease{},
		zones:   map[string]*zone{},
		asked:   map[Ticket]request{},
		reading: map[Ticket]*node{},
	}
}

// Step applies an event and returns the actions that follow from it and from the time. now must not
// go back. The nodes are examined every MonitorPeriod, and between two passes only what an event
// concerns is looked at.
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
		c.nodeList++
		c.listing = true
	case NodesListed:
		c.listing, c.nodesListed = false, true
		for _, n := range c.sortedNodes() {
			if n.list != c.nodeList {
				c.nodeGone(n)
			}
		}
	case LeaseSeen:
		c.leaseSeen(now, e)
	case LeaseGone:
		delete(c.leases, e.Name)
	// A list is as new as the API server is: the watch has caught up.
	case LeasesListed:
		c.leasesListed, c.behind = true, ""
	case Blind:
		if c.blindSince.IsZero() {
			c.blindSince = now
		}
	case Polled:
		c.pollSeen(now)
	case Sighted:
		c.endBlindness(now)
	case Away:
		if c.blindSince.IsZero() {
			c.forgiveSilence(e.From, now)
		}
	case Answered:
		c.routeAnswer(now, e)
	case Tick:
	}

	if due := !now.Before(c.nextPass); c.nodesListed && c.leasesListed && (due || c.recount) {
		c.examineNodes(now)
		c.passes++
		if due {
			c.nextPass = now.Add(c.options.MonitorPeriod)
		}
	}

	c.recount, c.polled = false, false
	c.releaseAll(now)
	c.sendWrites(now)
	c.readLeases()
	return c.actions
}

// Wake returns when the next Tick is due if no event comes first: at the next pass, or sooner if a
// zone may taint a node or a write is to be tried again.
func (c *Core) Wake(now time.Time) time.Time {
	at := laterOf(now, c.nextPass)
	if !c.nodesListed || !c.leasesListed {
		at = now.Add(c.options.MonitorPeriod) // the lists come first
	}
	sooner := func(t time.Time) {
		if t.Before(at) {
			at = t
		}
	}
	for _, z := range c.zones {
		if next, ok := z.tainting.nextToken(now); ok && len(z.toTaint) > 0 {
			sooner(next)
		}
		if next, ok := z.marking.nextToken(now); ok && len(z.toMark) > 0 {
			sooner(next)
		}
	}
	for _, n := range c.dirty {
		if at := laterOf(n.notYet, n.later); !n.writing && at.After(now) {
			sooner(at)
		}
	}
	return at
}

// sortedNodes returns the nodes by name, so that nothing depends on the order of a map.
func (c *Core) sortedNodes() []*node {
	nodes := make([]*node, 0, len(c.nodes))
	for _, n := range c.nodes {
		nodes = append(nodes, n)
	}
	slices.SortFunc(nodes, func(a, b *node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}

// sortedZones returns the zones by name, for the same reason.
func (c *Core) sortedZones() []*zone {
	zones := make([]*zone, 0, len(c.zones))
	for _, z := range c.zones {
		zones = append(zones, z)
	}
	slices.SortFunc(zones, func(a, b *zone) int { return cmp.Compare(a.name, b.name) })
	return zones
}

// wallTime returns the wall-clock time of a moment.
func (c *Core) wallTime(now time.Time) time.Time {
	if c.options.Wall == nil {
		return now
	}
	return c.options.Wall(now)
}

// addAction adds an action to those that Step returns.
func (c *Core) addAction(action Action) { c.actions = append(c.actions, action) }

// effectiveStatus is the status that counts for the node: its Ready condition, unless it is silent.
func (n *node) effectiveStatus() v1.ConditionStatus {
	if n.silent {
		return v1.ConditionUnknown
	}
	return n.readyStatus()
}

// Passes counts how often all nodes have been examined.
func (c *Core) Passes() int { return c.passes }

// Zone is the state of a zone, for metrics and the status page.
type Zone struct {
	Name            string
	State           State
	Size, Unhealthy int     // excluded nodes are not counted
	Rate            float64 // nodes per second that may get a taint that evicts
	Waiting         int     // nodes that are queued for it
	Evictions       int     // nodes that got it
}

// Zones returns the zones by name, as of the last pass.
func (c *Core) Zones() []Zone {
	var zones []Zone
	for _, z := range c.sortedZones() {
		zones = append(zones, Zone{
			Name: z.name, State: z.state, Size: z.size, Unhealthy: z.unhealthy,
			Rate: z.tainting.rate, Waiting: len(z.toTaint), Evictions: z.evictions,
		})
	}
	return zones
}
