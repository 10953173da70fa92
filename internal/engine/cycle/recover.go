package cycle

import (
	"fmt"
	"runtime/debug"

	"github.com/berth-k8s/berth/internal/engine/decide"
)

// recovered ends the attempt of a pod whose decision panicked, deferred by schedule: no pod may
// stop the scheduling of others, whatever it asks for. The pod backs off. What may be half changed
// is put right: the cluster is counted anew, from what the API said of its pods, and the rankings
// are thrown away and made anew from it.
func (c *Core) recovered(b *placement) {
	value := recover()
	if value == nil {
		return
	}
	if c.placements.byPod[b.Pod.UID] != b { // it panicked before, or while, the pod was counted
		c.cluster.RemovePod(b.Pod.UID)
	}
	c.panicked(b, value)
	fault := &Fault{Message: fmt.Sprintf("internal error while the pod was decided: %v", value)}
	if b.stage != reserving {
		return // it was counted and is on its way; what panicked came after that
	}
	c.takeBack(b, fault)
}

// panicked tells of a panic, and makes anew what may be half changed: sums over the pods of nodes,
// and rankings.
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
