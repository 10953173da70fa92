package outside

import (
	"context"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// extenderAnswers holds the extenders' answers about one pod, so that deciding it and explaining
// the decision need one request each.
//
// An extender may take seconds, for which the goroutine that decides must not wait: all other pods
// would wait with it. In an attempt of the cycle a question therefore ends the decision with a
// plugins.Aside; another goroutine asks, and the pod is decided again with the answer at hand.
// Outside of an attempt, to explain or compare, extenders are asked and waited for. kube-scheduler
// waits in both cases.
type extenderAnswers struct {
	of map[*extended]*extenderAnswer // by extender; answersOf adds them as they are first asked
}

// extenderAnswer is one extender's answer. The goroutine that asks fills it in; the owner reads it
// once it has learned that the answer is there.
type extenderAnswer struct {
	// Each is nil until that question was answered, with a result or with an error.
	filter     *filterAnswer
	prioritize *prioritizeAnswer
	preempt    *preemptAnswer
}

// filterAnswer is what an extender answered to Filter.
type filterAnswer struct {
	asked                map[string]bool           // names of the nodes in the request
	passed               map[string]bool           // of these, the ones that pass
	failed, unresolvable extenderv1.FailedNodesMap // reasons by node; preemption cannot help the second
	err                  error
}

// prioritizeAnswer is what an extender answered to Prioritize: scores from 0 to 10, not weighted
// yet.
type prioritizeAnswer struct {
	asked  map[string]bool
	list   *extenderv1.HostPriorityList
	weight int64
	err    error
}

// preemptAnswer is what an extender answered to ProcessPreemption. left has the nodes that it still
// accepts, with the victims that it names there.
type preemptAnswer struct {
	asked map[string]bool
	left  map[string]*extenderv1.Victims
	err   error
}

// answersOf returns the place for this extender's answers about the session's pod, which is never
// nil.
func (e *extended) answersOf(y *session) *extenderAnswer {
	if y.answers.of[e] == nil {
		y.answers.of[e] = &extenderAnswer{}
	}
	return y.answers.of[e]
}

// askExtender asks the question: immediately or, in an attempt of the cycle, aside. In the second
// case its error is a plugins.Aside, and ask runs later on another goroutine: it must not read the
// session or the cluster, only what it has captured.
func (e *extended) askExtender(y *session, ask func()) error {
	if !y.aside {
		ask()
		return nil
	}
	return &plugins.Aside{Whom: "extender " + e.Name(), Answers: y.answers, Ask: func(context.Context) { ask() }}
}

// askFilter returns the extender's answer about the nodes, or an Aside if it must be asked first.
// An answer about more nodes than these serves as well: a pod that is decided again may have fewer
// candidates than before. If there is one that was not asked about, all are asked about anew.
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

// askPreempt is askFilter for preemption. An answer stands as long as it covers the nodes in
// question; the victims on them are not compared.
func (e *extended) askPreempt(y *session, victims map[string]*extenderv1.Victims) (*preemptAnswer, error) {
	pod, nodes := y.pod, y.snapshot.NodeInfos()
	asked := make(map[string]bool, len(victims))
	for name := range victims {
		asked[name] = true
	}
	kept := e.answersOf(y)
	if kept.preempt != nil && sameVictims(kept.preempt, victims) {
		return kept.preempt, nil
	}
	err := e.askExtender(y, func() {
		left, err := e.x.ProcessPreemption(pod, victims, nodes)
		kept.preempt = &preemptAnswer{asked, left, err}
	})
	return kept.preempt, err
}

// sameVictims reports whether the extender was asked about all nodes that are in question now.
func sameVictims(a *preemptAnswer, victims map[string]*extenderv1.Victims) bool {
	for name := range victims {
		if !a.asked[name] {
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

// coversAll reports whether all nodes are among those that were asked about.
func coversAll(asked map[string]bool, infos []fwk.NodeInfo) bool {
	for _, n := range infos {
		if !asked[n.Node().Name] {
			return false
		}
	}
	return true
}
