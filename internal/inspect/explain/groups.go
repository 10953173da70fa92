// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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

// recordEvaluation records an evaluation: the scores of the best nodes, and the rejected nodes by
// reason. own is the pod's node, if any. It groups nodes by plugin and reasons, because thousands
// of nodes are rejected for a handful of reasons.
func (e *explainer) recordEvaluation(evaluation *decide.Evaluation, own string) {
	e.out.Feasible, e.out.Nodes = evaluation.Feasible, len(evaluation.Nodes)
	// The evaluation was made with this profile, so the profile has its scorers.
	profile := e.w.Profile(e.object.Spec.SchedulerName)
	e.recordScores(profile, evaluation, own)
	groups := map[string]*Group{}
	detail := &details{c: e.c, profile: profile, pod: e.pod, said: map[string]func(*cluster.Node) string{}}
	said := map[string]map[string][]string{} // per group, node names by text
	for i := range evaluation.Nodes {
		v := &evaluation.Nodes[i]
		r := v.Rejection
		// Feasible nodes are only counted; the best are listed above.
		if r == nil {
			continue
		}
		// The key excludes details such as the name of a taint. They are listed within the group.
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

// sortCommonest lists the texts about the nodes of a group, the most frequent first. Each text
// names its nodes, so that a text about one node does not appear to apply to other nodes. It lists
// at most five texts.
func sortCommonest(said map[string][]string, nodes int) (list []string) {
	const most = 5
	for _, names := range said {
		slices.Sort(names)
	}
	// Order equally frequent texts by their first nodes.
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

// ofNodes names the nodes if they are few and not the whole group, and otherwise counts them. It is
// empty for a group of one node, since the group already names it.
func ofNodes(names []string, of int) string {
	const few = 3
	switch {
	case of == 1:
		return ""
	// A text about all nodes of a group needs no names.
	case len(names) > few || len(names) == of:
		return fmt.Sprintf(" (%d nodes)", len(names))
	}
	return " (" + strings.Join(names, ", ") + ")"
}

// nextBest is the default of Options.Scored: as many nodes as fit side by side on a terminal.
const nextBest = 5

// recordScores records the scores of the best nodes, and of the pod's own at any rank.
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
		// List the pod's own node at any rank.
		if i > cmp.Or(e.options.Scored, nextBest) && v.Node.Name != own {
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

// nodeReport reports every plugin's verdict on one node, if the options name one, with the scores,
// the node's rank, and whether preemption on it would help.
func (e *explainer) nodeReport(profile *plugins.Profile, waiting *cluster.Pod, evaluation *decide.Evaluation) error {
	if e.options.Node == "" {
		return nil
	}
	n := e.c.Node(e.options.Node)
	list, err := judgesOf(e.c, profile, waiting)
	if err != nil {
		return err
	}

	// The scheduler's verdict, with the first rejection only.
	v := evaluation.Verdict(n)
	report := &NodeReport{Name: n.Name, Feasible: v.Rejection == nil}
	detail := &details{c: e.c, profile: profile, pod: waiting, said: map[string]func(*cluster.Node) string{}}
	// Scores are normalised over all feasible nodes, so they must be taken from the whole
	// evaluation.
	scores := map[string]int64{}
	for _, s := range v.Scores {
		scores[s.Plugin] = s.Score
	}

	for i := range list {
		// Report all filters, although the first rejection decides.
		word := Word{Plugin: list[i].name}
		if r := list[i].rejectionOn(n); r != nil {
			word.Rejects, word.Code, word.Reasons = true, r.Code, r.Reasons
			if r.Err != nil {
				word.Reasons = []string{"cannot judge the pod: " + r.Err.Error()}
			}
			word.Detail = detail.detailOf(n, word.Plugin)
		}
		report.Plugins = append(report.Plugins, word)
	}

	for _, scorer := range profile.Scorers {
		// With a single feasible node there are no scores.
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
		// Nodes with the same total share a rank.
		for i := range evaluation.Nodes {
			if o := &evaluation.Nodes[i]; o.Rejection == nil && o.Compare(v) > 0 {
				report.Rank++
			}
		}
		// Try preemption on this node only.
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

// unknownResources returns the requested resources missing from every node, because of an absent
// device plugin or a misspelt name. No change of a single node helps.
func (e *explainer) unknownResources() (list []string) {
	for name, wanted := range e.pod.Class.Requests.Scalars {
		// CPU, memory and ephemeral storage are not scalars here: every node has them.
		if wanted > 0 && !slices.ContainsFunc(e.c.Nodes, func(n *cluster.Node) bool { return n != nil && n.Size.Scalars[name] > 0 }) {
			list = append(list, string(name))
		}
	}
	slices.Sort(list)
	return list
}

// gateText returns the reason why the pod may not be scheduled yet, and its cause if that is a
// missing ResourceClaimTemplate.
func (e *explainer) gateText(gate string) string {
	if template := e.w.MissingTemplate(e.object); template != "" {
		return gate + ", because the ResourceClaimTemplate " + template + " does not exist"
	}
	return gate
}
