package cycle

import (
	"errors"

	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// mostAside is how many pods wait at most for the answer to a question that is asked aside. Beyond
// that, pods with such a question back off: each question holds what it is about in memory, and
// whoever is asked has trouble enough.
const mostAside = 32

// mostQuestions is how many questions one attempt asks aside at most. Extenders are asked three
// things each; but the nodes that a question is about may be others when it is answered, and then
// it is asked again.
const mostQuestions = 24

var (
	errAsideFull = &Fault{Message: "too many pods wait for extenders to answer; the pod is tried again after its back-off"}
	errNoEnd     = &Fault{Message: "the cluster changed faster than the extenders answered; the pod is tried again after its back-off"}
)

// Ask gets the answer to a question about a pod that the decision cannot wait for. When it is
// answered, the pod is decided anew.
type Ask struct {
	Ticket  Ticket
	Attempt *Attempt
	Aside   *plugins.Aside
}

func (Ask) action() {}

// aside ends the attempt for as long as the question is asked; it returns false if err is no such
// question.
func (c *Core) aside(b *placement, err error) bool {
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

// askErrand has a pod decided anew when its question is answered, unless the pod has gone or is
// nobody's here meanwhile.
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
