// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"errors"
	"fmt"

	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// This file suspends an attempt while a question is answered asynchronously: suspendAttempt and
// startPreparing send an Ask, and its answer decides the pod again.

// mostQueries limits the pods waiting for asynchronous questions. Pods beyond the limit back off,
// because each question keeps its nodes in memory, and an extender with this many unanswered
// questions should not receive more.
const mostQueries = 32

// mostQuestions limits the questions of one attempt. Each extender receives three questions. If the
// cluster changes before the reply arrives, the question covers other nodes and must be repeated.
const mostQuestions = 24

// mostPreparing limits the concurrent asynchronous preparations per namespace. mostPreparations
// limits the preparations per attempt: a prepared result may be evicted before it is used, and must
// then be prepared again.
const mostPreparing, mostPreparations = 32, 3

var (
	errPreparing = &Fault{Message: "too many pods of the namespace wait for their device selectors to be compiled; " +
		"the pod is tried again after its back-off"}
	errTooManyQueries = &Fault{Message: "too many pods wait for extenders to answer; the pod is tried again after its back-off"}
	errNoEnd          = &Fault{Message: "the cluster changed faster than the extenders answered; the pod is tried again after its back-off"}
)

// Ask requests the answer to a question that would block the deciding goroutine, such as a call to
// an extender. When the answer arrives, the pod is decided again.
type Ask struct {
	Ticket  Ticket
	Attempt *Attempt
	Query   *plugins.PendingQuery
}

func (a Ask) String() string { return fmt.Sprintf("ask %s about %s", a.Query.Target, a.Attempt) }

// startPreparing suspends the attempt before Begin is called, while a plugin prepares the pod's
// data. It returns false if preparation is unnecessary. An attempt is prepared at most
// mostPreparations times; after that the plugin computes synchronously.
func (s *attempts) startPreparing(a *podAttempt) bool {
	for _, p := range a.profile.prepare {
		question := p.Prepare(s.cluster, a.Waiting)
		switch namespace := a.Pod.Namespace; {
		case question == nil, a.questions >= mostPreparations:
			continue
		case s.preparing[namespace] >= mostPreparing:
			s.requeueFailed(a, errPreparing)
		default:
			s.preparing[namespace]++
			s.ask(a, question, func() {
				if s.preparing[namespace]--; s.preparing[namespace] == 0 {
					delete(s.preparing, namespace)
				}
				question.Done() // passes the prepared result to the plugin
			})
		}

		return true
	}
	return false
}

// suspendAttempt suspends the attempt and issues the question carried by err. It returns false if
// err carries no question. The pod is still Taken, so no other attempt decides it while the
// question is pending.
func (s *attempts) suspendAttempt(a *podAttempt, err error) bool {
	if err == nil {
		return false
	}
	var question *plugins.PendingQuery
	if !errors.As(err, &question) {
		return false
	}

	a.endAttempt(false)
	switch {
	case a.questions >= mostQuestions:
		s.requeueFailed(a, errNoEnd)
	case s.asking >= mostQueries:
		s.requeueFailed(a, errTooManyQueries)
	default:
		s.asking++
		s.ask(a, question, func() { s.asking-- })
	}

	return true
}

// decideAgain continues an attempt after an answer.
func (s *attempts) decideAgain(item *queue.Item, answers any, questions int) {
	if item.Resizes() {
		s.decideResize(item, answers, questions)
		return
	}
	s.decidePod(item, answers, questions)
}

// ask sends a question about an attempt. Its answer ends with a call of answered, and decides the
// pod again, unless the pod or its profile was deleted. The outcome does not matter, because
// decidePod finds errors in the answers. The new attempt starts from the beginning, and uses the
// answers received so far.
func (s *attempts) ask(a *podAttempt, question *plugins.PendingQuery, answered func()) {
	item, questions := a.item, a.questions+1
	ticket := s.issueHandled(nil, func(Outcome) {
		answered()
		if s.queue.Get(item.Pod.UID) == item && s.profiles.byName[item.Pod.Spec.SchedulerName] != nil {
			s.decideAgain(item, question.Answers, questions)
		}
	})
	s.addAction(Ask{ticket, &a.Attempt, question})
}
