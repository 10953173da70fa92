package live

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
)

// drain is how long a stopping scheduler continues to write events. With finishWithin before it, it
// stays within the 30 s that the kubelet allows by default.
const drain = 2 * time.Second

// announceBound reports that a pod was bound, with upstream's reason and words. Once: a pod is
// bound once, so the event has no series to count.
func (s *Scheduler) announceBound(a *cycle.Attempt) {
	about := cycle.Reference(a.Pod)
	s.events.Tell(eventlog.Event{
		Component: a.Profile, About: about, Type: v1.EventTypeNormal, Reason: "Scheduled",
		Message: "Successfully assigned " + about.Namespace + "/" + about.Name + " to " + a.Node, Once: true,
	})
}
