package live

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/kube/feed"
)

// addFeeds adds everything that is followed.
func (s *Scheduler) addFeeds(ctx context.Context) error {
	core, apps, storage := s.client.CoreV1(), s.client.AppsV1(), s.client.StorageV1()
	followKind(s, cycle.Nodes, core.Nodes())
	followKind(s, cycle.Pods, core.Pods(""))
	followKind(s, cycle.Namespaces, core.Namespaces())
	followKind(s, cycle.Services, core.Services(""))
	followKind(s, cycle.ReplicationControllers, core.ReplicationControllers(""))
	followKind(s, cycle.ReplicaSets, apps.ReplicaSets(""))
	followKind(s, cycle.StatefulSets, apps.StatefulSets(""))

	followKind(s, cycle.DisruptionBudgets, s.client.PolicyV1().PodDisruptionBudgets(""))
	followKind(s, cycle.Volumes, core.PersistentVolumes())
	followKind(s, cycle.Claims, core.PersistentVolumeClaims(""))
	followKind(s, cycle.StorageClasses, storage.StorageClasses())
	followKind(s, cycle.CSINodes, storage.CSINodes())
	followKind(s, cycle.CSIDrivers, storage.CSIDrivers())
	followKind(s, cycle.CSICapacities, storage.CSIStorageCapacities(""))
	followKind(s, cycle.VolumeAttachments, storage.VolumeAttachments())

	s.watchRooms(ctx)
	if err := s.watchGroups(ctx); err != nil {
		return err
	}
	return s.watchDevices(ctx)
}

// roomsAgain is how often the Lease of watchRooms is asked for as long as it may not be read. An
// API server that has only just started may refuse what it allows a moment later.
const roomsAgain = 5 * time.Minute

// watchRooms follows the Lease that shows which room is to be kept. No pod is decided before it is
// known, or the room could be lost at a restart. Without the permission to read it, pods are
// scheduled all the same.
func (s *Scheduler) watchRooms(ctx context.Context) {
	if s.shadow != nil {
		return
	}
	leases := s.client.CoordinationV1().Leases(cycle.RoomNamespace)
	selector := fields.OneTermEqualSelector("metadata.name", cycle.RoomName).String()
	kinds, run := []cycle.Kind{cycle.Rooms}, func(ctx context.Context) {
		feed.Run(ctx, feed.From(string(cycle.Rooms), leases, selector), s.newSink(cycle.Rooms))
	}

	var err error
	ask := func(ctx context.Context) bool {
		_, err = leases.List(ctx, metav1.ListOptions{FieldSelector: selector, Limit: 1})
		return isAnswered(err)
	}

	if s.retryBind(ctx, ask); err == nil {
		s.kinds, s.feeds = append(s.kinds, kinds...), append(s.feeds, run)
		return
	}

	klog.FromContext(ctx).Info("No room is kept for pods that berth moves: the Lease that shows it cannot be read", "err", err)
	s.feeds = append(s.feeds, func(ctx context.Context) {
		for err != nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(roomsAgain):
			}
			asking, cancel := context.WithTimeout(ctx, readWithin)
			ask(asking)
			cancel()
		}
		s.loop.See(cycle.Follows{Kinds: kinds})
		run(ctx)
	})
}

// followKind adds a kind to those that are watched.
func followKind[L runtime.Object](s *Scheduler, kind cycle.Kind, client feed.Typed[L]) {
	s.kinds, s.feeds = append(s.kinds, kind), append(s.feeds, feedOf(s, kind, client))
}

// feedOf returns what gives the core everything of a kind.
func feedOf[L runtime.Object](s *Scheduler, kind cycle.Kind, client feed.Typed[L]) func(context.Context) {
	source := feed.From(string(kind), client, "")
	var fresh func()
	if s.lead != nil && (kind == cycle.Pods || kind == cycle.ResourceClaims) {
		source.Anew, fresh = s.lead, s.beginLeading
		s.stale.Add(1)
	}
	sink := s.newSink(kind)
	sink.Fresh = fresh
	return func(ctx context.Context) { feed.Run(ctx, source, sink) }
}

// newSink shows the core what there is of a kind.
func (s *Scheduler) newSink(kind cycle.Kind) feed.Sink {
	return feed.Sink{
		Listing: func() { s.loop.See(cycle.Listing{Kind: kind}) },
		Listed:  func() { s.loop.See(cycle.Listed{Kind: kind}) },
		Seen: func(o runtime.Object) {
			if object, ok := s.toShown(o); ok {
				s.loop.See(cycle.Seen{Kind: kind, Object: object})
				if pod, is := object.(*v1.Pod); is && pod.Spec.NodeName != "" {
					s.podStatuses.forgetObject(pod.UID)
				}
			}
		},
		Gone: func(o runtime.Object) {
			if object, ok := s.toShown(o); ok {
				s.loop.See(cycle.Gone{Kind: kind, Object: object})
				s.podStatuses.forgetObject(object.GetUID()) // after that: it answers what the core waits for
				s.groupStatuses.forgetObject(object.GetUID())
			}
		},
	}
}

// beginLeading begins to decide, once this scheduler has been elected and has then listed all pods
// and resource claims. Its watches may not have shown yet what the leader before it has bound and
// allocated; decisions from that would fill nodes, and give devices, twice. What else a leader
// writes is refused when it is outdated.
func (s *Scheduler) beginLeading() {
	if s.stale.Add(-1) == 0 {
		s.loop.See(cycle.Led{})
	}
}

// toShown is an object as the core gets it.
func (s *Scheduler) toShown(o runtime.Object) (object metav1.Object, ok bool) {
	if object, ok = o.(metav1.Object); ok && s.stripsObjects() {
		object = journal.Stripped(object)
	}
	return object, ok
}
