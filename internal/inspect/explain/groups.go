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
	"github.com/berth-k8s/berth/internal/engine/rules"
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
		return cmp.Or(b.Compare(a), rules.FalseFirst(a.Node.Name != own, b.Node.Name != own), cmp.Compare(a.Node.Name, b.Node.Name))
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
		report.Total, report.Rank = new(v.Total), 1
		// Nodes with the same total share a rank.
		for i := range evaluation.Nodes {
			if o := &evaluation.Nodes[i]; o.Rejection == nil && o.Compare(v) > 0 {
				report.Rank++
			}
		}
		// Try preemption on this node only.
	} else if profile.Preemption {
		preemption := decide.NewPlain(e.c, profile).Preempt(waiting, &decide.Evaluation{Nodes: []decide.NodeVerdict{*v}})
		preemption.NameDevice(e.c, profile, waiting)
		report.Preempt = preemption.Message
		report.Victims = answer.Mapped(preemption.Victims, func(v *cluster.Pod) string { return v.Namespace() + "/" + v.Name() })
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

// judges holds all filters of a profile for one pod. The scheduler stops at the first filter that
// rejects a node. An explanation runs all filters, since fixing one of two faults does not make the
// node feasible.
type judges []judge

// judge is one filter's prepared state for the pod, with the filter's name.
type judge struct {
	name string
	plugins.Judge
}

// notSelected rejects nodes outside a plugin's preselection. Removing pods cannot resolve this
// rejection.
var notSelected = &plugins.Rejection{Code: "NotSelected", Unresolvable: true,
	Reasons: []string{"node(s) didn't satisfy the pod's choice of nodes"}}

// judgesOf prepares all filters of the profile for the pod. The result is valid for the current
// state of the cluster: prepare it again after a change.
func judgesOf(c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod) (judges, error) {
	var list judges
	for _, f := range profile.Filters {
		j := f.Filter(c, p)
		if j.Err != nil {
			return nil, fmt.Errorf("%s cannot judge the pod: %w", f.Name(), j.Err)
		}
		list = append(list, judge{f.Name(), j})
	}
	return list, nil
}

// rejectionOn returns the judge's verdict on a node: nil if the node is feasible. A filter may
// reject all nodes (All), select some (Only), or judge each (Node).
func (j *judge) rejectionOn(n *cluster.Node) *plugins.Rejection {
	switch {
	case j.All != nil:
		return j.All
	case j.Only != nil && !j.Only[n.Name]:
		return notSelected
	case j.Node == nil:
		return nil
	}
	return j.Node(n)
}

// verdict has all rejections of a node, in the order of the profile's filters; empty for a feasible
// node.
type verdict struct {
	node       *cluster.Node
	rejections []rejection
}

// rejection is a plugin's reason for rejecting a node.
type rejection struct {
	plugin string
	*plugins.Rejection
}

// judgeNodes runs every filter on every node, and returns the nodes sorted by name. It takes none
// of the shortcuts of a scheduling decision.
func (list judges) judgeNodes(c *cluster.Cluster) []verdict {
	all := make([]verdict, 0, c.Len())
	for _, n := range c.SortedNodes() {
		v := verdict{node: n}
		for i := range list {
			if r := list[i].rejectionOn(n); r != nil {
				v.rejections = append(v.rejections, rejection{list[i].name, r})
			}
		}
		all = append(all, v)
	}
	return all
}

// rejectedBy reports whether the plugin rejects the node, for any reason.
func (v *verdict) rejectedBy(plugin string) bool {
	return slices.ContainsFunc(v.rejections, func(r rejection) bool { return r.plugin == plugin })
}

// causeOf returns the name under which a plugin's rejection of a node counts: the plugin itself, or
// another filter of the profile that rejects the node for the same cause. own reports whether to
// try the plugin's own fixes.
//
//	cordoned node: NodeUnschedulable rejects, and TaintToleration for the taint -> one cause
func causeOf(profile *plugins.Profile, p *cluster.Pod, n *cluster.Node, plugin string) (name string, own bool) {
	s, ok := profile.Plugin(plugin).(plugins.Sharer)
	if !ok {
		return plugin, true
	}
	name, own = s.Shares(p, n)
	if !slices.ContainsFunc(profile.Filters, func(f plugins.Filter) bool { return f.Name() == name }) {
		return plugin, true
	}
	return name, own
}

// details describe rejections in terms of the objects involved, by plugin. Each plugin prepares its
// details once, on first use: most explanations need few of them, and each may scan the whole
// cluster.
type details struct {
	c       *cluster.Cluster
	profile *plugins.Profile
	pod     *cluster.Pod
	said    map[string]func(*cluster.Node) string
}

// detailOf returns a plugin's details on its rejection of a node; empty if the plugin provides
// none.
func (d *details) detailOf(n *cluster.Node, plugin string) string {
	say, asked := d.said[plugin]
	if by, ok := d.profile.Plugin(plugin).(plugins.Detailer); ok && !asked {
		say = by.Detail(d.c, d.pod)
		d.said[plugin] = say
	}
	if say == nil {
		return ""
	}
	return say(n)
}
