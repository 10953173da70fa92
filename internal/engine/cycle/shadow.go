package cycle

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// compare evaluates every node for a pod that another scheduler has just bound, as the nodes were
// before.
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
