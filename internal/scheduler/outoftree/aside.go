// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// extenderAnswers holds the extenders' responses about one pod, so that deciding it and explaining
// the decision need one request each.
//
// An extender may take seconds, and the deciding goroutine must not wait for it: all other pods
// would wait as well. In an attempt of the cycle, a missing response therefore ends the decision
// with a plugins.PendingQuery; another goroutine sends the request, and the pod is decided again
// with the response. Outside of an attempt, for explanations and comparisons, the request is sent
// synchronously. kube-scheduler waits in both cases.
type extenderAnswers struct {
	byExtender map[*extended]*extenderAnswer // by extender; added by answersOf on first use
}

// extenderAnswer holds one extender's responses. The requesting goroutine fills it in; the
// goroutine that owns the cluster reads it after it has been notified.
type extenderAnswer struct {
	// Each field is nil until a request of its kind has completed, with a result or with an error.
	filter     *filterAnswer
	prioritize *prioritizeAnswer
	// preempt holds the last few responses, newest last. An attempt may first send victims that
	// break no budget and then other victims, and needs both responses when the pod is decided
	// again.
	preempt []*preemptAnswer
}

// mostPreemptAnswers bounds the kept responses about preemption: twice the number needed for one
// decision.
const mostPreemptAnswers = 4

// filterAnswer is an extender's response to Filter.
type filterAnswer struct {
	asked                map[string]bool           // names of the nodes in the request
	passed               map[string]bool           // the subset that passes
	failed, unresolvable extenderv1.FailedNodesMap // reasons by node; preemption cannot help unresolvable nodes
	err                  error
}

// prioritizeAnswer is an extender's response to Prioritize: scores from 0 to 10, not weighted yet.
type prioritizeAnswer struct {
	asked  map[string]bool
	list   *extenderv1.HostPriorityList
	weight int64
	err    error
}

// preemptAnswer is an extender's response to ProcessPreemption. left holds the nodes still
// accepted, with the victims named for each.
type preemptAnswer struct {
	asked map[string]shownVictims // by node
	left  map[string]*extenderv1.Victims
	err   error
}

// shownVictims holds the victims on a node as sent to the extender. It is a copy: an extender may
// change its arguments.
type shownVictims struct {
	pods       []types.UID // sorted: the order does not matter
	violations int64
}

// answersOf returns this extender's responses about the session's pod, never nil.
func (e *extended) answersOf(y *session) *extenderAnswer {
	if y.answers.byExtender[e] == nil {
		y.answers.byExtender[e] = &extenderAnswer{}
	}
	return y.answers.byExtender[e]
}

// askExtender calls ask immediately, unless the session belongs to an attempt of the cycle. In that
// case, it returns a plugins.PendingQuery as the error, and ask runs later on another goroutine.
// Hence ask must read neither the session nor the cluster, only variables captured before.
func (e *extended) askExtender(y *session, ask func()) error {
	if !y.aside {
		ask()
		return nil
	}
	return &plugins.PendingQuery{Target: "extender " + e.Name(), Answers: y.answers, Run: func(context.Context) { ask() }}
}

// askFilter returns the extender's response about the nodes, or a PendingQuery if the request must
// be sent first. A response about a superset of the nodes serves as well: a pod decided again may
// have fewer candidates than before. If the response lacks any of the nodes, the request is
// repeated for all.
func (e *extended) askFilter(y *session, infos []fwk.NodeInfo) (*filterAnswer, error) {
	pod := y.pod // captured here: ask must not read the session
	kept := e.answersOf(y)
	if kept.filter != nil && coversAll(kept.filter.asked, infos) {
		return kept.filter, nil
	}
	err := e.askExtender(y, func() {
		passed, failed, unresolvable, err := e.x.Filter(pod, infos)
		kept.filter = &filterAnswer{namesOf(infos), namesOf(passed), failed, unresolvable, err}
	})
	return kept.filter, err
}

// askPrioritize is askFilter for scores.
func (e *extended) askPrioritize(y *session, infos []fwk.NodeInfo) (*prioritizeAnswer, error) {
	pod := y.pod
	kept := e.answersOf(y)
	if kept.prioritize != nil && coversAll(kept.prioritize.asked, infos) {
		return kept.prioritize, nil
	}
	err := e.askExtender(y, func() {
		list, weight, err := e.x.Prioritize(pod, infos)
		kept.prioritize = &prioritizeAnswer{namesOf(infos), list, weight, err}
	})
	return kept.prioritize, err
}

// askPreempt is askFilter for preemption. A response is valid as long as it covers the nodes in
// question with the same victims, and the pods that it names are still placed. Otherwise its
// victims might be too few for the pod, or more than the pod needs now.
func (e *extended) askPreempt(y *session, c *cluster.Cluster, victims map[string]*extenderv1.Victims) (*preemptAnswer, error) {
	pod, nodes := y.pod, y.snapshot.NodeInfos()
	asked := make(map[string]shownVictims, len(victims))
	for name, v := range victims {
		asked[name] = shownOf(v)
	}

	kept := e.answersOf(y)
	for _, a := range slices.Backward(kept.preempt) {
		if a.stands(c, asked) {
			return a, nil
		}
	}

	var answer *preemptAnswer
	err := e.askExtender(y, func() {
		left, err := e.x.ProcessPreemption(pod, victims, nodes)
		answer = &preemptAnswer{asked, left, err}
		kept.preempt = append(kept.preempt[max(0, len(kept.preempt)-mostPreemptAnswers+1):], answer)
	})
	return answer, err
}

// shownOf returns the victims as seen by an extender.
func shownOf(v *extenderv1.Victims) shownVictims {
	pods := rules.Mapped(v.Pods, func(pod *v1.Pod) types.UID { return pod.UID })
	slices.Sort(pods)
	return shownVictims{pods, v.NumPDBViolations}
}

// stands reports whether the response is valid for this request as well.
func (a *preemptAnswer) stands(c *cluster.Cluster, question map[string]shownVictims) bool {
	for name, now := range question {
		before, ok := a.asked[name]
		if !ok || before.violations != now.violations || !slices.Equal(before.pods, now.pods) {
			return false
		}
		if left := a.left[name]; left != nil && len(placedPods(c, left.Pods)) < len(left.Pods) {
			return false
		}
	}
	return true
}

// namesOf returns the names of nodes as a set.
func namesOf(infos []fwk.NodeInfo) map[string]bool {
	names := make(map[string]bool, len(infos))
	for _, n := range infos {
		names[n.Node().Name] = true
	}
	return names
}

// coversAll reports whether the request included all these nodes.
func coversAll(asked map[string]bool, infos []fwk.NodeInfo) bool {
	return !slices.ContainsFunc(infos, func(n fwk.NodeInfo) bool { return !asked[n.Node().Name] })
}
