package decide

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Evaluation is the verdict of all plugins on a pod, for every node.
type Evaluation struct {
	// Err is why the pod could not be judged. If it is set, nothing else is.
	Err error
	// Rejector is the plugin that rejected the pod before any node was looked at, with its
	// Rejection, which all of Nodes then have as well.
	Rejector  string
	Rejection *plugins.Rejection
	// Nodes has the verdict on every node, by the node's index in the cluster.
	Nodes []NodeVerdict
	// Feasible counts the nodes that can take the pod.
	Feasible int
}

// NodeVerdict is the verdict of all plugins on a pod and a node.
type NodeVerdict struct {
	Node *cluster.Node
	// Plugin is the first to reject the node, with its Rejection; nil if the node can take the pod.
	Plugin    string
	Rejection *plugins.Rejection
	// Scores are the plugins' scores times their weights, in the order of the profile, and Total
	// their sum. Nothing is scored when only one node is feasible.
	Scores []Score
	Total  int64
	// Fine is the sum of the fine scores, which decides among nodes with the same total; see
	// plugins.Scoring.
	Fine int64
}

// Score is a plugin's normalised score times its weight.
type Score struct {
	Plugin string
	Score  int64
}

// Plain decides the plain way: it asks every plugin about every node, and remembers nothing. It is
// written to be read, and is the reference for the fast way, which has to give the same answers.
type Plain struct {
	c       *cluster.Cluster
	profile *plugins.Profile
	limits  *effort.Limits
	meter   *effort.Meter // a Decider's own, or one that nobody reads
}

// NewPlain returns the plain way to decide pods of a profile in a cluster.
func NewPlain(c *cluster.Cluster, profile *plugins.Profile) *Plain {
	limits := effort.DefaultLimits()
	return &Plain{c: c, profile: profile, limits: &limits, meter: &effort.Meter{}}
}

// Evaluate says of every node why it cannot take the pod, or what each plugin gives it.
func (pl *Plain) Evaluate(p *cluster.Pod) *Evaluation {
	pl.beginAttempt()
	return pl.evaluateInAttempt(p)
}

// Rejections returns, for each of some nodes of the cluster, the reasons for which plugins reject
// the pod there, joined; "" if the node can take it.
func (pl *Plain) Rejections(p *cluster.Pod, nodes []*cluster.Node) []string {
	pl.beginAttempt()
	j := prepareFilters(pl.c, pl.profile, p)
	list := make([]string, len(nodes))
	for i, n := range nodes {
		rejection := j.all
		switch {
		case j.err != nil:
			list[i] = j.err.Error()
			continue
		case rejection == nil:
			_, rejection = j.judgeNode(n)
		}
		if rejection != nil && rejection.Err != nil {
			list[i] = rejection.Err.Error()
		} else if rejection != nil {
			list[i] = cmp.Or(strings.Join(rejection.Reasons, ", "), rejection.Code)
		}
	}

	return list
}

// Fits reports whether a node can take a pending pod. Filters are asked about this node alone.
func (pl *Plain) Fits(p *cluster.Pod, n *cluster.Node) bool {
	pl.meter.Work += effort.CostOfDecision * effort.CostOfPod(p)
	_, rejection := fitsNow(pl.c, pl.profile, p, n)
	return rejection == nil
}

// beginAttempt tells the filters that what follows is a new attempt.
func (pl *Plain) beginAttempt() {
	for _, f := range pl.profile.Filters {
		if f, is := f.(plugins.Attempted); is {
			f.BeginAttempt()
		}
	}
}

// evaluateInAttempt is Evaluate as part of an attempt.
func (pl *Plain) evaluateInAttempt(p *cluster.Pod) *Evaluation {
	pl.meter.Work += effort.CostOfScan(pl.c, p)
	e := &Evaluation{Nodes: pl.allNodes()}
	j := prepareFilters(pl.c, pl.profile, p)
	switch {
	case j.err != nil:
		return &Evaluation{Err: j.err}
	case j.all != nil:
		e.Rejector, e.Rejection = j.rejector, j.all
		for i := range e.Nodes {
			e.Nodes[i].Plugin, e.Nodes[i].Rejection = j.rejector, j.all
		}
		return e
	}

	e.judgeNodes(j)
	if e.Err == nil && e.Feasible > 1 {
		e.scoreNodes(pl.c, pl.profile, p)
	}
	return e
}

// decide finds the best node as part of an attempt. Of a pod that plugins narrow to nodes by name,
// only these are looked at.
func (pl *Plain) decide(p *cluster.Pod, t *tie) Decision {
	j := prepareFilters(pl.c, pl.profile, p)
	j.left = effort.NewBudget(pl.limits, pl.c)
	if j.err != nil || j.all != nil {
		return Decision{Err: j.err}
	}

	e := &Evaluation{}
	if j.only == nil {
		pl.meter.Work += effort.CostOfScan(pl.c, p)
		e.Nodes = pl.allNodes()
	}
	for name := range j.only {
		if n := pl.c.Node(name); n != nil {
			e.Nodes = append(e.Nodes, NodeVerdict{Node: n})
		}
	}
	slices.SortFunc(e.Nodes, func(a, b NodeVerdict) int { return int(a.Node.Index - b.Node.Index) })

	e.judgeNodes(j)
	if e.Err == nil && e.Feasible > 1 {
		e.scoreNodes(pl.c, pl.profile, p)
	}
	return e.decisionBy(t)
}

// allNodes returns the nodes of the cluster, not judged yet, by their index.
func (pl *Plain) allNodes() (all []NodeVerdict) {
	for _, n := range pl.c.Nodes {
		if n != nil {
			all = append(all, NodeVerdict{Node: n})
		}
	}
	return all
}

// decisionBy chooses one of the best nodes.
func (e *Evaluation) decisionBy(t *tie) Decision {
	if e.Err != nil || e.Feasible == 0 {
		return Decision{Err: e.Err}
	}
	best := e.Best()
	v := best[t.draw(len(best))]
	for _, other := range best {
		if other.Node.Index == t.preferred {
			v = other
		}
	}
	return Decision{Node: v.Node, Total: v.Total, Feasible: e.Feasible}
}

// judgeNodes fills in the rejections. Nodes that pods are nominated to are judged one after the
// other, because judging them changes the cluster for a moment.
func (e *Evaluation) judgeNodes(j *judges) {
	askAll(len(e.Nodes), j.again, func(i int) {
		if v := &e.Nodes[i]; len(v.Node.Nominated) == 0 {
			v.Plugin, v.Rejection = j.judgeNode(v.Node)
		}
	})

	for i := range e.Nodes {
		v := &e.Nodes[i]
		if len(v.Node.Nominated) > 0 {
			v.Plugin, v.Rejection = j.judgeWithNominated(v.Node)
		}
		switch {
		case v.Rejection == nil:
			e.Feasible++
		case v.Rejection.Err != nil:
			err := v.Rejection.Err
			if v.Plugin != "" {
				err = &FilterError{v.Plugin, err}
			}
			*e = Evaluation{Err: err}
			return
		}
	}

	e.askExtenders(j)
}

// FilterError is the error of a filter that failed on a node.
type FilterError struct {
	Plugin string
	Err    error
}

func (e *FilterError) Error() string {
	return fmt.Sprintf("running %q filter plugin: %v", e.Plugin, e.Err)
}

func (e *FilterError) Unwrap() error { return e.Err }

// Best returns the feasible verdicts with the highest total.
func (e *Evaluation) Best() []*NodeVerdict {
	var best []*NodeVerdict
	for i := range e.Nodes {
		v := &e.Nodes[i]
		if v.Rejection != nil {
			continue
		}
		if len(best) > 0 && v.Compare(best[0]) > 0 {
			best = best[:0]
		}
		if len(best) == 0 || v.Compare(best[0]) == 0 {
			best = append(best, v)
		}
	}
	return best
}

// Compare orders verdicts on nodes that can take the pod: better ones are greater.
func (v *NodeVerdict) Compare(o *NodeVerdict) int {
	return cmp.Or(cmp.Compare(v.Total, o.Total), cmp.Compare(v.Fine, o.Fine))
}

// Verdict returns the verdict on one node, or nil.
func (e *Evaluation) Verdict(node *cluster.Node) *NodeVerdict {
	for i := range e.Nodes {
		if e.Nodes[i].Node == node {
			return &e.Nodes[i]
		}
	}
	return nil
}

// scoreNodes fills in the scores of the feasible nodes.
func (e *Evaluation) scoreNodes(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod) {
	feasible := make([]*cluster.Node, 0, e.Feasible)
	verdicts := make([]*NodeVerdict, 0, e.Feasible)
	for i := range e.Nodes {
		if v := &e.Nodes[i]; v.Rejection == nil {
			feasible, verdicts = append(feasible, v.Node), append(verdicts, v)
		}
	}

	for _, s := range profile.Scorers {
		scores, fine, err := scoresOf(s.Scorer, c, p, feasible)
		if err != nil {
			*e = Evaluation{Err: err}
			return
		}
		if scores == nil {
			continue
		}
		for i, v := range verdicts {
			v.Scores = append(v.Scores, Score{s.Scorer.Name(), scores[i] * s.Weight})
			v.Total += scores[i] * s.Weight
			if fine != nil {
				v.Fine += fine[i] * s.Weight
			}
		}
	}

	if err := addExtenderScores(c, profile, p, feasible, verdicts); err != nil {
		*e = Evaluation{Err: err}
	}
}

// judges are the judges of all filters of a profile for one pod.
//
// They hold for the cluster as it was when they were prepared: whoever places or removes pods
// prepares new ones.
type judges struct {
	c       *cluster.Cluster
	profile *plugins.Profile
	p       *cluster.Pod

	err      error
	all      *plugins.Rejection // rejects every node
	rejector string             // the plugin that does

	left *effort.Budget // for judging nodes that pods are nominated to

	only map[string]bool // the nodes that are considered; nil: all
	// anywhere: all nodes are considered, not just those in only.
	anywhere bool
	outside  *plugins.Rejection // the rejection of nodes that are not in only
	names    []string
	judges   []func(n *cluster.Node) *plugins.Rejection
	again    []func() bool // see plugins.Judge
}

// prepareFilters asks all filters for their judges, in the order of PreFilter. As upstream, it
// stops at the first plugin that rejects the pod for good, but continues after one whose rejection
// removing pods might change, and then reports the last of these.
func prepareFilters(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod) *judges {
	j := &judges{c: c, profile: profile, p: p}
	var narrowing []string
	asked := make([]judge, len(profile.Filters))
	for _, i := range profile.PreFilterOrder() {
		f := profile.Filters[i]
		judge := f.Filter(c, p)
		if judge.Err != nil {
			j.err = fmt.Errorf("running PreFilter plugin %q: %w", f.Name(), judge.Err)
			return j
		}
		if judge.All != nil {
			j.all, j.rejector = judge.All, f.Name()
			if judge.All.Unresolvable {
				return j
			}
		}
		if judge.Only != nil {
			narrowing = append(narrowing, f.Name())
			j.only = intersect(j.only, judge.Only)
			if len(j.only) == 0 {
				j.all, j.rejector = rejectEverywhere(narrowing), ""
				return j
			}
		}
		asked[i] = judge.Node
		if judge.Again != nil {
			j.again = append(j.again, judge.Again)
		}
	}

	for i, judge := range asked {
		if judge != nil {
			j.names, j.judges = append(j.names, profile.Filters[i].Name()), append(j.judges, judge)
		}
	}

	if j.only != nil {
		slices.Sort(narrowing)
		j.outside = &plugins.Rejection{
			Code: "NotSelected", Unresolvable: true, Reasons: []string{fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", narrowing)},
		}
	}
	return j
}

// intersect returns the nodes that both allow; nil allows all.
func intersect(a, b map[string]bool) map[string]bool {
	if a == nil {
		return b
	}
	both := map[string]bool{}
	for name := range a {
		if b[name] {
			both[name] = true
		}
	}
	return both
}

// rejectEverywhere is the rejection of a pod that plugins narrow to nodes of which none is left, in
// upstream's words.
func rejectEverywhere(narrowing []string) *plugins.Rejection {
	slices.Sort(narrowing)
	reason := fmt.Sprintf("node(s) didn't satisfy plugin(s) %v simultaneously", narrowing)
	if len(narrowing) == 1 {
		reason = "node(s) didn't satisfy plugin " + narrowing[0]
	}
	return &plugins.Rejection{Code: "NotSelected", Unresolvable: true, Reasons: []string{reason}}
}

// judgeNode judges one node as it is. It returns the first plugin that rejects the node, and the
// rejection.
func (j *judges) judgeNode(n *cluster.Node) (string, *plugins.Rejection) {
	if !j.anywhere && j.only != nil && !j.only[n.Name] {
		return "", j.outside
	}
	for i, judge := range j.judges {
		if r := judge(n); r != nil {
			return j.names[i], r
		}
	}
	return "", nil
}

// judgeWithNominated judges a node twice if pods of the same or a higher priority are nominated to
// it: with these pods placed there, and without them, since they may go elsewhere.
func (j *judges) judgeWithNominated(n *cluster.Node) (string, *plugins.Rejection) {
	if !j.anywhere && j.only != nil && !j.only[n.Name] {
		return "", j.outside
	}
	if guests := nominatedBefore(n, j.p); len(guests) > 0 {
		var plugin string
		var rejection *plugins.Rejection
		if !j.left.Spend(effort.CostOfPreparing(j.c, j.p)) {
			return "", &plugins.Rejection{Err: errGuestsTooLong}
		}
		j.c.Suppose(func() {
			for i, g := range guests {
				guests[i] = j.c.Visit(g, n)
			}
			with := prepareFilters(j.c, j.profile, j.p)
			if with.err != nil {
				rejection = &plugins.Rejection{Err: with.err}
				return
			}
			with.anywhere = j.anywhere
			plugin, rejection = with.judgeNode(n)
		}, func() {
			for _, g := range guests {
				j.c.Leave(g)
			}
		})
		if rejection != nil {
			return plugin, rejection
		}
	}

	return j.judgeNode(n)
}

// nominatedBefore returns the pods nominated to the node whose room p must not take.
func nominatedBefore(n *cluster.Node, p *cluster.Pod) []*cluster.Pod {
	var guests []*cluster.Pod
	for _, g := range n.Nominated {
		if g.Class.Priority >= p.Class.Priority && g.UID != p.UID {
			guests = append(guests, g)
		}
	}
	return guests
}

// Message words the failure as the FailedScheduling event does, followed by the outcome of
// preemption.
func (e *Evaluation) Message(after string) string { return e.Failure().Message(after) }

// histogram lists reasons with the number of nodes that have them, sorted as text.
func histogram(counts map[string]int) string {
	if len(counts) == 0 {
		return ""
	}
	parts := make([]string, 0, len(counts))
	for reason, n := range counts {
		parts = append(parts, fmt.Sprintf("%d %s", n, reason))
	}
	slices.Sort(parts)
	return " " + strings.Join(parts, ", ") + "."
}
