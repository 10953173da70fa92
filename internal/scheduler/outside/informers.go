package outside

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/informers/core"
	corev1 "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
)

// informerFactory makes the informers that plugins ask for, and no others: a kind that no plugin
// reads is neither listed nor watched. As upstream's, that of pods leaves out those that have
// ended, and no object has managed fields.
//
// It embeds client-go's factory and differs from it in the informer of pods only; the types below
// exist to get between Core().V1().Pods() and client-go's own.
type informerFactory struct {
	informers.SharedInformerFactory
	made, pods atomic.Pointer[cache.SharedIndexInformer] // that of pods, if it was asked for; the same once it runs
	stuck      *string                                   // how far it was when a pod was waited for in vain
}

// newInformerFactory makes a factory without resync, as kube-scheduler's: plugins get an event per
// change.
func newInformerFactory(client kubernetes.Interface) *informerFactory {
	return &informerFactory{SharedInformerFactory: informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTransform(withoutManagedFields))}
}

// withoutManagedFields is a cache transform that saves memory, as kube-scheduler's.
func withoutManagedFields(object any) (any, error) {
	if accessor, err := meta.Accessor(object); err == nil && accessor.GetManagedFields() != nil {
		accessor.SetManagedFields(nil)
	}
	return object, nil
}

// startInformers starts the informers that were requested so far, until life ends, and waits for
// them to sync, until ctx ends at the latest.
func (f *informerFactory) startInformers(ctx, life context.Context) error {
	f.Start(life.Done())
	for kind, ok := range f.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return fmt.Errorf("informer of %s for plugins: not in step: %w", kind, context.Cause(ctx))
		}
	}
	f.pods.Store(f.made.Load())
	return nil
}

// patience is how long the informer of pods may be behind the scheduler's own watch. All pods that
// wait their turn pay for it.
const patience = 100 * time.Millisecond

// settled is how long what the informer has received may not yet be listed: client-go notes the
// version of an event when it is queued, and another goroutine puts the object into the store.
const settled = 2 * time.Millisecond

// awaitPod waits until plugins that list pods find the pod whose turn it is, not older than it is,
// and the others as the scheduler knows them: their informer has a watch of its own. A plugin that
// counts the members of a group would miss the last one, and nothing would wake the pod; one that
// counts what a namespace uses would count a victim that is gone, and preempt again. Where the
// informer does not get there in time, it is not waited for again before it moves. Only the
// goroutine that decides may call it.
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
			at := (*informer).LastSyncResourceVersion()
			f.stuck = &at
			return
		}
	}
}

// showsPod reports whether the informer lists the pod as it is or newer, or did before the pod
// went.
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
// newer, so that nobody waits for them.
func atLeast(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err != nil || order >= 0
}

// Core hides client-go's method of this name, on the way to the informer of pods.
func (f *informerFactory) Core() core.Interface { return coreGroup{f.SharedInformerFactory.Core(), f} }

// coreGroup hides V1 of the group's informers.
type coreGroup struct {
	core.Interface
	f *informerFactory
}

// V1 hides client-go's method of this name, on the way to the informer of pods.
func (g coreGroup) V1() corev1.Interface { return coreV1{g.Interface.V1(), g.f} }

// coreV1 hides Pods of the version's informers.
type coreV1 struct {
	corev1.Interface
	f *informerFactory
}

// Pods makes the informer of pods here, before client-go makes its own: a factory makes one
// informer per type and returns it to all who ask later.
func (g coreV1) Pods() corev1.TypedPodInformer {
	informer := g.f.InformerFor(&v1.Pod{}, newPodInformer)
	g.f.made.Store(&informer)
	return g.Interface.Pods()
}

// newPodInformer makes the informer of pods with kube-scheduler's selector: pods that have
// succeeded or failed are not listed.
func newPodInformer(client kubernetes.Interface, _ time.Duration) cache.SharedIndexInformer {
	living := fields.ParseSelectorOrDie("status.phase!=" + string(v1.PodSucceeded) + ",status.phase!=" + string(v1.PodFailed)).String()
	informer := corev1.NewFilteredPodInformer(client, metav1.NamespaceAll, 0, cache.Indexers{},
		func(o *metav1.ListOptions) { o.FieldSelector = living })
	if err := informer.SetTransform(withoutManagedFields); err != nil {
		panic(err) // only for an informer that was started
	}
	return informer
}

// recorders write the events of plugins, one for each scheduler name. Each is made when a plugin
// first asks for it. They write through the client that plugins have, and not through the
// scheduler's own event log.
type recorders struct {
	mu      sync.Mutex
	byName  map[string]events.EventRecorderLogger
	writers []events.EventBroadcaster
}

// recorderFor returns the recorder of the scheduler name, which is the events' reporting
// controller.
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
