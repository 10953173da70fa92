package live

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/decide"
	"github.com/berth-k8s/berth/rules"
)

// Shadow is told of pods that somebody else has bound. On the owner.
type Shadow interface {
	Bound(pod *v1.Pod, node string, said *decide.Evaluation)
}

// compare has every node judged for a pod that waited and is bound now, as the nodes were before it was.
func (s *Scheduler) compare(pod *v1.Pod) {
	item := s.queue.Get(pod.UID)
	if s.shadow == nil || item == nil || pod.Spec.NodeName == "" || rules.IsTerminal(pod) {
		return
	}
	p := s.profiles[item.Pod.Spec.SchedulerName]
	b := s.newPlacement(p, item)
	for _, e := range p.begin {
		e.Begin(&b.Attempt)
	}
	s.shadow.Bound(pod, pod.Spec.NodeName, p.Evaluate(b.Waiting))
	s.end(b, false)
}
