package cycle

import (
	"time"

	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Observer is told what the scheduler does, for metrics. Its methods are called often and from
// several goroutines: they must be quick and safe for that. Embed [NoObserver] to implement some of
// them.
type Observer interface {
	// Attempted: an attempt ended, after so long since the pod was taken from the queue.
	Attempted(profile string, result Result, took time.Duration)
	// Decided: so long it took to find a node, or to find that there is none, preemption included.
	Decided(took time.Duration)
	// Ran: all plugins of an extension point were asked for one pod. Only for points that the shell
	// runs: PreEnqueue, PostFilter, Reserve, Permit, PreBind, Bind, PostBind.
	Ran(profile string, point plugins.Point, ok bool, took time.Duration)
	// RanPlugin: one plugin was asked at such a point; heard of one attempt in ten.
	RanPlugin(plugin string, point plugins.Point, ok bool, took time.Duration)
	// Queued: a pod came into one of the queues, because of the event of that label.
	Queued(place queue.Place, event string)
	// Bound: a pod was scheduled at last, after so many attempts and so long since it was first
	// seen, gates apart. afterFlush: it had been woken for having waited for too long.
	Bound(attempts int, sinceFirst time.Duration, afterFlush bool)
	// Rejected: one pod more (delta 1) or fewer (-1) waits because of the plugin.
	Rejected(plugin, profile string, delta int)
	// Preempted: preemption was tried, and picked so many victims; 0 if it was in vain.
	Preempted(victims int)
	// RemovedVictims: the requests that remove the victims for one pod are through.
	RemovedVictims(ok bool, took time.Duration)
	// Permitted: a pod was held at Permit for so long; result is how it ended: "allowed",
	// "rejected" or "timed out".
	Permitted(result string, took time.Duration)
	// Handled: the messages of an object of this kind were taken in.
	Handled(resource queue.Resource, action queue.Action, took time.Duration)
	// Hinted: a plugin was asked whether an event helps a pod that it rejected.
	Hinted(plugin string, event string, wake bool, took time.Duration)
	// BindRefused: a binding was not taken; reason is the API's, such as Conflict, or empty if
	// there was none.
	BindRefused(reason string)
	// Binding: one binding more (delta 1) or fewer (-1) is under way.
	Binding(delta int)
	// Panicked: a decision panicked.
	Panicked()
}

// Result is how an attempt ended.
type Result string

// The results, as upstream's metrics name them.
const (
	Scheduled     Result = "scheduled"
	Unschedulable Result = "unschedulable"
	Errored       Result = "error"
)

// Sizes are how many there are of what the scheduler keeps; see [Core.Sizes].
type Sizes struct {
	Active, Backoff, Unschedulable, Gated int // pods in the queue
	Nodes, Pods, Assumed                  int // in what is known of the cluster
}

// NoObserver does nothing.
type NoObserver struct{}

// Attempted and all others do nothing.
func (NoObserver) RanPlugin(string, plugins.Point, bool, time.Duration) {}
func (NoObserver) Attempted(string, Result, time.Duration)              {}
func (NoObserver) Decided(time.Duration)                                {}
func (NoObserver) Ran(string, plugins.Point, bool, time.Duration)       {}
func (NoObserver) Queued(queue.Place, string)                           {}
func (NoObserver) Bound(int, time.Duration, bool)                       {}
func (NoObserver) Rejected(string, string, int)                         {}
func (NoObserver) Preempted(int)                                        {}
func (NoObserver) RemovedVictims(bool, time.Duration)                   {}
func (NoObserver) Permitted(string, time.Duration)                      {}
func (NoObserver) Handled(queue.Resource, queue.Action, time.Duration)  {}
func (NoObserver) Hinted(string, string, bool, time.Duration)           {}
func (NoObserver) BindRefused(string)                                   {}
func (NoObserver) Binding(int)                                          {}
func (NoObserver) Panicked()                                            {}

var _ Observer = NoObserver{}
