// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/scheduler/extender"
	"github.com/berth-k8s/berth/internal/scheduler/runner"
)

// Factory creates a plugin from its arguments: nil, or a *runtime.Unknown with the JSON from the
// configuration file. It is kube-scheduler's frameworkruntime.PluginFactory. ctx ends when the
// plugin is no longer used.
type Factory = func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error)

// Options configures the plugins. The zero Options contains no plugins.
type Options struct {
	// Factories holds the factories by plugin name, as used in configuration files.
	Factories map[string]Factory
	// Store holds the API objects. All sets of a process share it.
	Store *Store
	// Client and KubeConfig are passed to plugins.
	Client     kubernetes.Interface
	KubeConfig *rest.Config
	// PodsToActivate, if set, creates the value that plugins find in the CycleState under
	// kubernetes.io/pods-to-activate; see [ActivatesBy].
	PodsToActivate func() fwk.StateData
	// PreQueueingHints enables the feature gate SchedulerPreQueueingHints: plugins may name the
	// pods that an event can help, before each pod is examined. PreHinted, if set, counts these
	// calls.
	PreQueueingHints bool
	PreHinted        func(plugin string, narrowed bool)
	// Panicked, if set, counts panics outside of attempts.
	Panicked func()
}

// Set holds the out-of-tree plugins and the extenders of one configuration. They live until Close.
//
// Its functions are called in this order: New, Probe for every plugin named in the configuration,
// Profiles, Start, Attach, and Close when another configuration has replaced it. A closed Set
// remains in use until its last attempt is over, in parallel with the new Set. Both use the same
// Store.
type Set struct {
	options   Options // unchanged after New
	store     *Store
	ctx       context.Context
	cancel    context.CancelFunc
	informers *informerFactory // shared by all plugins of the set, as in kube-scheduler
	extenders []fwk.Extender   // in the order of the configuration
	// parallelism is the number of nodes a plugin may look at concurrently.
	parallelism atomic.Int32

	mu         sync.Mutex
	frameworks map[string]*framework // by scheduler name
	live       Host                  // nil until Attach
	recorders  recorders
	attempts   int                        // number of unfinished attempts
	closing    bool                       // the set is closed, and ends with its last attempt
	keeping    bool                       // the store keeps objects for this set
	changes    []func(c *cluster.Cluster) // changes requested by plugins and not applied yet, in order
	shutdown   sync.Once
	customs    map[fwk.EventResource]bool // watched custom resources
}

// Host is the part of the live scheduler needed by plugins. All methods may be called from any
// goroutine, and none waits for the deciding goroutine.
type Host interface {
	WaitingPod(uid types.UID) *runner.WaitingPod
	EachWaitingPod(func(*runner.WaitingPod))
	Activate(pods ...types.UID)
	Happened(e *queue.Event)
	Look(look func(cycle.View))
}

// defaultParallelism is upstream's default. It applies until Profiles is called, to plugins that
// use the Parallelizer during their creation.
const defaultParallelism = 16

// New returns a set without plugins. Probe creates the plugins, with a context that ends with ctx.
func New(ctx context.Context, options Options) *Set {
	if options.Store == nil {
		options.Store = NewStore()
	}
	s := &Set{options: options, store: options.Store, frameworks: map[string]*framework{}, customs: map[fwk.EventResource]bool{}}
	s.parallelism.Store(defaultParallelism)
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.informers = newInformerFactory(options.Client)
	return s
}

// Probe creates a plugin for a profile, if its name is registered, and returns its callable
// extension points. It serves for reading configurations (config.Options.Probe). A plugin is
// created once per profile, however often it is named there, with the arguments of the first call.
func (s *Set) Probe(schedulerName, name string, args runtime.Object) (points plugins.Point, known bool, err error) {
	factory, known := s.options.Factories[name]
	if !known {
		return 0, false, nil
	}

	f := s.frameworkOf(schedulerName)
	plugin, made := f.plugins[name]
	if !made {
		plugin, err = s.buildPlugin(factory, args, f.handle)
		if err == nil && plugin == nil {
			err = errors.New("the factory returned no plugin")
		}
		if err != nil {
			return 0, true, fmt.Errorf("initializing plugin %q: %w", name, err)
		}
		f.plugins[name] = plugin
	}

	return PointsOf(plugin), true, nil
}

// buildPlugin calls a factory and turns its panic into an error: arguments that the factory cannot
// read must not end a running scheduler. A new configuration is read while the old one is in use.
func (s *Set) buildPlugin(factory Factory, args runtime.Object, h fwk.Handle) (plugin fwk.Plugin, err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("it panicked: %v", value)
			klog.FromContext(s.ctx).Error(err, "An out-of-tree plugin panicked", "stack", string(debug.Stack()))
		}
	}()
	return factory(s.ctx, args, h)
}

// frameworkOf returns the framework of a profile, and creates it on first use.
func (s *Set) frameworkOf(schedulerName string) *framework {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.frameworks[schedulerName]
	if !ok {
		f = &framework{set: s, name: schedulerName, plugins: map[string]fwk.Plugin{}}
		f.handle = &handle{f: f}
		s.frameworks[schedulerName] = f
	}
	return f
}

// Profiles returns the profiles of the configuration, with the out-of-tree plugins and the
// extenders added. It is called once for a Set, after all plugins were probed.
func (s *Set) Profiles(c *config.Config) ([]cycle.Profile, error) {
	s.parallelism.Store(*c.Spec.Parallelism)
	for i := range c.Spec.Extenders {
		made, err := extender.New(c.Spec.Extenders[i])
		if err != nil {
			return nil, fmt.Errorf("extenders[%d]: %w", i, err)
		}
		s.extenders = append(s.extenders, made)
	}

	var profiles []cycle.Profile
	for _, p := range c.Profiles {
		made, err := s.buildProfile(p)
		if err != nil {
			return nil, err
		}
		profiles = append(profiles, made)
	}

	return profiles, nil
}

// buildProfile adds a profile's out-of-tree plugins and extenders. A profile without any is
// returned unchanged, so that it has no cost: no session, no snapshot.
func (s *Set) buildProfile(p *plugins.Profile) (cycle.Profile, error) {
	f := s.frameworkOf(p.SchedulerName)
	f.profile = p
	made := cycle.Profile{Profile: p}
	if len(p.Outside)+len(s.extenders) == 0 {
		return made, nil
	}

	f.assemblePlugins()
	made.Extensions = append(made.Extensions, keeper{f})
	for _, name := range p.Outside {
		plugin, ok := f.plugins[name]
		if !ok {
			return made, fmt.Errorf("profile %s: plugin %q is configured but was not made", p.SchedulerName, name)
		}
		made.Extensions = append(made.Extensions, &extension{f: f, name: name, plugin: plugin})
	}

	var binders []string
	for _, x := range s.extenders {
		p.Extenders = append(p.Extenders, &extended{f: f, x: x})
		if x.IsBinder() {
			made.Extensions = append(made.Extensions, &extenderBinder{s, x})
			binders = append(binders, x.Name())
		}
	}

	p.At[plugins.Bind] = append(binders, p.At[plugins.Bind]...)
	return made, nil
}

// isNeeded reports whether any profile has an out-of-tree plugin or an extender. Otherwise, Start
// lists nothing and the Store keeps nothing.
func (s *Set) isNeeded() bool {
	return len(s.extenders) > 0 || rules.Any(maps.Values(s.frameworks), func(f *framework) bool {
		return f.profile != nil && len(f.profile.Outside)+len(f.profile.Extenders) > 0
	})
}

// Start lists nodes and pods for the Store, and starts the informers that plugins requested at
// their creation. It returns when all of these are synced, or ctx ends. Call it before the profiles
// are used.
func (s *Set) Start(ctx context.Context) error {
	if !s.isNeeded() {
		return nil
	}
	if err := s.store.Need(ctx, s.options.Client); err != nil {
		return err
	}
	s.mu.Lock()
	s.keeping = true
	s.mu.Unlock()
	return s.informers.startInformers(ctx, s.ctx)
}

// Attach connects the plugins to the live scheduler. Before that, the methods of Handle that need
// the scheduler do nothing.
func (s *Set) Attach(host Host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.live = host
}

// host returns the live scheduler, or nil before Attach.
func (s *Set) host() Host {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.live
}

// activatePods moves waiting pods to the active queue, and ignores other pods. Before Attach, it
// does nothing.
func (s *Set) activatePods(pods map[string]*v1.Pod) {
	list := rules.Mapped(slices.Collect(maps.Values(pods)), func(pod *v1.Pod) types.UID { return pod.UID })
	if host := s.host(); host != nil && len(list) > 0 {
		host.Activate(list...)
	}
}

// Close ends the plugins' context, their informers and their events after all attempts involving
// them are over, because pods decided by this configuration may still wait at Permit after another
// configuration has replaced it. It may be called more than once.
func (s *Set) Close() {
	if s.countAttempts(0, true) {
		s.endSet()
	}
}

// countAttempts adds delta to the number of unfinished attempts, and reports whether the set must
// end because it is closed and has none. It may return true more than once; endSet acts only once.
func (s *Set) countAttempts(delta int, closing bool) (over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attempts += delta
	s.closing = s.closing || closing
	return s.closing && s.attempts <= 0
}

// closeWithin bounds the wait for the end of informers and events: a plugin's event handler may not
// return.
const closeWithin = 5 * time.Second

// endSet ends everything that belongs to the set. It may block for closeWithin.
func (s *Set) endSet() {
	s.shutdown.Do(func() {
		s.cancel()
		s.mu.Lock()
		keeping := s.keeping
		s.mu.Unlock()
		if keeping {
			s.store.Spare()
		}

		done := make(chan struct{})
		go func() {
			defer close(done)
			s.informers.Shutdown()
			s.recorders.close()
		}()

		select {
		case <-done:
		case <-time.After(closeWithin):
			klog.FromContext(s.ctx).Error(nil, "Event handlers of out-of-tree plugins did not return", "waitedFor", closeWithin)
		}
	})
}

// onOwner applies a change to the cluster on the goroutine that owns the cluster, after all changes
// requested before. If a plugin that may call back is running, the change is applied immediately,
// otherwise between two pods.
//
// Like upstream, a plugin that nominates from PostFilter expects to see the nomination when the
// call returns. A plugin nominating from another goroutine must not wait for the owner, which may
// be waiting for that plugin.
func (s *Set) onOwner(f *framework, change func(c *cluster.Cluster)) {
	s.mu.Lock()
	s.changes = append(s.changes, change)
	host := s.live
	s.mu.Unlock()
	// Use TryLock, because another callback may hold the mutex for long. If it does, the change is
	// applied by Look below.
	if f.asking.TryLock() {
		defer f.asking.Unlock()
		if y := f.openSession(); y != nil {
			y.changeCluster(s.applyChanges)
			return
		}
	}
	if host != nil {
		host.Look(func(v cycle.View) { s.applyChanges(v.Cluster) })
	}
}

// applyChanges makes the changes requested by plugins, unless the set is closed. Only the cluster's
// owner may call it.
func (s *Set) applyChanges(c *cluster.Cluster) {
	s.mu.Lock()
	changes := s.changes
	s.changes = nil
	s.mu.Unlock()
	for _, change := range changes {
		if s.ctx.Err() == nil {
			change(c)
		}
	}
}
