package queue

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Item is a pod that waits for a node.
type Item struct {
	Pod *v1.Pod
	// Class is what decisions see of the pod.
	Class *cluster.PodClass
	// Since is when the pod was first seen waiting: its age in the queue.
	Since time.Time
	// Admitted is when it first came past all gates.
	Admitted time.Time
	// Attempts counts how often the pod was taken from the queue.
	Attempts int
	// Rejectors are the plugins that rejected the pod last; they are kept until the next attempt
	// has ended.
	Rejectors []string
	// Pending are those of them that asked the pod to wait for what they wait for.
	Pending []string
	// Gate is the plugin that keeps the pod out; empty outside of the place Gated.
	Gate string
	// Message says why the pod is not scheduled, and MessageAt is when that was last said to the
	// user.
	Message   string
	MessageAt time.Time
	// Overdue: the pod was woken for having waited too long, not by an event.
	Overdue bool
	// Patient: the pod backs off to the end also when there is nothing else to do.
	Patient bool

	place    Place
	group    *group // where the place is Waiting or Gated
	index    int    // in its heap or group
	order    uint64 // of arrival, for pods of one instant
	rejected int    // how often it was rejected, for the back-off
	failed   int    // how many attempts in a row went wrong, for the back-off
	ready    time.Time
	returned time.Time // when it came, or came back from an attempt
	entered  time.Time // when it began to wait
	seen     uint64    // the newest event that the attempt under way takes into account
	counted  []string  // plugins that it is counted for as being kept by them
}

// Place is where an item is.
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

// Place tells where the item is.
func (i *Item) Place() Place { return i.place }

// Ready is when the item's back-off ends or ended.
func (i *Item) Ready() time.Time { return i.ready }

// Entered is when the item began to wait for an event.
func (i *Item) Entered() time.Time { return i.entered }

// Rejections counts the attempts that ended with a rejection.
func (i *Item) Rejections() int { return i.rejected }

// Errors counts the latest attempts that went wrong, in a row.
func (i *Item) Errors() int { return i.failed }

// Limits of waiting, as upstream's.
const (
	InitialBackoff = time.Second
	MaxBackoff     = 10 * time.Second
	MaxWait        = 5 * time.Minute
)

func (q *Queue) backoff(times int) time.Duration {
	delay := q.FirstBackoff << min(times-1, 20)
	return min(delay, q.LastBackoff)
}

// moreUrgent is the order of active pods if no other is set: priority, then who came, or came back
// from an attempt, first. So pods that keep failing do not keep others of their priority from their
// first attempt.
func moreUrgent(a, b *Item) bool {
	if p, q := priority(a.Pod), priority(b.Pod); p != q {
		return p > q
	}
	return a.returned.Before(b.returned)
}

func priority(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}
