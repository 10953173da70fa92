package cycle

import (
	"errors"

	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// mostAside limits how many pods wait for answers to questions asked aside. Pods beyond it back
// off: each question holds its nodes in memory, and an extender that slow should not be sent more.
const mostAside = 32

// mostQuestions limits the questions of one attempt. Each extender is asked three things; but if
// the cluster changes before an answer arrives, the question is about other nodes and has to be
// repeated.
const mostQuestions = 24

// mostPreparing limits the pods of a namespace for which something is prepared aside at a time.
// mostPreparations limits how often an attempt is prepared: what was prepared may be forgotten
// before it is used.
const mostPreparing, mostPreparations = 32, 3

var (
	errPreparing = &Fault{Message: "too many pods of the namespace wait for their device selectors to be compiled; " +
		"the pod is tried again after its back-off"}
	errAsideFull = &Fault{Message: "too many pods wait for extenders to answer; the pod is tried again after its back-off"}
	errNoEnd     = &Fault{Message: "the cluster changed faster than the extenders answered; the pod is tried again after its back-off"}
)

// Ask requests the answer to a question that would block the deciding goroutine, such as an
// extender's. When it is answered, the pod is decided again with the answer at hand.
type Ask struct {
	Ticket  Ticket
	Attempt *Attempt
	Aside   *plugins.Aside
}

func (Ask) isAction() {}

// suspendAttempt suspends the attempt and asks the question that err carries. It returns false if
// err carries none. Its pod is still Taken, so nothing else decides it while the question is under
// way.
func (as *attempts) suspendAttempt(b *placement, err error) bool {
	if err == nil {
		return false
	}
	var question *plugins.Aside
	if !errors.As(err, &question) {
		return false
	}

	b.endAttempt(false)
	switch {
	case b.questions >= mostQuestions:
		as.requeueFailed(b, errNoEnd)
	case as.asking >= mostAside:
		as.requeueFailed(b, errAsideFull)
	default:
		as.asking++
		as.addAction(Ask{as.issueErrand(askErrand{as, b.item, question, b.questions + 1}), &b.Attempt, question})
	}

	return true
}

// askErrand takes the answer to an Ask and decides the pod again, unless the pod is gone or no
// longer served by any profile.
type askErrand struct {
	as        *attempts
	item      *queue.Item
	question  *plugins.Aside
	questions int
}

// startPreparing suspends the attempt, which has not begun, while plugins prepare it. It returns
// false if they need not. An attempt is prepared mostPreparations times at most; after that the
// plugin computes in place.
func (as *attempts) startPreparing(b *placement) bool {
	for _, p := range b.profile.prepare {
		question := p.Prepare(as.cluster, b.Waiting)
		switch namespace := b.Pod.Namespace; {
		case question == nil, b.questions >= mostPreparations:
			continue
		case as.preparing[namespace] >= mostPreparing:
			as.requeueFailed(b, errPreparing)
		default:
			as.preparing[namespace]++
			as.addAction(Ask{as.issueErrand(prepareErrand{askErrand{as, b.item, question, b.questions + 1}, namespace}),
				&b.Attempt, question})
		}
		return true
	}
	return false
}

// prepareErrand decides the pod when what it needs is prepared.
type prepareErrand struct {
	askErrand
	namespace string
}
