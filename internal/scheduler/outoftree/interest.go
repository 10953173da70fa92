// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/queue"
)

// anyChange holds the events that can help pods rejected by a plugin without EnqueueExtensions:
// every event of these kinds. Like upstream, this is less than the wildcard that a plugin may
// register.
var anyChange = func() (all []queue.Interest) {
	for _, kind := range []queue.Resource{
		queue.Pod, queue.Node, queue.Volume, queue.Claim, queue.CSINode, queue.CSIDriver, queue.CSIStorageCapacity, queue.StorageClass,
		queue.ResourceClaim, queue.DeviceClass, queue.PodGroup,
	} {
		all = append(all, queue.Interest{Resource: kind, Action: queue.All})
	}
	return all
}()

// Interests implements cycle.Interested: it returns the events that can help pods rejected by the
// plugin. Like upstream, a plugin without EnqueueExtensions is called again after every event. It
// also begins to watch the custom resources registered by the plugin.
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
			Hint: x.narrowHint(e.PreQueueingHintFn, x.wrapHint(e.QueueingHintFn)), PerPod: true,
		})
	}

	return interests, nil
}

// wrapHint wraps the plugin's function. If the function fails or panics, the pod is tried, so that
// it is not forgotten. A nil function stays nil, which means that every event of the kind can help.
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

// narrowHint restricts a hint to the pods named by the plugin for the event (PreQueueingHintFn),
// instead of all pods it has rejected. The plugin is called once per event, when the first hint is
// due. Pods rejected by other plugins are not restricted. In contrast, kube-scheduler then ignores
// all pods that no plugin names, whichever plugin rejected them.
//
// The returned function remembers only the last event. This suffices, because the queue goes
// through all pods for one event before it takes the next, on one goroutine.
func (x *extension) narrowHint(name fwk.PreQueueingHintFn, hint func(*queue.Item, *queue.Event) bool) func(*queue.Item, *queue.Event) bool {
	if name == nil || !x.f.set.options.PreQueueingHints {
		return hint
	}

	var of *queue.Event
	var named sets.Set[types.NamespacedName] // nil: all pods
	return func(item *queue.Item, e *queue.Event) bool {
		if e != of {
			of, named = e, x.nameHelped(name, e)
		}
		if named != nil && !named.Has(types.NamespacedName{Namespace: item.Pod.Namespace, Name: item.Pod.Name}) {
			return false
		}
		return hint == nil || hint(item, e)
	}
}

// nameHelped returns the pods named by the plugin's function for an event, or nil for all pods. It
// returns nil if the function returned all pods or failed, if the event has no objects or is about
// any resource, and if the event is about a single pending pod.
func (x *extension) nameHelped(name fwk.PreQueueingHintFn, e *queue.Event) sets.Set[types.NamespacedName] {
	if e.Old == nil && e.New == nil || e.Resource == queue.AnyResource || e.Own != nil {
		return nil
	}

	logger := klog.FromContext(x.f.set.ctx)
	var result fwk.PreQueueingHintResult
	var err error
	if x.callGuarded("PreQueueingHintFn", func() { result, err = name(logger, e.Old, e.New) }) != nil {
		return nil
	}
	if err != nil {
		logger.Error(err, "PreQueueingHintFn failed, falling back to evaluate all pods", "plugin", x.name)
		return nil
	}

	if count := x.f.set.options.PreHinted; count != nil {
		count(x.name, !result.AllPods)
	}
	if result.AllPods {
		return nil
	}
	return sets.New(result.Pods...)
}

// isWatched reports whether Berth watches the resource. All other resources are custom ones, named
// "plural.version.group".
func isWatched(r fwk.EventResource) bool {
	switch r {
	case fwk.Pod, fwk.Node, fwk.PersistentVolume, fwk.PersistentVolumeClaim, fwk.CSINode, fwk.CSIDriver, fwk.VolumeAttachment,
		fwk.CSIStorageCapacity, fwk.StorageClass, fwk.ResourceClaim, fwk.ResourceSlice, fwk.DeviceClass, fwk.PodGroup, fwk.WildCard:
		return true
	}
	return false
}
