package decide

import (
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Decider finds nodes for the pods of one profile, fast. It follows its cluster by the log and,
// like it, has one owner.
type Decider struct {
	c       *cluster.Cluster
	profile *plugins.Profile
	rng     *rand.Rand

	// What is known of the cluster beside the cluster itself, up to date with the log at position
	// synced.
	synced       int
	nodesVersion uint64 // grows when a node comes, goes, or is another one
	topologies   map[topologyKey]*topology
	nextTopology int32
	keys         labelKeys
	terms        terms
	placed       placed
	guests       map[int32][]*cluster.PodClass // of the pods nominated to each node, as terms counts them
	// balance is, by node, how even the requested shares of CPU and memory are: what a pod adds is
	// measured against it. It is below zero where pods are nominated to the node.
	balance []int8

	fewDomains, manyDomains, fewGroups, someGroups, manyGroups, worthRanking, worthSumming, leafSize, mostEffort int // see the constants

	// Pods of classes that differ in nothing that matters share a ranking: members of a
	// StatefulSet, pods with volumes of their own.
	rankings     map[rankingKey]*ranking
	byClass      map[int32]member
	skeletons    map[string]*skeleton // by what skeletonFor writes down
	nextSkeleton uint32
	worth        func(*cluster.Pod) string // of a pod's images; nil: they do not count
	plans        [recent]recentPlan        // by class, modulo their number
	bases        map[string]*base          // by what baseFor writes down
	effort       map[int32]int             // by class: what surveys have cost
	saidEffort   map[string]*saidEffort    // by what strangers' terms say
	clock        uint64                    // counts decisions, to tell which rankings were used last
	looked       int                       // counts nodes, groups and cells that were looked at

	// Scratch space of one decision.
	best     []*group
	seen     []bool
	asked    []int32
	again    []func() bool // of the questions that were asked last; see plugins.Judge
	copy     *cluster.Node
	standing standing // its shifts are always zero
	survey   survey
	key      []byte
	axes     []topologyAxis
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

// New returns a decider for pods of a profile in a cluster. Ties are broken at random, the same way
// for the same seed.
func New(c *cluster.Cluster, profile *plugins.Profile, seed uint64) *Decider {
	d := &Decider{
		c: c, profile: profile, rng: rand.New(rand.NewPCG(seed, 0)),
		topologies: map[topologyKey]*topology{}, rankings: map[rankingKey]*ranking{}, byClass: map[int32]member{}, skeletons: map[string]*skeleton{}, bases: map[string]*base{}, effort: map[int32]int{}, saidEffort: map[string]*saidEffort{}, worthRanking: worthRanking, worthSumming: worthRanking, leafSize: leafSize, fewDomains: fewDomains, manyDomains: manyDomains, fewGroups: fewGroups, someGroups: someGroups, manyGroups: manyGroups, mostEffort: mostEffort,
		keys: labelKeys{nodes: map[string]int{}}, guests: map[int32][]*cluster.PodClass{},
	}
	for _, s := range profile.Scorers {
		if f, is := s.Scorer.(plugins.Worthy); is {
			before := d.worth
			d.worth = func(p *cluster.Pod) string {
				if before != nil {
					return before(p) + f.Worth(c, p)
				}
				return f.Worth(c, p)
			}
		}
	}
	d.readAnew()
	return d
}

// Decide finds the best node for a pod that waits. It does not place it.
func (d *Decider) Decide(p *cluster.Pod) Decision {
	d.sync() // what a ranking is made from must be as new as the ranking
	if d.clock++; d.clock%often == 0 {
		d.tidy()
	}
	if decision, done := d.tryBase(p); done {
		return decision
	}
	beginAttempt(d.profile)
	r, pl := d.rankingFor(p)
	switch n, err := d.nominated(p, r, pl); {
	case err != nil:
		return Decision{Err: err}
	case n != nil:
		return Decision{Node: n, Feasible: 1}
	}
	switch pl.way {
	case judged:
		return d.judge(p)
	case scanned:
		return d.scan(p)
	}
	questions, ok := d.questions(p, pl)
	if !ok {
		return d.judge(p)
	}
	held, failed := r.holdBack(p, questions, false)
	defer func() {
		for _, node := range held {
			r.reassess(node)
		}
	}()
	if failed {
		return d.scan(p) // which says whose error comes first
	}
	if len(pl.asked)+len(pl.askedScores) > 0 {
		return d.chooseAmong(r, p, pl, questions)
	}
	choice := r.choose()
	if choice.node == none {
		return Decision{}
	}
	return Decision{Node: d.c.Nodes[choice.node], Total: choice.total, Feasible: choice.feasible}
}

// Evaluate is the plain way to the same answer.
func (d *Decider) Evaluate(p *cluster.Pod) *Evaluation { return Evaluate(d.c, d.profile, p) }

// nominated returns the node that the pod was nominated to if it can take the pod now: it is taken
// without a look at others. As upstream, nodes that plugins at PreFilter name do not count here.
func (d *Decider) nominated(p *cluster.Pod, r *ranking, pl *plan) (*cluster.Node, error) {
	n := d.c.Node(p.Nominated)
	if n == nil {
		return nil, nil
	}
	if pl.way == ranked {
		if questions, ok := d.questions(p, pl); ok {
			t := &trial{r: r, p: p, questions: questions}
			t.begin(n)
			if _, rejection := t.rejection(); rejection != nil {
				return nil, nil
			}
			return n, nil
		}
	}
	j := prepare(d.c, d.profile, p)
	if j.err != nil || j.all != nil {
		return nil, nil
	}
	j.anywhere = true
	if _, rejection := j.nodeWithNominated(n); rejection != nil {
		return nil, nil
	}
	rejected, err := extenderRejections(j, []*cluster.Node{n})
	if aside := (*plugins.Aside)(nil); errors.As(err, &aside) {
		return nil, err
	}
	if err != nil || rejected[n] != nil {
		return nil, nil
	}
	return n, nil
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
	j.left = &effort{d.mostEffort}
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

func (d *Decider) topology(label string, perNode bool) *topology {
	key := topologyKey{label, perNode}
	t, known := d.topologies[key]
	if !known {
		t = newTopology(d.c, label, perNode)
		t.id = d.nextTopology
		d.nextTopology++
		d.topologies[key] = t
	}
	return t
}

// rankingKey is what classes of pods share that are decided alike.
type rankingKey struct {
	needs     [2]uint64
	signature string
}

// member is what a class was last found to be ranked by.
type member struct {
	*ranking
	versions versions // what that was found from
	terms    int      // version of all terms up to which versions.terms is known to hold
}

// seesFor tells whether what comes to the cluster now is counted as it is to be for the class: the
// plan is its own, or no term has come since another class of the ranking made its plan.
func (m *member) seesFor(class *cluster.PodClass) bool {
	return m.plan.example.Class == class || m.ranking.terms == m.d.terms.version
}

// maxMembers bounds how many classes are remembered; many have one pod and never come back.
const maxMembers = 1 << 14

// rankingFor returns the plan for the pod's class and, if it is decided by one, its ranking, up to
// date.
func (d *Decider) rankingFor(p *cluster.Pod) (*ranking, *plan) {
	d.sync()
	now, m := d.versions(), d.byClass[p.Class.ID]
	if m.ranking != nil && m.terms == d.terms.version {
		now.terms = m.versions.terms
	} else {
		now.terms = d.terms.versionFor(p.Class.Labels)
	}
	if m.ranking != nil && m.versions == now && !m.dropped && m.seesFor(p.Class) {
		if m.terms != d.terms.version {
			m.terms = d.terms.version
			d.byClass[p.Class.ID] = m
		}
		m.used = d.clock
		m.catchUp()
		return m.ranking, m.plan
	}
	pl := d.newPlan(p)
	if pl.way != ranked {
		delete(d.byClass, p.Class.ID)
		return nil, pl
	}
	key := rankingKey{p.Class.Needs, d.signature(pl)}
	r, known := d.rankings[key]
	if known && r.namespaces != now.namespaces && len(pl.tallies) > 0 {
		d.drop(r) // other pods may be meant by the same words
		known = false
	}
	if known {
		// The class that the ranking was made for may have left it: a term that came later may mean
		// that one and not this one. What is counted from now on is counted for a class that has
		// its place here.
		r.plan = pl
		r.terms = d.terms.version
		r.catchUp()
	} else {
		r = newRanking(d, pl)
		r.key, r.terms = key, d.terms.version
		d.makeRoom(r)
		d.rankings[key] = r
	}
	r.namespaces, r.used = now.namespaces, d.clock
	if len(d.byClass) >= maxMembers {
		clear(d.byClass)
	}
	d.byClass[p.Class.ID] = member{r, now, d.terms.version}
	return r, pl
}

func (d *Decider) drop(r *ranking) {
	r.dropped = true
	delete(d.rankings, r.key)
}

// versions are of everything beside nodes and pods that a plan is made from.
type versions struct {
	namespaces, services, controllers, devices uint64
	images                                     uint64
	keys                                       int
	terms                                      int // that may mean the pod
}

func (d *Decider) versions() versions {
	c := d.c
	return versions{
		namespaces: c.Namespaces.Version, services: c.Services.Version,
		controllers: c.ReplicationControllers.Version + c.ReplicaSets.Version + c.StatefulSets.Version,
		devices:     c.DeviceClasses.Version, images: c.ImagesVersion, keys: d.keys.version,
	}
}
