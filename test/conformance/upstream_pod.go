// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultpreemption"
)

// attempt is upstream's complete result for one pod, as from SchedulePod with every node evaluated.
type attempt struct {
	state fwk.CycleState
	// failed is the error that prevented a decision.
	failed error
	// all, if set, is the rejection of the pod before any node is evaluated.
	all *Verdict
	// nodes holds the verdict on every node; nil accepts the node.
	nodes    map[string]*Verdict
	feasible []fwk.NodeInfo
	scores   []fwk.NodePluginScores // scores of the feasible nodes, if there are at least two
	fit      *framework.FitError
}

// attemptPod runs the steps of a scheduling cycle: PreFilter, Filter with nominated pods on every
// node, PreScore and Score.
func (u *upstream) attemptPod(ctx context.Context, pod *v1.Pod) *attempt {
	a := u.judgeNodes(ctx, pod, u.nodes)
	if a.failed == nil && a.all == nil && len(a.feasible) > 1 {
		u.scoreNodes(ctx, a, pod)
	}
	return a
}

// judgeNodes runs the steps of a scheduling cycle up to the verdicts on the given nodes.
func (u *upstream) judgeNodes(ctx context.Context, pod *v1.Pod, nodes []fwk.NodeInfo) *attempt {
	pod = podAhead(pod)
	a := &attempt{state: framework.NewCycleState(), nodes: map[string]*Verdict{}}
	a.fit = &framework.FitError{Pod: pod, NumAllNodes: len(u.nodes)}
	diagnosis := &a.fit.Diagnosis
	diagnosis.NodeToStatus = framework.NewDefaultNodeToStatus()
	only, status, narrowing := u.framework.RunPreFilterPlugins(ctx, a.state, pod)
	if !status.IsSuccess() {
		if !status.IsRejected() {
			a.failed = status.AsError()
			return a
		}
		diagnosis.NodeToStatus.SetAbsentNodesStatus(status)
		diagnosis.PreFilterMsg = status.Message()
		a.all = verdictOf(status.Plugin(), status)
		return a
	}

	outside := fwk.NewStatus(fwk.UnschedulableAndUnresolvable, fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", sets.List(narrowing)))
	if !only.AllNodes() {
		diagnosis.NodeToStatus.SetAbsentNodesStatus(outside)
	}

	u.filterNodes(ctx, a, pod, nodes, only, outside)
	return a
}

func (u *upstream) filterNodes(ctx context.Context, a *attempt, pod *v1.Pod, nodes []fwk.NodeInfo,
	only *fwk.PreFilterResult, outside *fwk.Status) {
	for _, node := range nodes {
		name := node.Node().Name
		if !only.AllNodes() && !only.NodeNames.Has(name) {
			a.nodes[name] = verdictOf("", outside)
			continue
		}

		status := statusAhead(u.framework.RunFilterPluginsWithNominatedPods(ctx, a.state, pod, node))
		if status.IsSuccess() {
			a.feasible = append(a.feasible, node)
			a.nodes[name] = nil
			continue
		}
		if !status.IsRejected() {
			a.failed = status.AsError()
			return
		}

		a.nodes[name] = verdictOf(status.Plugin(), status)
		a.fit.Diagnosis.NodeToStatus.Set(name, status)
	}
}

func (u *upstream) scoreNodes(ctx context.Context, a *attempt, pod *v1.Pod) {
	pod = podAhead(pod)
	status := u.framework.RunPreScorePlugins(ctx, a.state, pod, a.feasible)
	if status.IsSuccess() {
		a.scores, status = u.framework.RunScorePlugins(ctx, a.state, pod, a.feasible)
	}
	if !status.IsSuccess() {
		a.failed = status.AsError()
	}
}

// bestNodes returns the names of the nodes with the highest total score, among which the scheduler
// chooses at random, and that score. A feasible nominated node is chosen without scoring.
func (a *attempt) bestNodes(pod *v1.Pod) (names []string, total int64) {
	if nominated := pod.Status.NominatedNodeName; nominated != "" {
		for _, node := range a.feasible {
			if node.Node().Name == nominated {
				return []string{nominated}, 0
			}
		}
	}

	if len(a.feasible) == 1 {
		return []string{a.feasible[0].Node().Name}, 0
	}
	total = math.MinInt64
	for i := range a.scores {
		s := &a.scores[i]
		switch {
		case s.TotalScore > total:
			names, total = []string{s.Name}, s.TotalScore
		case s.TotalScore == total:
			names = append(names, s.Name)
		}
	}

	return names, total
}

// victims is the result of preemption on one node.
type victims struct {
	node       string
	pods       []string // most important pods first
	violations int64
	// ordinal is the sort key of candidates. The scheduler picks the candidate with the lowest key,
	// at random if there are several.
	ordinal []int64
	// ambiguous is set if upstream's order of the node's pods is random.
	ambiguous bool
}

// preemptFor lists every candidate for preemption, without evicting any pod.
func (u *upstream) preemptFor(ctx context.Context, w *World, a *attempt, pod *v1.Pod) ([]victims, error) {
	plugin, ok := u.plugins[defaultpreemption.Name].(*defaultpreemption.DefaultPreemption)
	if !ok || !u.framework.HasPostFilterPlugins() {
		return nil, nil
	}
	return u.listCandidates(ctx, w, plugin, a, pod)
}

func (u *upstream) listCandidates(ctx context.Context, w *World, plugin *defaultpreemption.DefaultPreemption, a *attempt,
	pod *v1.Pod) ([]victims, error) {
	pod = podAhead(pod)
	statuses := a.fit.Diagnosis.NodeToStatus
	if eligible, _ := plugin.PodEligibleToPreemptOthers(ctx, pod, statuses.Get(pod.Status.NominatedNodeName)); !eligible {
		return nil, nil
	}
	potential, err := statuses.NodesForStatusCode(u.snapshot.NodeInfos(), fwk.Unschedulable)
	if err != nil || len(potential) == 0 {
		return nil, err
	}
	// Request one candidate more than possible, so that the search does not end early.
	candidates, _, err := plugin.Evaluator.DryRunPreemption(ctx, a.state, pod, potential, w.ahead().listBudgets(), 0, int32(len(potential)+1))
	var list []victims
	for _, c := range candidates {
		list = append(list, victimsOf(c.Name(), c.Victims()))
		list[len(list)-1].ambiguous = isAmbiguous(w, c.Name(), pod)
	}
	return list, err
}

func victimsOf(node string, v *extenderv1.Victims) victims {
	out := victims{node: node, violations: v.NumPDBViolations}
	highest, sum, earliest := corev1helpers.PodPriority(v.Pods[0]), int64(0), int64(math.MaxInt64)
	for _, p := range v.Pods {
		out.pods = append(out.pods, p.Name)
		sum += int64(corev1helpers.PodPriority(p)) + math.MaxInt32 + 1
		if corev1helpers.PodPriority(p) == highest && p.Status.StartTime != nil {
			earliest = min(earliest, p.Status.StartTime.UnixNano())
		}
	}
	out.ordinal = []int64{v.NumPDBViolations, int64(highest), sum, int64(len(v.Pods)), -earliest}
	return out
}

// isAmbiguous reports whether the node has two possible victims with the same priority and without
// a start time. Upstream takes the time of each comparison as their start time, which makes their
// order of importance random.
func isAmbiguous(w *World, node string, pod *v1.Pod) bool {
	seen := map[int32]bool{}
	for _, p := range w.Placed {
		priority := corev1helpers.PodPriority(p)
		if p.Spec.NodeName != node || p.Status.StartTime != nil || priority >= corev1helpers.PodPriority(pod) {
			continue
		}
		if seen[priority] {
			return true
		}
		seen[priority] = true
	}
	return false
}

// cheapestOf returns the candidates that may be picked.
func cheapestOf(list []victims) (best []victims) {
	for _, v := range list {
		order := -1
		if len(best) > 0 {
			order = slices.CompareFunc(v.ordinal, best[0].ordinal, cmp.Compare[int64])
		}
		switch {
		case order < 0:
			best = []victims{v}
		case order == 0:
			best = append(best, v)
		}
	}
	return best
}

// failureMessage returns the text of the FailedScheduling event. If there are candidates for
// preemption, the PostFilter plugins are not run, because they would evict pods, and the text lacks
// what they would add.
func (u *upstream) failureMessage(ctx context.Context, a *attempt, pod *v1.Pod, candidates []victims) string {
	if len(candidates) == 0 && u.framework.HasPostFilterPlugins() {
		_, status := u.framework.RunPostFilterPlugins(ctx, a.state, pod, a.fit.Diagnosis.NodeToStatus)
		a.fit.Diagnosis.PostFilterMsg = status.Message()
	}
	return a.fit.Error()
}
