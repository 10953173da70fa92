package outside

import (
	"fmt"

	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/queue"
)

// anyChange is what can help pods that a plugin without EnqueueExtensions rejects: every event of
// these kinds. As upstream, this is less than the wildcard that a plugin may register.
var anyChange = func() (all []queue.Interest) {
	for _, kind := range []queue.Resource{
		queue.Pod, queue.Node, queue.Volume, queue.Claim, queue.CSINode, queue.CSIDriver, queue.CSIStorageCapacity, queue.StorageClass,
		queue.ResourceClaim, queue.DeviceClass, queue.PodGroup,
	} {
		all = append(all, queue.Interest{Resource: kind, Action: queue.All})
	}
	return all
}()

// Interests implements cycle.Interested: what can help pods that the plugin rejects. A plugin
// without EnqueueExtensions is asked again after every event.
func (x *extension) Interests() ([]queue.Interest, error) {
	registers, ok := x.plugin.(fwk.EnqueueExtensions)
	if !ok {
		return anyChange, nil
	}

	var events []fwk.ClusterEventWithHint
	var err error
	if panicked := x.callGuarded("EventsToRegister", func() { events, err = registers.EventsToRegister(x.f.set.ctx) }); panicked != nil {
		return nil, panicked
	}
	if err != nil {
		return nil, fmt.Errorf("plugin %q: events to register: %w", x.name, err)
	}

	interests := make([]queue.Interest, 0, len(events))
	for _, e := range events {
		if !isWatched(e.Event.Resource) {
			x.f.set.watchCustom(x.name, e.Event.Resource)
		}
		interests = append(interests, queue.Interest{
			Resource: queue.Resource(e.Event.Resource), Action: queue.Action(e.Event.ActionType),
			Hint: x.wrapHint(e.QueueingHintFn), PerPod: true,
		})
	}

	return interests, nil
}

// wrapHint wraps the plugin's function. If that fails, the pod is tried, so that it is not
// forgotten.
func (x *extension) wrapHint(ask fwk.QueueingHintFn) func(*queue.Item, *queue.Event) bool {
	if ask == nil {
		return nil
	}
	logger := klog.FromContext(x.f.set.ctx)
	return func(item *queue.Item, e *queue.Event) bool {
		var hint fwk.QueueingHint
		var err error
		if x.callGuarded("QueueingHintFn", func() { hint, err = ask(logger, item.Pod, e.Old, e.New) }) != nil {
			return true
		}
		if err != nil {
			logger.Error(err, "QueueingHintFn returns error", "event", e.Label, "plugin", x.name, "pod", klog.KObj(item.Pod))
			return true
		}
		return hint == fwk.Queue
	}
}

// isWatched reports whether Berth watches the resource. Others are custom ones, named
// "plural.version.group".
func isWatched(r fwk.EventResource) bool {
	switch r {
	case fwk.Pod, fwk.Node, fwk.PersistentVolume, fwk.PersistentVolumeClaim, fwk.CSINode, fwk.CSIDriver, fwk.VolumeAttachment,
		fwk.CSIStorageCapacity, fwk.StorageClass, fwk.ResourceClaim, fwk.ResourceSlice, fwk.DeviceClass, fwk.PodGroup, fwk.WildCard:
		return true
	}
	return false
}
