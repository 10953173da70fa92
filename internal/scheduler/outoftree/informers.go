// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	corev1 "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/queue"
)

// informerFactory creates only the informers requested by plugins: a kind not read by any plugin is
// neither listed nor watched. Like upstream, the informer of pods excludes terminated ones, and
// managed fields are removed from all objects.
//
// It embeds client-go's factory and differs from it in the informer of pods only; the types below
// exist only to override Core().V1().Pods().
type informerFactory struct {
	informers.SharedInformerFactory
	made, pods atomic.Pointer[cache.SharedIndexInformer] // informer of pods: made is set once it is requested, pods once it is synced
	stuck      *string                                   // version of the informer of pods at the last unsuccessful wait
}

// newInformerFactory creates a factory without resync, like kube-scheduler's: plugins get events
// only for changes.
func newInformerFactory(client kubernetes.Interface) *informerFactory {
	return &informerFactory{SharedInformerFactory: informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTransform(withoutManagedFields))}
}

// withoutManagedFields is a cache transform that saves memory, like kube-scheduler's.
func withoutManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

// startInformers starts the informers requested so far, which run until life ends. It waits until
// they are synced, or ctx ends.
func (f *informerFactory) startInformers(ctx, life context.Context) error {
	f.Start(life.Done())
	for kind, ok := range f.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return fmt.Errorf("informer of %s for plugins: not synced: %w", kind, context.Cause(ctx))
		}
	}
	f.pods.Store(f.made.Load())
	return nil
}

// patience bounds the wait for the informer of pods to catch up with the scheduler's own watch. The
// wait delays all pods in the queue.
const patience = 100 * time.Millisecond

// settled is the time until a received object is in the informer's store: client-go records the
// version of an event when it is queued, and another goroutine puts the object into the store.
const settled = 2 * time.Millisecond

// awaitPod waits until the informer of pods shows the current pod, in this version or a newer one,
// has the newest pod known to the scheduler, and no longer has the last deleted one. The informer
// may be behind, because it has a separate watch. A plugin that counts the members of a group would
// then miss the last member, and no event would wake the pod; a plugin that counts a namespace's
// usage would count a deleted victim, and preempt again. After a wait that timed out, awaitPod does
// not wait again until the informer has received an event. Only the deciding goroutine may call it.
func (f *informerFactory) awaitPod(pod *v1.Pod, store *Store) {
	informer := f.pods.Load()
	if informer == nil || f.stuck != nil && *f.stuck == (*informer).LastSyncResourceVersion() {
		return
	}
	newest, departed := store.newestPods()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		waited := time.Since(begin)
		if showsPod(*informer, pod, waited) && showsPod(*informer, newest, waited) && !hasPod((*informer).GetStore(), departed) {
			return
		}
		if waited > patience {
			f.stuck = new((*informer).LastSyncResourceVersion())
			return
		}
	}
}

// showsPod reports whether the informer lists the pod in this version or a newer one, or did so
// before the pod was deleted.
func showsPod(informer cache.SharedIndexInformer, pod *v1.Pod, waited time.Duration) bool {
	if pod == nil {
		return true
	}
	object, known, err := informer.GetStore().Get(pod)
	switch {
	case err != nil:
		return true
	case known:
		return atLeast(object.(*v1.Pod).ResourceVersion, pod.ResourceVersion)
	}
	return waited > settled && atLeast(informer.LastSyncResourceVersion(), pod.ResourceVersion)
}

// hasPod reports whether the pod is in the store.
func hasPod(store cache.Store, pod *v1.Pod) bool {
	if pod == nil {
		return false
	}
	object, known, err := store.Get(pod)
	return err == nil && known && object.(*v1.Pod).UID == pod.UID
}

// atLeast reports whether a version is the same or newer. Versions that cannot be compared count as
// newer, so that they never cause a wait.
func atLeast(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err != nil || order >= 0
}

// Core overrides client-go's method to intercept the informer of pods.
func (f *informerFactory) Core() core.Interface { return coreGroup{f.SharedInformerFactory.Core(), f} }

// coreGroup overrides V1 of the group's informers.
type coreGroup struct {
	core.Interface
	f *informerFactory
}

// V1 overrides client-go's method to intercept the informer of pods.
func (g coreGroup) V1() corev1.Interface { return coreV1{g.Interface.V1(), g.f} }

// coreV1 overrides Pods of the version's informers.
type coreV1 struct {
	corev1.Interface
	f *informerFactory
}

// Pods creates the informer of pods here, before client-go creates its own: a factory creates one
// informer per type and returns it to all later callers.
func (g coreV1) Pods() corev1.TypedPodInformer {
	g.f.made.Store(new(g.f.InformerFor(&v1.Pod{}, newPodInformer)))
	return g.Interface.Pods()
}

// newPodInformer creates the informer of pods with kube-scheduler's selector, which excludes
// succeeded and failed pods.
func newPodInformer(client kubernetes.Interface, _ time.Duration) cache.SharedIndexInformer {
	living := fields.ParseSelectorOrDie("status.phase!=" + string(v1.PodSucceeded) + ",status.phase!=" + string(v1.PodFailed)).String()
	informer := corev1.NewFilteredPodInformer(client, metav1.NamespaceAll, 0, cache.Indexers{},
		func(o *metav1.ListOptions) { o.FieldSelector = living })
	if err := informer.SetTransform(withoutManagedFields); err != nil {
		panic(err) // happens only if the informer was started
	}
	return informer
}

// recorders write the events of plugins, one recorder for each scheduler name. Each is created on
// first use. They write through the plugins' client, and not through the scheduler's own event log.
type recorders struct {
	mu      sync.Mutex
	byName  map[string]events.EventRecorderLogger
	writers []events.EventBroadcaster
}

// recorderFor returns the recorder for a scheduler name, which is the reporting controller of its
// events.
func (s *Set) recorderFor(name string) events.EventRecorderLogger {
	r := &s.recorders
	r.mu.Lock()
	defer r.mu.Unlock()
	if made, ok := r.byName[name]; ok {
		return made
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: s.options.Client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(s.ctx); err != nil {
		runtime.HandleErrorWithContext(s.ctx, err, "Events of plugins are not written", "scheduler", name)
	}
	if r.byName == nil {
		r.byName = map[string]events.EventRecorderLogger{}
	}
	r.writers = append(r.writers, broadcaster)
	r.byName[name] = broadcaster.NewRecorder(scheme.Scheme, name)
	return r.byName[name]
}

// close ends the goroutines of all recorders.
func (r *recorders) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, writer := range r.writers {
		writer.Shutdown()
	}
}

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
