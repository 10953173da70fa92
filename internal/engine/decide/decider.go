package decide

import (
	"errors"
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Decider finds nodes for the pods of one profile, fast. It follows its cluster by the log. Like
// the cluster, it is owned by one goroutine.
type Decider struct {
	c       *cluster.Cluster
	profile *plugins.Profile
	limits  *effort.Limits
	meter   *effort.Meter
	tie     *tie
	// Prefer, if set, names the node that a pod is to get if it is among several best ones; without
	// it, and if it is not among them, chance decides.
	Prefer func(*cluster.Pod) string

	// Derived from the cluster, and up to date with its log at position synced.
	synced       int
	nodesVersion uint64 // grows when a node comes, goes or changes
	topologies   map[topologyKey]*topology
	nextTopology int32
	keys         labelKeys
	terms        terms
	placed       placed
	budgets      budgetNews
	guests       map[int32][]*cluster.PodClass // by node: of nominated pods, as terms counts them
	// balance is, by node, the score for how evenly its CPU and memory are requested: the score
	// with a pod added is compared with it. Where pods are nominated to the node, hasGuests is set,
	// which makes it negative.
	balance []int8

	hardWeight int32 // see plugins.TermCounter

	// Classes that differ in nothing that matters share a ranking: members of a StatefulSet, or
	// pods with volumes of their own.
	rankings     map[rankingKey]*ranking
	latest       [idle + 1]*ranking   // by decision, modulo their number: the one that it used
	byClass      map[int32]*member    // the ranking of each class
	mostMembers  int                  // of byClass; see cluster.Shrunk
	skeletons    map[string]*skeleton // by the key that skeletonFor makes
	nextSkeleton uint32
	worth        func(*cluster.Pod) string // see plugins.Worthy; nil: no scorer is one
	attempted    []plugins.Attempted       // the filters that are one
	learners     []plugins.Learner         // the scorers that are one
	plans        [recent]recentPlan        // by class, modulo their number
	bases        map[string]*base          // by the key that findBase makes
	effort       map[int32]classEffort     // by class
	saidEffort   map[uint64]*saidEffort    // by a hash of what strangers' terms say; see said.describe

	// Scratch space of one decision.
	best     []*group
	seen     []bool
	weights  []float64
	asked    []int32
	again    []func() bool // of the latest questions; see plugins.Judge
	copy     *cluster.Node
	standing standing // its shifts are always zero
	survey   survey
	key      []byte
	about    []byte
	axes     []topologyAxis
}

type topologyKey struct {
	label   string
	perNode bool
}

// Decision is the node for a pod, if there is one.
type Decision struct {
	// Node is nil if no node can take the pod; Diagnose says why.
	Node *cluster.Node
	// Total is the node's score; 0 if it was the only feasible node or the nominated one.
	Total int64
	// Feasible counts the nodes that can take the pod, among those that were looked at.
	Feasible int
	// Err is why the pod could not be judged.
	Err error
}

// New returns a decider for pods of a profile in a cluster. Ties are broken at random, the same way
// for the same seed.
func New(c *cluster.Cluster, profile *plugins.Profile, seed uint64) *Decider {
	limits := effort.DefaultLimits()
	d := &Decider{
		c: c, profile: profile, limits: &limits, meter: &effort.Meter{}, tie: newTie(seed),
		topologies: map[topologyKey]*topology{}, rankings: map[rankingKey]*ranking{}, byClass: map[int32]*member{},
		skeletons: map[string]*skeleton{}, bases: map[string]*base{}, effort: map[int32]classEffort{},
		saidEffort: map[uint64]*saidEffort{},
		keys:       labelKeys{nodes: map[string]int{}}, guests: map[int32][]*cluster.PodClass{},
	}

	for _, f := range profile.Filters {
		if f, is := f.(plugins.Attempted); is {
			d.attempted = append(d.attempted, f)
		}
	}

	for _, s := range profile.Scorers {
		if f, is := s.Scorer.(plugins.TermCounter); is {
			d.hardWeight, _ = f.TermWeights()
		}
		if l, is := s.Scorer.(plugins.Learner); is {
			d.learners = append(d.learners, l)
		}
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

// Decide finds the best node for a pending pod. It does not place the pod.
func (d *Decider) Decide(p *cluster.Pod) Decision {
	d.sync() // what a ranking is made from must be as new as the ranking
	d.meter.Clock++
	d.dropIdle()
	if d.meter.Clock%often == 0 {
		d.tidy()
	}
	d.meter.Work += effort.CostOfDecision
	d.tie.preferred = d.preferredNode(p)
	if d.selectsTooMuch(p) {
		return Decision{Err: errTermsTooLong}
	}
	if decision, done := d.tryBase(p); done {
		return decision
	}
	for _, f := range d.attempted {
		f.BeginAttempt()
	}
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
		return d.scan(p) // which finds the error to report: the first
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
func (d *Decider) Evaluate(p *cluster.Pod) *Evaluation {
	d.meter.Work += effort.CostOfScan(d.c, p)
	return Evaluate(d.c, d.profile, p)
}

func (d *Decider) evaluate(p *cluster.Pod) *Evaluation {
	d.meter.Work += effort.CostOfScan(d.c, p)
	return evaluate(d.c, d.profile, p)
}

// Takes reports whether a node can take a pending pod. Filters are asked about this node alone.
func (d *Decider) Takes(p *cluster.Pod, n *cluster.Node) bool {
	d.meter.Work += effort.CostOfDecision * effort.CostOfPod(p)
	j := prepare(d.c, d.profile, p)
	if j.err != nil || j.all != nil {
		return false
	}
	_, rejection := j.nodeWithNominated(n)
	return rejection == nil
}

// nominated returns the node that the pod was nominated to if it can take the pod now; no other
// node is looked at then. As upstream, the nodes that PreFilter plugins name are ignored here.
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

// judge decides a pod that is rejected as a whole, or that plugins narrow to nodes by name.
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
	d.meter.Work += effort.CostOfScan(d.c, p)
	j := prepare(d.c, d.profile, p)
	j.left = effort.NewBudget(d.limits, d.c)
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
	v := best[d.tie.draw(len(best))]
	for _, other := range best {
		if other.Node.Index == d.tie.preferred {
			v = other
		}
	}
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

// rankingKey is what the classes of one ranking have in common.
type rankingKey struct {
	needs     [2]uint64
	signature string
}

// member is the ranking that was last found for a class.
type member struct {
	*ranking
	versions versions // what it was found from
	terms    int      // version of all terms up to which versions.terms is known to hold
	asked    uint64   // when the class was last decided, by the decider's clock
}

// seesFor reports whether the ranking counts new pods the way the class needs: its plan was made
// for this class, or for another one since the last change of the terms.
func (m *member) seesFor(class *cluster.PodClass) bool {
	return m.plan.example.Class == class || m.ranking.terms == m.d.terms.version
}

// maxMembers bounds how many classes are remembered; many have one pod and never come back.
const maxMembers = 1 << 14

// rankingFor returns the plan for the pod's class and, if the class is decided from a ranking, that
// ranking, brought up to date; otherwise nil.
func (d *Decider) rankingFor(p *cluster.Pod) (*ranking, *plan) {
	d.sync()
	now, m := d.versions(p.Class), d.byClass[p.Class.ID]
	if m != nil && m.terms == d.terms.version {
		now.terms = m.versions.terms
	} else {
		now.terms = d.terms.versionFor(p.Class.Labels)
	}
	if m != nil && m.versions.images != now.images && !m.dropped && (d.worth == nil || d.worth(p) == m.plan.worth) {
		m.versions.images = now.images // none of the class's
	}
	if m != nil && m.versions == now && !m.dropped && m.seesFor(p.Class) {
		m.terms = d.terms.version
		m.asked = d.meter.Clock
		d.use(m.ranking)
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
		d.drop(r) // the same selectors may match other pods now
		known = false
	}
	if known {
		// The class that the ranking was made for may belong to another one by now: a newer term
		// may match that class and not this one. From now on the counts follow a class that belongs
		// here.
		r.plan = pl
		r.terms = d.terms.version
		if p.Class.Bulk > 0 { // the classes before it may have been smaller
			delete(d.rankings, key)
			d.makeRoom(r)
			d.rankings[key] = r
		}
		r.catchUp()
	} else {
		r = newRanking(d, pl)
		r.key, r.terms = key, d.terms.version
		d.makeRoom(r)
		d.rankings[key] = r
	}
	r.namespaces = now.namespaces
	d.use(r)
	if len(d.byClass) >= maxMembers {
		d.byClass = map[int32]*member{}
	}
	d.byClass[p.Class.ID] = &member{r, now, d.terms.version, d.meter.Clock}
	return r, pl
}
