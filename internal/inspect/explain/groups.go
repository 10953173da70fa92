package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// recordEvaluation records an evaluation: the scores of the best nodes, and the rejected
// nodes by reason. own is the pod's node, if it has one. Nodes are grouped by plugin and
// reasons, as thousands of them are rejected for a handful of reasons.
func (e *explainer) recordEvaluation(evaluation *decide.Evaluation, own string) {
	e.out.Feasible, e.out.Nodes = evaluation.Feasible, len(evaluation.Nodes)
	// The evaluation was made with this profile; it names the scorers.
	profile := e.w.Profile(e.object.Spec.SchedulerName)
	e.recordScores(profile, evaluation, own)
	groups := map[string]*Group{}
	detail := &details{c: e.c, profile: profile, pod: e.pod, said: map[string]func(*cluster.Node) string{}}
	said := map[string]map[string][]string{} // the names of the nodes, by what is said of them
	for i := range evaluation.Nodes {
		v := &evaluation.Nodes[i]
		r := v.Rejection
		// Feasible nodes are counted, and the best of them listed above.
		if r == nil {
			continue
		}
		// Details such as the name of a taint are left out of the key. They are listed
		// within the group.
		key := v.Plugin + "|" + r.Code + "|" + strings.Join(r.Reasons, "|")
		g := groups[key]
		if g == nil {
			g = &Group{Plugin: v.Plugin, Code: r.Code, Reasons: r.Reasons, PreemptionHelps: !r.Unresolvable}
			groups[key], said[key] = g, map[string][]string{}
		}
		g.Count++
		g.Nodes = append(g.Nodes, v.Node.Name)
		if text := detail.detailOf(v.Node, v.Plugin); text != "" {
			said[key][text] = append(said[key][text], v.Node.Name)
		}
	}
	for _, key := range sortedKeys(groups) {
		g := groups[key]
		slices.Sort(g.Nodes)
		g.Detail = sortCommonest(said[key], g.Count)
		e.out.Groups = append(e.out.Groups, *g)
	}
	slices.SortStableFunc(e.out.Groups, func(a, b Group) int { return cmp.Compare(b.Count, a.Count) })
}

// sortCommonest lists what is said of the nodes of a group, the most frequent first, and
// of which of them it is said: what is said of one must not be read as being of another.
// Of many texts, five are listed.
func sortCommonest(said map[string][]string, nodes int) (list []string) {
	const most = 5
	for _, names := range said {
		slices.Sort(names)
	}
	// Equally frequent texts are in the order of their first nodes.
	keys := sortedKeys(said)
	slices.SortStableFunc(keys, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(said[b]), len(said[a])), cmp.Compare(said[a][0], said[b][0]))
	})
	for i, key := range keys {
		if i == most {
			return append(list, fmt.Sprintf("and %d more", len(keys)-most))
		}
		list = append(list, key+ofNodes(said[key], nodes))
	}
	return list
}

// ofNodes names a few nodes of a group, and counts many. It is empty for a group of one
// node, which is named beside it.
func ofNodes(names []string, of int) string {
	const few = 3
	switch {
	case of == 1:
		return ""
	// What is said of all nodes of a group needs no names.
	case len(names) > few || len(names) == of:
		return fmt.Sprintf(" (%d nodes)", len(names))
	}
	return " (" + strings.Join(names, ", ") + ")"
}

// nextBest is how many nodes are shown in addition to the pod's own: as many as fit side
// by side on a terminal.
const nextBest = 5

// recordScores records the scores of the best nodes, and of the pod's own wherever it is
// in the order.
func (e *explainer) recordScores(profile *plugins.Profile, evaluation *decide.Evaluation, own string) {
	var list []*decide.NodeVerdict
	for i := range evaluation.Nodes {
		if v := &evaluation.Nodes[i]; v.Rejection == nil {
			list = append(list, v)
		}
	}

	slices.SortFunc(list, func(a, b *decide.NodeVerdict) int {
		return cmp.Or(b.Compare(a), boolCompare(a.Node.Name != own, b.Node.Name != own), cmp.Compare(a.Node.Name, b.Node.Name))
	})
	details := map[string]func(*cluster.Node) string{}
	for _, scorer := range profile.Scorers {
		if d, is := scorer.Scorer.(plugins.ScoreDetailer); is {
			details[scorer.Name()] = d.ScoreDetail(e.c, e.pod)
		}
	}

	for i, v := range list {
		// The own node is listed wherever it stands.
		if i > nextBest && v.Node.Name != own {
			continue
		}
		s := Score{Node: v.Node.Name, Own: v.Node.Name == own, Total: v.Total, Scores: map[string]int64{}, Words: map[string]string{}}
		for _, score := range v.Scores {
			s.Scores[score.Plugin] = score.Score
			if detail := details[score.Plugin]; detail != nil {
				s.Words[score.Plugin] = detail(v.Node)
			}
		}
		e.out.Scores = append(e.out.Scores, s)
	}
}

// nodeReport asks every plugin about one node, if the options name one: what each says,
// the scores, the node's rank, and whether preemption on it would help.
func (e *explainer) nodeReport(profile *plugins.Profile, waiting *cluster.Pod, evaluation *decide.Evaluation) error {
	if e.options.Node == "" {
		return nil
	}
	n := e.c.Node(e.options.Node)
	list, err := judgesOf(e.c, profile, waiting)
	if err != nil {
		return err
	}

	// The scheduler's own verdict, with the first rejection only.
	v := evaluation.Verdict(n)
	report := &NodeReport{Name: n.Name, Feasible: v.Rejection == nil}
	detail := &details{c: e.c, profile: profile, pod: waiting, said: map[string]func(*cluster.Node) string{}}
	// Scores are normalised over all feasible nodes, so they are taken from the whole
	// evaluation.
	scores := map[string]int64{}
	for _, s := range v.Scores {
		scores[s.Plugin] = s.Score
	}

	for i := range list {
		// All filters are asked, although the first rejection decides.
		word := Word{Plugin: list[i].name}
		if r := list[i].rejectionOn(n); r != nil {
			word.Rejects, word.Code, word.Reasons = true, r.Code, r.Reasons
			word.Detail = detail.detailOf(n, word.Plugin)
		}
		report.Plugins = append(report.Plugins, word)
	}

	for _, scorer := range profile.Scorers {
		// Nothing is scored where one node alone is feasible.
		score, scored := scores[scorer.Name()]
		if !scored {
			continue
		}
		i := slices.IndexFunc(report.Plugins, func(w Word) bool { return w.Plugin == scorer.Name() })
		// Some plugins only score.
		if i < 0 {
			i = len(report.Plugins)
			report.Plugins = append(report.Plugins, Word{Plugin: scorer.Name()})
		}
		report.Plugins[i].Score, report.Plugins[i].Weight = &score, scorer.Weight
	}

	if report.Feasible {
		total := v.Total
		report.Total, report.Rank = &total, 1
		// Nodes of the same total share a rank.
		for i := range evaluation.Nodes {
			if o := &evaluation.Nodes[i]; o.Rejection == nil && o.Compare(v) > 0 {
				report.Rank++
			}
		}
		// Preemption is tried on this node alone.
	} else if profile.Preemption {
		preemption := decide.NewPlain(e.c, profile).Preempt(waiting, &decide.Evaluation{Nodes: []decide.NodeVerdict{*v}})
		report.Preempt = preemption.Message
		for _, victim := range preemption.Victims {
			report.Victims = append(report.Victims, victim.Namespace()+"/"+victim.Name)
		}
		if preemption.Node != nil {
			report.Preempt = "removing " + answer.Count(len(preemption.Victims), "pod") + " of lower priority makes room"
		}
	}

	e.out.Node = report
	return nil
}
