// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/queue"
)

// watchCustom watches a custom resource of interest to a plugin, and passes its events to the
// queue, so that they can wake pods rejected by the plugin. The name is in upstream's notation
// "plural.version.group", such as "foos.v1.example.com". Each resource is watched once per Set,
// however many plugins and profiles register it, and until the Set's context ends.
//
// A failure to watch a resource is logged and not an error: the scheduler runs without these
// events, and pods waiting for them are retried with the other rejected pods.
func (s *Set) watchCustom(plugin string, name fwk.EventResource) {
	logger := klog.FromContext(s.ctx)
	gvr, _ := schema.ParseResourceArg(string(name))
	// ParseResourceArg takes everything after the second dot as the group, and accepts an empty
	// group.
	if gvr == nil || strings.Count(string(name), ".") < 2 {
		logger.Error(nil, "Incorrect event registration: a custom resource is named plural.version.group", "plugin",
			plugin, "resource", name)
		return
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.customs[name] {
		return
	}

	// Set this even if the watch fails below, so that the reason is logged once, and not per plugin
	// and profile.
	s.customs[name] = true
	if s.options.KubeConfig == nil {
		logger.Error(nil, "A custom resource cannot be watched without a client configuration", "plugin", plugin, "resource", name)
		return
	}

	client, err := dynamic.NewForConfig(s.options.KubeConfig)
	if err != nil {
		logger.Error(err, "A custom resource cannot be watched", "plugin", plugin, "resource", name)
		return
	}

	informer := dynamicinformer.NewFilteredDynamicInformer(client, *gvr, "", 0, cache.Indexers{}, nil).Informer()
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { s.addEvent(name, fwk.Add, nil, o) },
		UpdateFunc: func(old, o any) { s.addEvent(name, fwk.Update, old, o) },
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok { // the deletion was missed, and detected by a list
				o = gone.Obj
			}
			s.addEvent(name, fwk.Delete, o, nil)
		},
	})

	go informer.RunWithContext(s.ctx)
}

// addEvent passes an event of a custom resource to the queue. Before a scheduler is attached, no
// pod can have been rejected, so dropping the event is safe. For an addition, old is nil; for a
// deletion, now is nil.
func (s *Set) addEvent(name fwk.EventResource, action fwk.ActionType, old, now any) {
	host := s.host()
	if host == nil {
		return
	}
	event := &queue.Event{Resource: queue.Resource(name), Action: queue.Action(action),
		Label: fwk.ClusterEvent{Resource: name, ActionType: action}.Label(), Old: old, New: now}
	host.Happened(event)
}
