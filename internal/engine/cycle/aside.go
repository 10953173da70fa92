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

var (
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

func (Ask) action() {}

// aside suspends the attempt and asks the question that err carries. It returns false if err
// carries none.
func (c *Core) aside(b *placement, err error) bool {
	if err == nil {
		return false
	}
	var question *plugins.Aside
	if !errors.As(err, &question) {
		return false
	}
	c.end(b, false)
	switch {
	case b.questions >= mostQuestions:
		c.fail(b, errNoEnd)
	case c.asking >= mostAside:
		c.fail(b, errAsideFull)
	default:
		c.asking++
		c.do(Ask{c.send(askErrand{b.item, question, b.questions + 1}), &b.Attempt, question})
	}
	return true
}

// askErrand takes the answer to an Ask and decides the pod again, unless the pod is gone or no
// longer served by any profile.
type askErrand struct {
	item      *queue.Item
	question  *plugins.Aside
	questions int
}

func (e askErrand) answered(c *Core, _ Outcome) {
	c.asking--
	if c.queue.Get(e.item.Pod.UID) == e.item && c.profiles[e.item.Pod.Spec.SchedulerName] != nil {
		c.decide(e.item, e.question.Answers, e.questions)
	}
}
