package outside

import (
	"context"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// extenderAnswers holds the extenders' answers about one pod, so that deciding it and explaining
// the decision need one request each. In an attempt of the cycle they are asked aside and kept
// until the attempt ends; outside of one, to explain or compare, they are asked and waited for.
type extenderAnswers struct {
	of map[*extended]*extenderAnswer
}

// extenderAnswer is one extender's answer. The goroutine that asks fills it in; the owner reads it
// once it has learned that the answer is there.
type extenderAnswer struct {
	filter     *filterAnswer
	prioritize *prioritizeAnswer
	preempt    *preemptAnswer
}

type filterAnswer struct {
	asked                map[string]bool
	passed               map[string]bool
	failed, unresolvable extenderv1.FailedNodesMap
	err                  error
}

type prioritizeAnswer struct {
	asked  map[string]bool
	list   *extenderv1.HostPriorityList
	weight int64
	err    error
}

type preemptAnswer struct {
	asked map[string]bool
	left  map[string]*extenderv1.Victims
	err   error
}

// answersOf returns this extender's answers.
func (e *extended) answersOf(y *session) *extenderAnswer {
	if y.answers.of[e] == nil {
		y.answers.of[e] = &extenderAnswer{}
	}
	return y.answers.of[e]
}

// askExtender asks the question: immediately or, in an attempt of the cycle, aside.
func (e *extended) askExtender(y *session, ask func()) error {
	if !y.aside {
		ask()
		return nil
	}
	return &plugins.Aside{Whom: "extender " + e.Name(), Answers: y.answers, Ask: func(context.Context) { ask() }}
}

// askFilter returns the extender's answer about the nodes, or an Aside if it must be asked first.
func (e *extended) askFilter(y *session, infos []fwk.NodeInfo) (*filterAnswer, error) {
	pod := y.pod
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

func namesOf(infos []fwk.NodeInfo) map[string]bool {
	names := make(map[string]bool, len(infos))
	for _, n := range infos {
		names[n.Node().Name] = true
	}
	return names
}

func coversAll(asked map[string]bool, infos []fwk.NodeInfo) bool {
	for _, n := range infos {
		if !asked[n.Node().Name] {
			return false
		}
	}
	return true
}
