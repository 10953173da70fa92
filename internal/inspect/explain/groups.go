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

// evaluated records an evaluation: the scores of the best nodes, and the rejected nodes by reason.
func (e *explainer) evaluated(evaluation *decide.Evaluation, own string) {
	e.out.Feasible, e.out.Nodes = evaluation.Feasible, len(evaluation.Nodes)
	e.scores(evaluation, own)
	groups := map[string]*Group{}
	details := map[string]map[string]int{}
	for i := range evaluation.Nodes {
		v := &evaluation.Nodes[i]
		r := v.Rejection
		if r == nil {
			continue
		}
		key := v.Plugin + "|" + r.Code + "|" + strings.Join(r.Reasons, "|")
		g := groups[key]
		if g == nil {
			g = &Group{Plugin: v.Plugin, Code: r.Code, Reasons: r.Reasons, PreemptionHelps: !r.Unresolvable}
			groups[key], details[key] = g, map[string]int{}
		}
		g.Count++
		g.Nodes = append(g.Nodes, v.Node.Name)
		if text := e.detail(v.Node, v.Plugin); text != "" {
			details[key][text]++
		}
	}
	for _, key := range sortedKeys(groups) {
		g := groups[key]
		slices.Sort(g.Nodes)
		g.Detail = commonest(details[key])
		e.out.Groups = append(e.out.Groups, *g)
	}
	slices.SortStableFunc(e.out.Groups, func(a, b Group) int { return cmp.Compare(b.Count, a.Count) })
}

func (e *explainer) detail(n *cluster.Node, plugin string) string {
	return details(e.w.Profile(e.object.Spec.SchedulerName), e.pod, n, plugin)
}

// commonest lists the details of a group with the number of nodes that have each, the most frequent
// first.
func commonest(counts map[string]int) (list []string) {
	const most = 5
	keys := sortedKeys(counts)
	slices.SortStableFunc(keys, func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
	for i, key := range keys {
		if i == most {
			return append(list, fmt.Sprintf("and %d more", len(keys)-most))
		}
		if counts[key] > 1 {
			key = fmt.Sprintf("%s (%d nodes)", key, counts[key])
		}
		list = append(list, key)
	}
	return list
}

// nextBest is how many nodes are shown in addition to the pod's own.
const nextBest = 5

func (e *explainer) scores(evaluation *decide.Evaluation, own string) {
	var list []*decide.NodeVerdict
	for i := range evaluation.Nodes {
		if v := &evaluation.Nodes[i]; v.Rejection == nil {
			list = append(list, v)
		}
	}
	slices.SortFunc(list, func(a, b *decide.NodeVerdict) int {
		return cmp.Or(cmp.Compare(b.Total, a.Total), boolCompare(a.Node.Name != own, b.Node.Name != own), cmp.Compare(a.Node.Name, b.Node.Name))
	})
	for i, v := range list {
		if i > nextBest && v.Node.Name != own {
			continue
		}
		s := Score{Node: v.Node.Name, Own: v.Node.Name == own, Total: v.Total, Scores: map[string]int64{}}
		for _, score := range v.Scores {
			s.Scores[score.Plugin] = score.Score
		}
		e.out.Scores = append(e.out.Scores, s)
	}
}

// nodeReport asks every plugin about one node.
func (e *explainer) nodeReport(profile *plugins.Profile, waiting *cluster.Pod, evaluation *decide.Evaluation) error {
	if e.options.Node == "" {
		return nil
	}
	n := e.c.Node(e.options.Node)
	list, err := judgesOf(e.c, profile, waiting)
	if err != nil {
		return err
	}
	v := evaluation.Verdict(n)
	report := &NodeReport{Name: n.Name, Feasible: v.Rejection == nil}
	scores := map[string]int64{}
	for _, s := range v.Scores {
		scores[s.Plugin] = s.Score
	}
	for i := range list {
		word := Word{Plugin: list[i].name}
		if r := list[i].on(n); r != nil {
			word.Rejects, word.Code, word.Reasons = true, r.Code, r.Reasons
			word.Detail = details(profile, waiting, n, word.Plugin)
		}
		report.Plugins = append(report.Plugins, word)
	}
	for _, scorer := range profile.Scorers {
		score, scored := scores[scorer.Name()]
		if !scored {
			continue
		}
		i := slices.IndexFunc(report.Plugins, func(w Word) bool { return w.Plugin == scorer.Name() })
		if i < 0 {
			i = len(report.Plugins)
			report.Plugins = append(report.Plugins, Word{Plugin: scorer.Name()})
		}
		report.Plugins[i].Score, report.Plugins[i].Weight = &score, scorer.Weight
	}
	if report.Feasible {
		total := v.Total
		report.Total, report.Rank = &total, 1
		for i := range evaluation.Nodes {
			if o := &evaluation.Nodes[i]; o.Rejection == nil && o.Total > v.Total {
				report.Rank++
			}
		}
	} else if profile.Preemption {
		preemption := decide.Preempt(e.c, profile, waiting, &decide.Evaluation{Nodes: []decide.NodeVerdict{*v}})
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
