// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Shadow stands between the events and a core that compares the placements of another scheduler. It
// restores the cluster states in which that scheduler may have decided; see package reconstruct.
type Shadow interface {
	// DelayEvent passes an event to take, now or in a later step, and the delayed events now due.
	DelayEvent(now time.Time, e Event, take func(Event))
	// NextDue returns the time at which the next delayed event is due. ok is false if there is
	// none.
	NextDue() (at time.Time, ok bool)
	// Judge calls evaluate in possible states of the cluster at the decision about a pod bound to a
	// node. It returns one of the evaluations, and whether other states were possible.
	Judge(item *queue.Item, node string, evaluate func() *decide.Evaluation) (evaluation *decide.Evaluation, unclear bool)
}

// compare evaluates every node for a pod bound by another scheduler, in the possible states of the
// nodes at that scheduler's decision. The evaluation is a trial: no pod remains placed, and the
// attempt is not counted.
func (s *attempts) compare(pod *v1.Pod) {
	item := s.queue.Get(pod.UID)
	if s.shadow == nil || item == nil || pod.Spec.NodeName == "" || rules.IsTerminal(pod) {
		return
	}
	p := s.profiles.byName[item.Pod.Spec.SchedulerName]
	a := s.newAttempt(p, item)
	for _, e := range p.begin {
		e.Begin(&a.Attempt)
	}
	evaluation, unclear := s.shadow.Judge(item, pod.Spec.NodeName, func() *decide.Evaluation { return p.Plain().Evaluate(a.Waiting) })
	s.addAction(Compared{pod, pod.Spec.NodeName, evaluation, unclear})
	a.endAttempt(false)
}

// Compared reports another scheduler's placement of a pod served by a profile, with every plugin's
// verdict on every node before the placement. Only a shadow core returns it.
type Compared struct {
	Pod        *v1.Pod
	Node       string
	Evaluation *decide.Evaluation
	// Unclear is set if the other scheduler may have decided the pod in a state of the cluster that
	// the shadow did not evaluate.
	Unclear bool
}

func (Compared) isAction() {}

func (a Compared) String() string {
	if a.Unclear {
		return fmt.Sprintf("compared %s on %s: unclear", podName(a.Pod), a.Node)
	}
	return fmt.Sprintf("compared %s on %s", podName(a.Pod), a.Node)
}
