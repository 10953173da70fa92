// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

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

func (a Compared) String() string {
	if a.Unclear {
		return fmt.Sprintf("compared %s on %s: unclear", podName(a.Pod), a.Node)
	}
	return fmt.Sprintf("compared %s on %s", podName(a.Pod), a.Node)
}
