package queue

import (
	"math"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Item is a pending pod with all that the queue knows about it. The exported fields are for the
// caller to read. It may set Message, MessageAt, Told, Nominating, Unfit, Patient and Together, and
// replace Pod by a fuller copy; Patient only while the item does not back off, since it decides in
// which heap that is.
type Item struct {
	Pod *v1.Pod
	// Class is the pod as decisions see it.
	Class *cluster.PodClass
	// Since is when the pod was added to the queue.
	Since time.Time
	// Admitted is when the pod first passed all gates.
	Admitted time.Time
	// Attempts counts how often the pod was popped.
	Attempts int
	// Rejectors are the plugins that rejected the pod in its last attempt. They are kept until the
	// next attempt is over.
	Rejectors []string
	// Pending are the rejectors that asked the pod to wait for one of their events.
	Pending []string
	// Gate is the plugin that keeps the pod out; empty unless the place is Gated.
	Gate string
	// Message is why the pod is not scheduled, and MessageAt when the user was last told.
	Message   string
	MessageAt time.Time
	// Told is the latest condition that was decided to be written; nil if there was none.
	Told *Told
	// Nominating is the latest node that was decided to be written as the pod's nomination; nil
	// once the pod shows it.
	Nominating *Nominating
	// Overdue: the pod was woken because it had waited for too long, not by an event.
	Overdue bool
	// Unfit is when the pod was first found unschedulable; zero if it never was.
	Unfit time.Time
	// Patient: the pod backs off to the end even if the scheduler is idle.
	Patient bool
	// Together is how many pods were decided together with it in its last attempt, itself included;
	// 0 is one. The more, the longer is its longest back-off.
	Together int
	// Continued is how often in a row the pod went on with an attempt that had not come to its end.
	Continued int

	place    Place
	group    *group       // where the place is Waiting or Gated
	entity   *groupEntity // the pod group's; nil if it is in none
	index    int          // in its heap or group
	order    uint64       // of arrival; unique
	rejected int          // how often it was rejected, for the back-off
	failed   int          // how many attempts in a row failed, for the back-off
	ready    time.Time
	returned time.Time // when it was added, or came back from its last attempt
	entered  time.Time // when it began to wait, or was gated
	flushed  time.Time // when it was last woken because it had waited for too long
	seen     uint64    // the newest event that the attempt under way takes into account
	counted  []string  // the plugins for which Queue.Counted counts it
}

// Came is more for pods that came to the queue later.
func (i *Item) Came() uint64 { return i.order }

// Told is a condition that was decided to be written to a pod of this version. While the pod has
// it, nobody has seen the condition written. It keeps the same condition from being written twice
// while the watch lags behind.
type Told struct {
	Version   string
	At        time.Time
	Condition v1.PodCondition
}

// Nominating is a node that was decided to be written to a pod as its nomination.
type Nominating struct {
	Node string
	At   time.Time
}

// Place is where an item is. The order is that of progress: see groupEntity.findPlace.
type Place uint8

// The places.
const (
	Taken   Place = iota // being decided or bound
	Active               // may be decided
	Backoff              // will be active when the time is up
	Waiting              // for an event that can help
	Gated                // kept out
)

// String names a place as upstream's metrics do.
func (p Place) String() string {
	return [...]string{"taken", "active", "backoff", "unschedulable", "gated"}[p]
}

// Place returns where the item is.
func (i *Item) Place() Place { return i.place }

// Returned returns when the item was added, or came back from its last attempt.
func (i *Item) Returned() time.Time { return i.returned }

// Ready returns when the item's back-off ends or ended.
func (i *Item) Ready() time.Time { return i.ready }

// Entered returns when the item began to wait for an event, or was gated.
func (i *Item) Entered() time.Time { return i.entered }

// Rejections counts the attempts that ended with a rejection.
func (i *Item) Rejections() int { return i.rejected }

// Errors counts the attempts that failed without a verdict, since the last one that did not.
func (i *Item) Errors() int { return i.failed }

// Limits of waiting, the same as upstream.
const (
	InitialBackoff = time.Second
	MaxBackoff     = 10 * time.Second
	MaxWait        = 5 * time.Minute
)

// backoffFor returns how long an item backs off after so many attempts. As upstream, the longest
// back-off of pods that are decided together grows with the square root of their number: each
// attempt costs the others more, and should not be made as often. With the default limits that is 1
// s, 2 s, 4 s, 8 s, and 10 s from then on; for 4 pods together, the longest is 20 s.
func (q *Queue) backoffFor(item *Item, times int) time.Duration {
	last := q.LastBackoff
	if item.Together > 1 {
		last = time.Duration(min(float64(last)*math.Sqrt(float64(item.Together)), 1<<62))
	}
	if q.FirstBackoff > last>>(times-1) { // doubled so often, it may be more than a Duration holds
		return last
	}
	return q.FirstBackoff << (times - 1)
}

// moreUrgent is the default order of active pods: by priority, then by when they were added or came
// back from their last attempt. So pods that keep failing do not delay the first attempt of others
// with the same priority.
func moreUrgent(a, b *Item) bool {
	if p, q := priorityOf(a.Pod), priorityOf(b.Pod); p != q {
		return p > q
	}
	return a.returned.Before(b.returned)
}

// priorityOf is 0 for a pod without a priority, as upstream.
func priorityOf(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}
