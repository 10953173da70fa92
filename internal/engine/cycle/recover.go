package cycle

import (
	"fmt"
	"runtime/debug"

	"github.com/berth-k8s/berth/internal/engine/decide"
)

// recovered, deferred by decide, ends the attempt of a pod whose decision panicked: no pod may stop
// the scheduling of others. The pod backs off. Whatever may be half changed is recomputed: the
// cluster's sums from the pods that the API has, and the rankings from those.
func (c *Core) recovered(b *placement) {
	value := recover()
	if value == nil {
		return
	}
	if c.placements.byPod[b.Pod.UID] != b { // the panic came before or while the pod was counted
		c.cluster.RemovePod(b.Pod.UID)
	}
	c.panicked(b, value)
	fault := &Fault{Message: fmt.Sprintf("internal error while the pod was decided: %v", value)}
	if b.stage != reserving {
		return // the placement was complete; what panicked came after it
	}
	c.takeBack(b, fault)
}

// panicked reports a panic and recomputes what may be half changed: the sums over the pods of
// nodes, and the rankings.
func (c *Core) panicked(b *placement, value any) {
	stack := debug.Stack()
	if elsewhere, ok := value.(interface{ Stack() []byte }); ok {
		stack = elsewhere.Stack()
	}
	c.do(Panicked{Reference(b.Pod), fmt.Sprint(value), stack, c.cluster.Recount()})
	for _, p := range c.profiles {
		p.Decider, p.failed = decide.New(c.cluster, p.Profile.Profile, c.rng.Uint64()), failure{}
	}
	c.preemptions.rescuing = false
}
