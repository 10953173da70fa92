// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// explainPending explains why the pod is pending and finds helpful changes. Each step depends on
// the previous one: it evaluates all nodes, tries preemption on the rejecting nodes, and considers
// terminating pods about to make room. Only if none of these helps, it searches for changes.
func (e *explainer) explainPending(profile *plugins.Profile) error {
	out := e.out
	out.State = Pending
	// A gated pod is judged without its scheduling gates, so the explanation reports whether it
	// would fit after their removal.
	gate := e.w.Gate(e.pod)
	waiting, object := e.pod, e.object
	if gate != "" {
		out.State, out.Message = Gated, gate
		object = e.object.DeepCopy()
		object.Spec.SchedulingGates = nil
		waiting = e.c.Pending(object)
	}
	evaluation := decide.NewPlain(e.c, profile).Evaluate(waiting)
	// A plugin failed before it could judge any node.
	if evaluation.Err != nil {
		out.Summary = fmt.Sprintf("The pod cannot be judged: %v.", evaluation.Err)
		out.Message = evaluation.Err.Error()
		return nil
	}
	e.recordEvaluation(evaluation, "")
	if err := e.nodeReport(profile, waiting, evaluation); err != nil {
		return err
	}
	if out.State == Pending {
		e.reportQueue(profile, evaluation)
	}
	if evaluation.Feasible > 0 {
		e.explainSchedulable(evaluation, gate)
		return nil
	}
	after := e.tryPreemption(profile, waiting)
	// PreemptionHelps marks reasons possibly resolved by preemption. After a failed attempt it
	// would mislead.
	if p := out.Preemption; p == nil || !p.Helps {
		for i := range out.Groups { // preemption was also tried on these nodes
			out.Groups[i].PreemptionHelps = false
		}
	}
	// The same text as in kube-scheduler's event, including the note about preemption.
	out.Message = cmp.Or(gate, evaluation.Message(after))
	e.noteHolds(out.LastDecision != nil && out.LastDecision.Message == out.Message)
	if gate == "" && !out.Preemption.Helps {
		out.Leaving = e.afterLeaving(waiting)
	}
	// A change that lets a single pod run does not place its gang, so look for a gang before the
	// search.
	e.findGang()
	e.suggestChanges(profile, object, waiting)
	out.Summary = e.pendingSummary(gate)
	return nil
}

// explainSchedulable explains a pending pod with feasible nodes: the pod waits for a gate, its
// group or its turn.
func (e *explainer) explainSchedulable(evaluation *decide.Evaluation, gate string) {
	out := e.out
	best := evaluation.Best()[0].Node.Name
	if gate != "" {
		out.Summary = fmt.Sprintf("The pod may not be scheduled yet: %s. %d of %d nodes could take it, %s first.",
			e.gateText(gate), evaluation.Feasible, len(evaluation.Nodes), best)
		if len(e.object.Spec.SchedulingGates) > 0 {
			out.Suggestions = []Suggestion{e.ungateFix(best)}
		}
		return
	}

	// The scheduler has chosen a node, and binds the pod once its volumes are ready.
	if awaited := plugins.AwaitedVolumes(e.c, e.pod); awaited != "" {
		out.Queue, out.Summary = nil, fmt.Sprintf("The pod is pending for its volumes: %s.", awaited)
		return
	}
	if g := groups.NameOf(e.object); g != "" && e.withGroup(g, evaluation) {
		return
	}
	out.State = Schedulable
	out.Summary = fmt.Sprintf("The pod is pending, and can be scheduled: %d of %d nodes fit, and %s.",
		evaluation.Feasible, len(evaluation.Nodes), choiceText(evaluation))
	if n := out.Pod.NominatedNode; n != "" {
		out.Summary += fmt.Sprintf(" It is nominated to %s.", n)
	}
}

// withGroup explains a pod for which single nodes are feasible. The explanation is the outcome of
// an attempt to place its group. It returns false if that attempt would not include the pod.
func (e *explainer) withGroup(name string, evaluation *decide.Evaluation) bool {
	out, t := e.out, e.w.TryGroup(e.object.Namespace, name)
	if t == nil {
		return false
	}

	i := slices.IndexFunc(t.Pods, func(p decision.GroupPlace) bool { return p.Name == e.object.Name })
	fit, all := evaluation.Feasible, len(evaluation.Nodes)
	switch {
	case t.Message != "":
		out.Message = t.Message
		out.Summary = fmt.Sprintf("%d of %d nodes can take the pod, but it is pending with its pod group %s: %s", fit, all, name, t.Message)
		e.adviseGroup(t)
	// The attempt covered other members only.
	case i < 0:
		return false
	case t.Pods[i].Node == "":
		out.Message = t.Pods[i].Message
		out.Summary = fmt.Sprintf("%d of %d nodes can take the pod, but none can once the others of its pod group %s "+
			"are placed: %s", fit, all, name, out.Message)
	default:
		out.State = Schedulable
		out.Summary = fmt.Sprintf("The pod is pending, and can be scheduled with its pod group %s: %d of %d nodes "+
			"fit, and it would go to %s.", name, fit, all, t.Pods[i].Node)
	}

	return true
}

// adviseGroup suggests changes for the group of a pod that fits by itself, since changes of the pod
// do not help. An incomplete group, or a group about to preempt, needs no change.
func (e *explainer) adviseGroup(now *decision.GroupTrial) {
	g := e.w.Group(e.object.Namespace, groups.NameOf(e.object))
	if g == nil || now.Incomplete || len(now.Victims) > 0 {
		return
	}
	// Members already on nodes limit the possible changes.
	placed := len(slices.DeleteFunc(e.w.MembersOf(g), func(m simulate.Found) bool { return m.Object.Spec.NodeName == "" }))
	e.out.Summary, e.out.Leaving, e.out.GroupSuggestions = (&groupSearch{w: e.w, g: g, now: now}).adviseGroup(e.out.Summary, placed)
}

// findGang finds the gang that must be placed as a whole with the pod. Terminating pods count as
// help only if the gang fits once they have left. A gang that has been scheduled no longer counts
// as a gang, because replacements of its pods are placed one by one.
func (e *explainer) findGang() {
	g := e.w.Group(e.object.Namespace, groups.NameOf(e.object))
	if g == nil || g.MinCount() < 2 || g.Scheduled() {
		return
	}
	if now := e.w.TryGroup(g.Name.Namespace, g.Name.Name); now != nil && !isPlaced(now) {
		e.gang = &groupSearch{w: e.w, g: g, now: now}
		// Departures sufficient for the pod may not suffice for its gang, so evaluate the gang.
		if e.out.Leaving = nil; !now.Incomplete && len(now.Victims) == 0 {
			e.out.Leaving = e.gang.afterLeaving(e.w.MembersOf(g))
		}
	}
}

// gangLine describes the state of the pod's gang, which determines the pod's state. Another command
// explains the gang in full.
func (e *explainer) gangLine() string {
	g, now := e.gang.g, e.gang.now
	text := fmt.Sprintf("Its pod group %s needs %d pods at once", g.Name.Name, g.MinCount())
	switch {
	case now.Incomplete:
		return text + ", and is not tried yet: " + now.Message + "."
	// Preemption is in progress or imminent.
	case len(now.Victims) > 0:
		return text + fmt.Sprintf(", and can make room for them by removing %s, which needs no change.",
			answer.Count(len(now.Victims), "pod"))
	}
	return text + fmt.Sprintf(": berth explain podgroup/%s -n %s explains them together.", g.Name.Name, g.Name.Namespace)
}

// choiceText names the node that would be chosen. Among several nodes with the best score, the
// scheduler chooses randomly.
func choiceText(evaluation *decide.Evaluation) string {
	best := evaluation.Best()
	first := best[0].Node.Name
	switch others := len(best) - 1; others {
	case 0:
		return first + " would be chosen"
	case 1:
		return fmt.Sprintf("the choice is random between %s and %s, which have the same score", first, best[1].Node.Name)
	default:
		return fmt.Sprintf("the choice is random between %s and %d others with the same score", first, others)
	}
}

// ungateFix suggests removing the pod's scheduling gates. It needs no search, because the resulting
// node is known.
func (e *explainer) ungateFix(node string) Suggestion {
	e.out.where = "A gate is removed from the pod itself. Its controller may still remove it."
	change := e.ungateEdit()
	change.Command = keeperOf(e.w, e.object).changeCommand([]string{change.Kind}, change.pod)
	return Suggestion{Text: change.Text, Node: node, Size: change.size, Changes: []Change{change.Change}}
}

// ungateEdit removes the pod's scheduling gates.
func (e *explainer) ungateEdit() *edit {
	names := answer.Mapped(e.object.Spec.SchedulingGates, func(g v1.PodSchedulingGate) string { return g.Name })
	b := &bench{w: e.w, c: e.c, object: e.object, pod: e.pod}
	return b.onPod("RemoveGate", "remove the scheduling gates "+strings.Join(names, ", "), 1,
		func(p *v1.Pod) { p.Spec.SchedulingGates = nil })
}

// suggestChanges searches for changes. object and waiting are the pod without scheduling gates,
// which must be removed with each change.
func (e *explainer) suggestChanges(profile *plugins.Profile, object *v1.Pod, waiting *cluster.Pod) {
	list, err := judgesOf(e.c, profile, waiting)
	if err != nil {
		return // the evaluation has reported it
	}
	s := &search{
		fixer: &fixer{
			bench:   &bench{w: e.w, c: e.c, object: object, pod: waiting, classes: e.w.PriorityClasses()},
			profile: profile, judges: list,
		},
		verdicts: list.judgeNodes(e.c), original: e.object,
	}
	if len(e.object.Spec.SchedulingGates) > 0 {
		s.ungate = e.ungateEdit()
	}
	if e.out.Decisive = s.decisivePlugin(); e.out.Decisive != nil {
		if by, ok := profile.Plugin(e.out.Decisive.Plugin).(plugins.Briefer); ok {
			e.out.Decisive.Detail = by.Brief(e.c, waiting)
		}
	}
	if e.out.Leaving != nil {
		e.out.Preemption = nil // not needed
		return
	}
	// OfGroup makes the suggestions for a gang.
	if e.gang != nil || e.options.Most < 0 {
		return // a change for one pod does not place its gang
	}
	s.most, s.size = cmp.Or(e.options.Most, mostSuggestions), Size(e.w)
	s.budget = cmp.Or(e.options.Budget, new(max(RehearsedPods, leastRehearsals*s.size)))
	s.preempts = e.out.Preemption.Helps
	e.out.Suggestions, e.out.where = s.suggestChanges(), keeperOf(e.w, e.object).changeNote()
	e.out.Withheld = s.withheld
}

// pendingSummary summarizes why no node can take the pod, followed by the most important next fact:
// the awaited event, or the smallest change.
func (e *explainer) pendingSummary(gate string) string {
	out := e.out
	text := fmt.Sprintf("None of %d nodes can take the pod", out.Nodes)
	switch out.Nodes {
	case 0:
		text = "There is no node"
	case 1:
		text = "The only node cannot take the pod"
	}

	missing := e.unknownResources()
	out.NoNodeHas = missing
	switch {
	// A resource missing from every node is the reason, regardless of other rejections.
	case len(missing) > 0:
		text += ": no node has " + strings.Join(missing, " or ")
	case len(out.Groups) == 1:
		text += ": " + strings.Join(out.Groups[0].Reasons, ", ")
	case len(out.Groups) > 1:
		text += ": " + commonReasons(out.Groups)
	}

	text += "."
	// Terminating pods will make room, so no change is needed.
	if out.Leaving != nil {
		return text + " It " + out.Leaving.Summary() + ". Nothing needs to be done."
	}

	if gate != "" {
		text = "The pod may not be scheduled yet: " + e.gateText(gate) + ". And none of the nodes could take it."
	}
	if e.gang != nil {
		return text + " " + e.gangLine()
	}

	if p := out.Preemption; p != nil && p.Helps {
		text += fmt.Sprintf(" It can make room on %s by preempting %s, which needs no change.", p.Node, answer.Count(len(p.Victims), "pod"))
	} else if len(out.Suggestions) > 0 {
		text += " Smallest change: " + out.Suggestions[0].Text + "."
	}
	return text
}

// wakesBy describes the events after which a pod rejected by the plugin is tried again. For a
// plugin that does not describe its events, the list is empty but not nil.
func wakesBy(profile *plugins.Profile, name string) []string {
	if w, ok := profile.Plugin(name).(plugins.Waker); ok {
		return w.Wakes()
	}
	if name == groups.GangScheduling {
		return []string{"a pod joins or leaves its pod group", "its PodGroup is added or changes"}
	}
	return []string{}
}

// commonReasons lists the most frequent reasons with the number of their nodes, as in the message
// of the FailedScheduling event.
func commonReasons(groups []Group) string {
	const most = 3
	count := map[string]int{}
	for i := range groups {
		for _, reason := range groups[i].Reasons {
			count[reason] += groups[i].Count
		}
	}
	reasons := sortedKeys(count)
	slices.SortStableFunc(reasons, func(a, b string) int { return cmp.Compare(count[b], count[a]) })
	var list []string
	for i, reason := range reasons {
		if i == most {
			list = append(list, "and "+answer.Count(len(reasons)-most, "other reason"))
			break
		}
		list = append(list, fmt.Sprintf("%d %s", count[reason], reason))
	}
	return strings.Join(list, ", ")
}

// tryPreemption attempts preemption without removing pods, and returns the resulting part of the
// scheduler's message.
func (e *explainer) tryPreemption(profile *plugins.Profile, waiting *cluster.Pod) (after string) {
	if !profile.Preemption {
		e.out.Preemption = &Preemption{Message: "preemption is switched off in this profile"}
		return ""
	}
	d := e.w.Decider(waiting.Spec().SchedulerName)
	// Preempt continues from the failed attempt.
	d.Decide(waiting)
	found := d.Preempt(waiting)
	found.NameDevice(e.c, profile, waiting)
	// Keep the message even if preemption helps on no node, because it gives the reason.
	p := &Preemption{Message: found.Message}
	if found.Node != nil {
		p.Helps, p.Node, p.Violations = true, found.Node.Name, found.Violations
		p.Victims = answer.Mapped(found.Victims, podName)
	}
	e.out.Preemption = p
	return found.Text()
}

// reportQueue reports the pod's place in the queue, and the events that can help it. It uses this
// world's queue, which is an estimate for a pod of a live cluster, because back-off is unknown.
func (e *explainer) reportQueue(profile *plugins.Profile, evaluation *decide.Evaluation) {
	q := &Queue{}
	pods := e.w.Queue()
	q.Length = len(pods)
	for i, p := range pods {
		// The queue is in order: the pods before this one are ahead.
		if p.UID() == e.pod.UID() {
			q.Position = i + 1
			break
		}
		if p.Class.Priority > e.pod.Class.Priority {
			q.AheadByPriority++
		} else {
			q.AheadByAge++
		}
	}

	// A pod with a feasible node waits for its turn rather than for an event.
	if evaluation.Feasible == 0 {
		failure := evaluation.Failure()
		names := failure.Plugins
		if failure.Rejector != "" && !slices.Contains(names, failure.Rejector) {
			names = append(names, failure.Rejector)
		}
		q.Wakes = answer.Mapped(names, func(name string) Wake { return Wake{Plugin: name, Events: wakesBy(profile, name)} })
	}

	e.out.Queue = q
}
