package outside

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
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
	// Each is nil until such a question was answered, with a result or with an error.
	filter     *filterAnswer
	prioritize *prioritizeAnswer
	// preempt has the last few answers, newest last: an attempt may ask first about victims that
	// break no budget and then about others, and is to find both when it is decided again.
	preempt []*preemptAnswer
}

// mostPreemptAnswers is how many answers about preemption are kept: twice what one decision asks.
const mostPreemptAnswers = 4

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
	asked map[string]shownVictims // by node
	left  map[string]*extenderv1.Victims
	err   error
}

// shownVictims is what the extender was shown of a node. It is a copy: an extender may change what
// it is given.
type shownVictims struct {
	pods       []types.UID // sorted: an order that differs is no other question
	violations int64
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
// question, with the same victims, and the pods that it names are placed. With others, the victims
// that it left might be too few for the pod, or more than it needs now.
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

// shownOf returns what an extender sees of the victims.
func shownOf(v *extenderv1.Victims) shownVictims {
	shown := shownVictims{violations: v.NumPDBViolations}
	for _, pod := range v.Pods {
		shown.pods = append(shown.pods, pod.UID)
	}
	slices.Sort(shown.pods)
	return shown
}

// stands reports whether the answer is one to this question, too.
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

// coversAll reports whether all nodes are among those that were asked about.
func coversAll(asked map[string]bool, infos []fwk.NodeInfo) bool {
	for _, n := range infos {
		if !asked[n.Node().Name] {
			return false
		}
	}
	return true
}
