package decide

import (
	"math/rand/v2"
	"slices"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/plugins"
)

// Decider finds nodes for the pods of one profile, fast. It follows its cluster by the log and, like it, has one owner.
type Decider struct {
	c       *cluster.Cluster
	profile *plugins.Profile
	rng     *rand.Rand

	// What is known of the cluster beside the cluster itself, up to date with the log at position synced.
	synced     int
	topologies map[topologyKey]*topology
	terms      terms

	fewDomains int // see the constant

	rankings map[int32]*ranking // by class
	clock    uint64             // counts decisions, to tell which rankings were used last

	// Scratch space of one decision.
	best     []*group
	seen     []bool
	standing standing // its shifts are always zero
}

type topologyKey struct {
	label   string
	perNode bool
}

// Decision is a node for a pod, or that there is none.
type Decision struct {
	// Node is nil if no node can take the pod; Diagnose says why.
	Node *cluster.Node
	// Total is the node's score; 0 where it was the only one, or was nominated.
	Total int64
	// Feasible counts the nodes that can take the pod, as far as they were looked at.
	Feasible int
	// Err: the pod cannot be judged.
	Err error
}

// New returns a decider for pods of a profile in a cluster. Ties are broken at random, the same way for the same seed.
func New(c *cluster.Cluster, profile *plugins.Profile, seed uint64) *Decider {
	d := &Decider{
		c: c, profile: profile, rng: rand.New(rand.NewPCG(seed, 0)),
		topologies: map[topologyKey]*topology{}, rankings: map[int32]*ranking{}, fewDomains: fewDomains, terms: terms{known: map[[2]uint64]bool{}},
	}
	d.readAnew()
	return d
}

// Decide finds the best node for a pod that waits. It does not place it.
func (d *Decider) Decide(p *cluster.Pod) Decision {
	d.sync()
	if p.Nominated != "" {
		if n := d.nominated(p); n != nil {
			return Decision{Node: n, Feasible: 1}
		}
	}
	r, pl := d.rankingFor(p)
	switch pl.way {
	case judged:
		return d.judge(p)
	case scanned:
		return d.scan(p)
	}
	held := r.holdBack(p, false)
	choice := r.choose()
	for _, node := range held {
		r.reassess(node)
	}
	if choice.node == none {
		return Decision{}
	}
	return Decision{Node: d.c.Nodes[choice.node], Total: choice.total, Feasible: choice.feasible}
}

// Evaluate is the plain way to the same answer.
func (d *Decider) Evaluate(p *cluster.Pod) *Evaluation { return Evaluate(d.c, d.profile, p) }

// nominated returns the node that the pod was nominated to if it can take the pod now: it is taken without a look at others.
func (d *Decider) nominated(p *cluster.Pod) *cluster.Node {
	n := d.c.Node(p.Nominated)
	if n == nil {
		return nil
	}
	j := prepare(d.c, d.profile, p)
	if j.err != nil || j.all != nil {
		return nil
	}
	if _, rejection := j.nodeWithNominated(n); rejection != nil {
		return nil
	}
	return n
}

// judge decides a pod that is rejected as a whole, or whose nodes are named.
func (d *Decider) judge(p *cluster.Pod) Decision {
	j := prepare(d.c, d.profile, p)
	if j.err != nil || j.all != nil {
		return Decision{Err: j.err}
	}
	if j.only == nil {
		return d.scan(p)
	}
	e := &Evaluation{}
	for name := range j.only {
		if n := d.c.Node(name); n != nil {
			e.Nodes = append(e.Nodes, NodeVerdict{Node: n})
		}
	}
	slices.SortFunc(e.Nodes, func(a, b NodeVerdict) int { return int(a.Node.Index - b.Node.Index) })
	e.judgeNodes(j)
	return d.pickFrom(e, p)
}

// scan decides the plain way.
func (d *Decider) scan(p *cluster.Pod) Decision {
	e := &Evaluation{}
	for _, n := range d.c.Nodes {
		if n != nil {
			e.Nodes = append(e.Nodes, NodeVerdict{Node: n})
		}
	}
	j := prepare(d.c, d.profile, p)
	if j.err != nil || j.all != nil {
		return Decision{Err: j.err}
	}
	e.judgeNodes(j)
	return d.pickFrom(e, p)
}

func (d *Decider) pickFrom(e *Evaluation, p *cluster.Pod) Decision {
	if e.Err == nil && e.Feasible > 1 {
		e.score(d.c, d.profile, p)
	}
	if e.Err != nil || e.Feasible == 0 {
		return Decision{Err: e.Err}
	}
	best := e.Best()
	v := best[d.rng.IntN(len(best))]
	return Decision{Node: v.Node, Total: v.Total, Feasible: e.Feasible}
}

// sync follows the log for what all rankings share.
func (d *Decider) sync() {
	changes, known := d.c.Log.Since(d.synced)
	if !known {
		d.readAnew()
		return
	}
	for i := range changes {
		switch change := &changes[i]; change.Kind {
		case cluster.NodeChanged:
			for _, t := range d.topologies {
				t.update(d.c, change.Node)
			}
		case cluster.PodAdded:
			d.terms.add(change.Class)
		case cluster.Nomination: // in case they arrive
			if n := d.c.Nodes[change.Node]; n != nil {
				d.addTerms(n.Nominated)
			}
		}
	}
	d.synced = d.c.Log.Len()
}

func (d *Decider) readAnew() {
	d.synced = d.c.Log.Len()
	for i, n := range d.c.Nodes {
		for _, t := range d.topologies {
			t.update(d.c, int32(i))
		}
		if n == nil {
			continue
		}
		d.addTerms(n.Pods)
		d.addTerms(n.Nominated)
	}
}

func (d *Decider) addTerms(pods []*cluster.Pod) {
	for _, p := range pods {
		d.terms.add(p.Class)
	}
}

func (d *Decider) topology(label string, perNode bool) *topology {
	key := topologyKey{label, perNode}
	t, known := d.topologies[key]
	if !known {
		t = newTopology(d.c, label, perNode)
		d.topologies[key] = t
	}
	return t
}

// rankingFor returns the plan for the pod's class and, if it is decided by one, its ranking, up to date.
func (d *Decider) rankingFor(p *cluster.Pod) (*ranking, *plan) {
	d.clock++
	versions := d.versions()
	if r, known := d.rankings[p.Class.ID]; known {
		if r.versions == versions || r.plan.still(d, p, &versions, r) {
			r.used = d.clock
			r.catchUp()
			return r, r.plan
		}
		delete(d.rankings, p.Class.ID)
	}
	pl := d.newPlan(p)
	if pl.way != ranked {
		return nil, pl
	}
	r := newRanking(d, pl)
	r.versions, r.used = versions, d.clock
	d.makeRoom(r)
	d.rankings[p.Class.ID] = r
	return r, pl
}

// versions are of everything beside nodes and pods that a plan is made from.
type versions struct {
	namespaces, services, controllers, devices uint64
	images                                     uint64
	terms                                      int
}

func (d *Decider) versions() versions {
	c := d.c
	return versions{
		namespaces: c.Namespaces.Version, services: c.Services.Version,
		controllers: c.ReplicationControllers.Version + c.ReplicaSets.Version + c.StatefulSets.Version,
		devices:     c.DeviceClasses.Version, images: c.ImagesVersion, terms: d.terms.version,
	}
}

// still tells whether a plan that was made from other versions is what would be made now, and if so takes note of these.
func (pl *plan) still(d *Decider, p *cluster.Pod, now *versions, r *ranking) bool {
	fresh := d.newPlan(p)
	if fresh.way != ranked || fresh.signature() != pl.signature() {
		return false
	}
	if r.versions.namespaces != now.namespaces && len(pl.tallies) > 0 {
		return false // other pods may be meant by the same words
	}
	r.versions = *now
	return true
}

// bytesPerNode is what rankings may take together, for each node of the cluster, and leastBytes what they may take at least:
// enough for the rankings of 500 plain classes on 100,000 nodes.
const (
	bytesPerNode = 512
	leastBytes   = 128 << 20
)

// makeRoom drops the rankings that were used least recently until a new one fits.
func (d *Decider) makeRoom(r *ranking) {
	limit, total := max(leastBytes, bytesPerNode*len(d.c.Nodes)), r.bytes()
	for _, other := range d.rankings {
		total += other.bytes()
	}
	for total > limit && len(d.rankings) > 0 {
		var oldest int32
		least := d.clock + 1
		for id, other := range d.rankings {
			if other.used < least {
				oldest, least = id, other.used
			}
		}
		total -= d.rankings[oldest].bytes()
		delete(d.rankings, oldest)
	}
}
