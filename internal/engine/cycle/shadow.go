package cycle

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// compare has every node judged for a pod that was pending and is bound now, as the nodes were
// before it was.
func (c *Core) compare(pod *v1.Pod) {
	if !c.options.Shadow || pod.Spec.NodeName == "" || rules.IsTerminal(pod) {
		return
	}
	item := c.queue.Get(pod.UID)
	if item == nil {
		return
	}
	p := c.profiles[item.Pod.Spec.SchedulerName]
	b := c.newPlacement(p, item)
	for _, e := range p.begin {
		e.Begin(&b.Attempt)
	}
	c.do(Compared{pod, pod.Spec.NodeName, p.Evaluate(b.Waiting)})
	c.end(b, false)
}
