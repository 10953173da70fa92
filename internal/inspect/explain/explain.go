// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	helper "k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Options select the pod and the extent of the explanation. Only Namespace and Name are required.
type Options struct {
	Namespace, Name string
	// Node, if set, selects the node for the report of every plugin's verdict.
	Node string
	// Most limits the suggestions; 0 selects mostSuggestions, and a negative number disables the
	// search.
	Most int
	// Scored is the number of nodes with scores, in addition to the pod's own; 0 selects nextBest.
	Scored int
	// Budget is the remaining budget of rehearsals (see RehearsedPods), shared by several
	// explanations. If it is nil, the explanation gets a separate budget.
	Budget *int
	// Source is the origin of the world.
	Source simulate.Source
	// Decided is the live scheduler's record of the pod; nil if not requested.
	Decided *decision.Decision
}

// ErrNoPod reports a missing pod, node or pod group. Errors of this package wrap it.
var ErrNoPod = errors.New("not found")

// Of explains a pod of the world. It leaves the world unchanged, with one exception: it places pods
// from manifests, which no scheduler has tried yet, if they precede the pod in the queue, because
// the pod will find the cluster in that state.
func Of(w *simulate.World, o Options) (*Explanation, error) {
	found, ok := w.Find(o.Namespace, o.Name)
	if !ok {
		return nil, fmt.Errorf("pod %s/%s: %w%s", o.Namespace, o.Name, ErrNoPod, similarPods(w, o))
	}
	if o.Node != "" && w.Node(o.Node) == nil {
		return nil, fmt.Errorf("node %s: %w", o.Node, ErrNoPod)
	}

	// Pods stored by an API server have had their turn, so the world does not place other pods
	// ahead of them.
	if found.Pod != nil && found.Object.Spec.NodeName == "" && !simulate.Stored(found.Object) {
		w.UntilTurn(o.Namespace, o.Name)
	}
	if err := w.Err(); err != nil {
		return nil, err
	}

	e := &explainer{w: w, c: w.Cluster(), object: found.Object, pod: found.Pod, options: o}
	e.out = &Explanation{
		APIVersion: simulate.APIVersion, Kind: Kind, Source: o.Source, Nodes: w.Cluster().Len(),
		Pod: Pod{
			Namespace: o.Namespace, Name: o.Name, Node: found.Object.Spec.NodeName, NominatedNode: found.Object.Status.NominatedNodeName,
			Priority: rules.Priority(found.Object), Scheduler: found.Object.Spec.SchedulerName,
		},
	}

	if owner := metav1.GetControllerOfNoCopy(found.Object); owner != nil {
		e.out.Pod.Controller = owner.Kind + "/" + owner.Name
	}
	err := e.explainGuarded(found)
	if state := e.out.State; (state == Pending || state == Schedulable) && o.Source.IsStopped(e.out.Pod.Scheduler) {
		e.out.Summary += " No scheduler is running to place it."
	}
	// The requested node is missing from the explanation, so add the reason.
	if o.Node != "" && e.out.Node == nil && err == nil {
		e.out.Summary += fmt.Sprintf(" No plugin was asked about %s: %s.", o.Node, e.whyUnasked())
	}
	return e.out, err
}

// explainGuarded explains the pod and turns a panic into an explanation of the failure: one
// tenant's pod must not hide the answers about other pods from an operator.
func (e *explainer) explainGuarded(found simulate.Found) (err error) {
	defer func() {
		if value := recover(); value != nil {
			e.out.State = cmp.Or(e.out.State, Pending)
			e.out.Message = fmt.Sprintf("panic: %v", value)
			e.out.Summary = fmt.Sprintf("Berth failed to explain this pod (%s). Other pods are not affected; please report this bug.", e.out.Message)
		}
	}()
	return e.explainPod(found)
}

// whyUnasked returns why the plugins did not judge a node. It completes a sentence of the summary.
func (e *explainer) whyUnasked() string {
	switch e.out.State {
	case Orphaned:
		return "the pod is bound to another, which does not exist"
	// A placed pod with a profile is evaluated, so this pod lacks a profile.
	case Unserved, Placed:
		return "none of the profiles that are known serves the pod"
	}
	return "the pod is not to be scheduled"
}

// similarPods names the namespaces with a pod of that name, or returns an empty string: forgetting
// -n is the most frequent mistake.
func similarPods(w *simulate.World, o Options) string {
	var where []string
	for _, f := range w.Each() {
		if f.Object.Name == o.Name {
			where = append(where, f.Object.Namespace)
		}
	}
	if len(where) == 0 {
		return ""
	}
	return "; there is one in namespace " + strings.Join(where, ", ") + ": use -n"
}

// explainer is an explanation in progress. Its methods fill in out; each pod state has a method
// that selects the parts.
type explainer struct {
	w       *simulate.World
	c       *cluster.Cluster
	object  *v1.Pod
	pod     *cluster.Pod // nil if it has completed
	options Options
	out     *Explanation
	// gang is the pod's group if the group must be placed as a whole.
	gang *groupSearch
}

// explainPod determines the pod's state and explains it. The order matters: a completed or
// terminating pod may still have a node or a refusal, both irrelevant by then.
func (e *explainer) explainPod(found simulate.Found) error {
	out := e.out
	profile := e.w.Profile(e.object.Spec.SchedulerName)
	// Take the message from the condition, so that it works with any scheduler. Its time is the
	// last transition of the condition, rather than the last attempt.
	if c := rules.PodCondition(&e.object.Status, v1.PodScheduled); c != nil {
		out.LastDecision = &LastDecision{At: c.LastTransitionTime, Reason: c.Reason, Message: c.Message}
	}
	e.adoptDecision()
	switch {
	case rules.IsTerminal(e.object):
		out.State = Completed
		out.Summary = fmt.Sprintf("The pod has ended (%s): it takes no room and is not scheduled again.", e.object.Status.Phase)
		return nil
	case found.Refused != "":
		out.State, out.Message = Refused, found.Refused
		out.Summary = "The API server would not let the pod be created: " + found.Refused + "."
		return nil
	case e.object.DeletionTimestamp != nil:
		out.State = Terminating
		// deletionTimestamp is the time of the request plus the grace period.
		since, grace, on := e.object.DeletionTimestamp.Time, "", ""
		if seconds := e.object.DeletionGracePeriodSeconds; seconds != nil && *seconds > 0 {
			d := time.Duration(*seconds) * time.Second
			since, grace = since.Add(-d), ", with a grace period of "+answer.Duration(d)
		}
		if node := e.object.Spec.NodeName; node != "" {
			on = " on " + node
		}
		out.Summary = fmt.Sprintf("The pod has been terminating%s since %s%s%s.%s",
			on, since.UTC().Format("2006-01-02 15:04:05Z"), grace, leavingFor(e.object), e.whyStays())
		return nil
	case e.object.Spec.NodeName != "":
		return e.explainPlaced(profile)
	case profile == nil:
		out.State = Unserved
		out.Summary = fmt.Sprintf("The pod is for the scheduler %q, which this configuration does not serve; it is "+
			"pending until that scheduler places it.", e.object.Spec.SchedulerName)
		return nil
	}

	return e.explainPending(profile)
}

// leavingFor returns why a pod is being deleted, according to its condition DisruptionTarget; empty
// without that condition, as after a deletion by a user.
func leavingFor(p *v1.Pod) string {
	if c := rules.PodCondition(&p.Status, v1.DisruptionTarget); c != nil && c.Status == v1.ConditionTrue {
		return fmt.Sprintf(" (%s: %s)", c.Reason, c.Message)
	}
	return ""
}

// whyStays explains what keeps a terminating pod: a node unable to confirm its end, and finalizers.
func (e *explainer) whyStays() (text string) {
	switch node := e.object.Spec.NodeName; {
	case node == "":
	case e.w.Node(node) == nil:
		text = fmt.Sprintf(" Node %s does not exist: the pod garbage collector deletes the pod.", node)
	case e.w.HoldsPods(node):
		text = fmt.Sprintf(" It stays because node %s does not respond. If that node is shut down for good, `kubectl taint nodes %s "+
			"%s=nodeshutdown:NoExecute` lets the pod garbage collector delete its pods and detach their volumes; "+
			"so does deleting the Node object.", node, node, v1.TaintNodeOutOfService)
	case e.w.Now().After(e.object.DeletionTimestamp.Add(overdue)):
		text = fmt.Sprintf(" Its grace period is over: the kubelet of node %s has not confirmed the end of its containers.", node)
	}

	if finalizers := e.object.Finalizers; len(finalizers) > 0 {
		text += fmt.Sprintf(" The API keeps it until its finalizers are removed: %s.", strings.Join(finalizers, ", "))
	}
	return text
}

// explainPlaced explains why the pod is on its node by evaluating it as a pending pod now. The
// original decision may have been different, which the summary mentions.
func (e *explainer) explainPlaced(profile *plugins.Profile) error {
	out := e.out
	out.State = Placed
	if err := e.explainEviction(); err != nil {
		return err
	}

	node := e.object.Spec.NodeName
	if e.pod.Node == nil {
		out.State, out.verdict = Orphaned, "no node"
		// The pod's fate depends on whether it has a controller.
		then := "nothing replaces it"
		if owner := e.w.OwnerOf(e.object); owner != nil {
			then = owner.Ref() + " replaces it"
		}
		out.Summary = fmt.Sprintf("The pod is bound to node %s, which does not exist. The pod garbage collector "+
			"deletes it; %s.", node, then)
		return nil
	}

	// Only the pod's own scheduler could explain the placement.
	if profile == nil {
		out.Summary = fmt.Sprintf("The pod is on node %s. It was for the scheduler %q, which this configuration does "+
			"not serve.", node, e.object.Spec.SchedulerName)
		return nil
	}

	// The pod is removed from its node while it is judged: otherwise it would count against itself,
	// with its requests, its ports and its anti-affinity.
	object := *e.object
	object.Spec.NodeName, object.Status.NominatedNodeName = "", ""
	waiting := e.c.Pending(&object)
	trial := e.w.Trial()
	defer trial.Undo(trial.Mark())
	trial.Remove(e.pod)
	evaluation := decide.NewPlain(e.c, profile).Evaluate(waiting)
	if evaluation.Err != nil {
		return evaluation.Err
	}

	e.recordEvaluation(evaluation, node)
	if err := e.nodeReport(profile, waiting, evaluation); err != nil {
		return err
	}

	own := evaluation.Verdict(e.c.Node(node))
	best := evaluation.Best()
	holds := false
	switch {
	// Its node was relabelled, tainted or filled since, or another scheduler placed the pod.
	case own.Rejection != nil:
		out.verdict = fmt.Sprintf("%s (%s)", strings.Join(own.Rejection.Reasons, ", "), cmp.Or(own.Plugin, "node selection"))
		out.Summary = fmt.Sprintf("The pod is on node %s, where it would not be placed today: %s.", node, out.verdict)
	// With one feasible node there are no scores to report.
	case evaluation.Feasible == 1:
		holds = true
		out.Summary = fmt.Sprintf("The pod is on node %s, the only one of %d that can take it.", node, len(evaluation.Nodes))
	case own.Compare(best[0]) == 0:
		holds = true
		out.Summary = fmt.Sprintf("The pod is on node %s, which has the highest score, %d, of the %d nodes of %d that can take it%s.",
			node, own.Total, evaluation.Feasible, len(evaluation.Nodes), sharedWith(len(best)-1))
	default:
		out.verdict = "not the best node"
		out.Summary = fmt.Sprintf("The pod is on node %s with a score of %d; today %s would be chosen with %d. The "+
			"cluster has changed since it was placed, or it was bound in another way.",
			node, own.Total, best[0].Node.Name, best[0].Total)
	}

	e.noteHolds(holds)
	e.explainResize(profile)
	return nil
}

// sharedWith returns a note on the number of other nodes with the score of the pod's node.
func sharedWith(others int) string {
	switch others {
	case 0:
		return ""
	case 1:
		return "; one other has the same score, and the choice was random"
	}
	return fmt.Sprintf("; %d others have the same score, and the choice was random", others)
}

// explainResize explains a resize deferred by the kubelet: whether it fits, and otherwise whether
// preemption makes room for it. The pod must be hypothetically off its node.
func (e *explainer) explainResize(profile *plugins.Profile) {
	if !helper.IsPodResizeDeferred(e.object) {
		return
	}
	waiting := cluster.NewPod(e.c.ResizeClass(e.object), e.object.Name, e.object.UID)
	waiting.SetNominated(e.object.Spec.NodeName)
	e.out.Resize = "Its kubelet has deferred a resize of the pod" + e.resizeOutcome(profile, waiting)
	e.out.Summary += " " + e.out.Resize
}

// resizeOutcome completes the sentence about a deferred resize.
func (e *explainer) resizeOutcome(profile *plugins.Profile, waiting *cluster.Pod) string {
	if e.c.Node(waiting.Nominated).Taints.SparesPods {
		return "; the podPreemptionPolicy of the node disables preemption for it."
	}
	if e.w.Decider(profile.SchedulerName).Decide(waiting).Node != nil {
		return ", which fits now; the kubelet has yet to accept it."
	}
	e.tryPreemption(profile, waiting)
	p := e.out.Preemption
	if !p.Helps {
		return ", which does not fit, and preemption does not help: " + p.Message
	}
	return fmt.Sprintf(", which fits only without %s; a scheduler with the feature gate "+
		"InPlacePodVerticalScalingSchedulerPreemption makes room for it.", answer.Count(len(p.Victims), "other pod"))
}
