// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientset "k8s.io/client-go/kubernetes/fake"
	resourceslicetracker "k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodevolumelimits"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"
)

func init() {
	metrics.Register()
}

// upstream is the Kubernetes scheduler's side of a world.
type upstream struct {
	framework framework.Framework
	// plugins holds the plugin instances run by the framework, by name.
	plugins  map[string]fwk.Plugin
	cache    cache.Cache
	snapshot *cache.Snapshot
	nodes    []fwk.NodeInfo

	nominations nominator
	stop        context.CancelFunc
}

// newUpstream returns the Kubernetes scheduler's side with the named plugins, or with the default
// plugins.
func newUpstream(ctx context.Context, w *World, only []string) (*upstream, error) {
	ctx, stop := context.WithCancel(klog.NewContext(ctx, klog.Logger{}))
	u := &upstream{plugins: map[string]fwk.Plugin{}, stop: stop}
	w = w.ahead()
	if err := u.takeSnapshot(ctx, w); err != nil {
		return nil, err
	}

	profile, err := profileOf(w, only)
	if err != nil {
		return nil, err
	}
	if err := u.makeFramework(ctx, w, profile); err != nil {
		return nil, err
	}

	u.nominations = nominator{}
	for _, pod := range w.listNominated() {
		info, err := framework.NewPodInfo(pod)
		if err != nil {
			return nil, err
		}
		node := pod.Status.NominatedNodeName
		u.nominations[node] = append(u.nominations[node], info)
	}

	u.framework.SetPodNominator(u.nominations)
	return u, nil
}

// takeSnapshot fills the scheduler's cache and takes a snapshot of it. The real cache is necessary,
// because it records the first node that reported an image.
func (u *upstream) takeSnapshot(ctx context.Context, w *World) error {
	logger := klog.FromContext(ctx)
	u.cache = cache.New(ctx, nil, false, false)
	for _, n := range w.Nodes {
		u.cache.AddNode(logger, n)
	}

	for _, p := range w.Placed {
		if err := u.cache.AddPod(logger, p); err != nil {
			return fmt.Errorf("add pod %s: %w", p.Name, err)
		}
	}

	u.snapshot = cache.NewEmptySnapshot()
	if err := u.cache.UpdateSnapshot(logger, u.snapshot); err != nil {
		return err
	}

	nodes, err := u.snapshot.NodeInfos().List()
	u.nodes = slices.Clone(nodes)
	return err
}

// placePod assumes the pod on its node in the cache.
func (u *upstream) placePod(ctx context.Context, pod *v1.Pod) error {
	pod = podAhead(pod)
	if err := u.cache.AssumePod(klog.FromContext(ctx), pod); err != nil {
		return err
	}
	u.nominations.DeleteNominatedPodIfExists(pod)
	return u.cache.UpdateSnapshot(klog.FromContext(ctx), u.snapshot)
}

func (u *upstream) removePod(ctx context.Context, pod *v1.Pod) error {
	pod = podAhead(pod)
	if err := u.cache.RemovePod(klog.FromContext(ctx), pod); err != nil {
		return err
	}
	return u.cache.UpdateSnapshot(klog.FromContext(ctx), u.snapshot)
}

func (u *upstream) makeFramework(ctx context.Context, w *World, profile *config.KubeSchedulerProfile) error {
	logger := klog.FromContext(ctx)
	informers := newFilled(w.listObjects())
	slices, err := resourceslicetracker.StartTracker(ctx, resourceslicetracker.Options{
		SliceInformer: informers.Resource().V1().ResourceSlices(), TaintInformer: informers.Resource().V1().DeviceTaintRules(),
		EnableDeviceTaintRules: len(ofKind[*resourcev1.DeviceTaintRule](w)) > 0,
	})

	if err != nil {
		return err
	}
	claims := assumecache.NewAssumeCache(logger, informers.Resource().V1().ResourceClaims().Informer(), "ResourceClaim", "", nil)
	devices := dynamicresources.NewDRAManager(ctx, claims, slices, informers)
	for _, class := range informers.Resource().V1().DeviceClasses().Informer().GetStore().List() {
		devices.DeviceClassResolver().(interface{ OnAdd(any, bool) }).OnAdd(class, true)
	}

	u.framework, err = frameworkruntime.NewFramework(ctx, u.newRegistry(), profile,
		frameworkruntime.WithClientSet(u.newClient(w)),
		frameworkruntime.WithInformerFactory(informers),
		frameworkruntime.WithSharedDRAManager(devices),
		frameworkruntime.WithSharedCSIManager(nodevolumelimits.NewCSIManager(informers.Storage().V1().CSINodes().Lister())),
		frameworkruntime.WithSnapshotSharedLister(u.snapshot),
		frameworkruntime.WithMutableSnapshotLister(u.snapshot),
		frameworkruntime.WithParallelism(1),
		frameworkruntime.WithWaitingPods(frameworkruntime.NewWaitingPodsMap()),
		frameworkruntime.WithPodsInPreBind(frameworkruntime.NewPodsInPreBindMap()),
	)

	return err
}

// newClient returns the client for direct API requests of plugins. It has only the objects that
// plugins modify.
func (u *upstream) newClient(w *World) kubernetes.Interface {
	var claims []runtime.Object
	for _, claim := range ofKind[*resourcev1.ResourceClaim](w) {
		claims = append(claims, claim)
	}
	if len(claims) == 0 {
		return idleClient
	}
	return clientset.NewClientset(claims...)
}

// idleClient is the client for worlds without such objects. It is shared, because creating a client
// takes longer than evaluating a pod.
var idleClient = clientset.NewClientset()

// newRegistry returns the in-tree registry with factories that record each plugin, so that plugins
// can be run individually.
func (u *upstream) newRegistry() frameworkruntime.Registry {
	registry := frameworkruntime.Registry{}
	for name, factory := range plugins.NewInTreeRegistry() {
		registry[name] = func(ctx context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
			plugin, err := factory(ctx, args, h)
			u.plugins[name] = plugin
			return plugin, err
		}
	}
	return registry
}

// profileOf returns the scheduler's profile for a configuration file with the world's settings,
// limited to the named plugins.
func profileOf(w *World, only []string) (*config.KubeSchedulerProfile, error) {
	file := configv1.KubeSchedulerConfiguration{Profiles: []configv1.KubeSchedulerProfile{{}}}
	for name, args := range w.Args {
		file.Profiles[0].PluginConfig = append(file.Profiles[0].PluginConfig,
			configv1.PluginConfig{Name: name, Args: runtime.RawExtension{Object: args.DeepCopyObject()}})
	}
	scheme.Scheme.Default(&file)
	internal := config.KubeSchedulerConfiguration{}
	if err := scheme.Scheme.Convert(&file, &internal, nil); err != nil {
		return nil, err
	}
	profile := &internal.Profiles[0]
	enabled := profile.Plugins.MultiPoint.Enabled
	for i := range enabled {
		if weight, ok := w.Weights[enabled[i].Name]; ok {
			enabled[i].Weight = int32(weight)
		}
	}
	for _, name := range w.Unscored {
		profile.Plugins.Score.Disabled = append(profile.Plugins.Score.Disabled, config.Plugin{Name: name})
	}
	for _, name := range w.Unfiltered {
		profile.Plugins.Filter.Disabled = append(profile.Plugins.Filter.Disabled, config.Plugin{Name: name})
	}
	for _, name := range w.FilterOrder { // enabled plugins precede the plugins from MultiPoint, in this order
		if !slices.Contains(w.Unfiltered, name) && (len(only) == 0 || slices.Contains(only, name)) {
			profile.Plugins.Filter.Enabled = append(profile.Plugins.Filter.Enabled, config.Plugin{Name: name})
		}
	}
	if len(only) > 0 {
		profile.Plugins.MultiPoint.Enabled = slices.DeleteFunc(profile.Plugins.MultiPoint.Enabled, func(p config.Plugin) bool {
			return p.Name != "PrioritySort" && p.Name != "DefaultBinder" && !slices.Contains(only, p.Name)
		})
	}
	return profile, nil
}

// nominator holds the pods nominated to each node.
type nominator map[string][]fwk.PodInfo

func (n nominator) NominatedPodsForNode(node string) []fwk.PodInfo { return n[node] }

func (n nominator) AddNominatedPod(klog.Logger, fwk.PodInfo, *fwk.NominatingInfo) {}

func (n nominator) DeleteNominatedPodIfExists(pod *v1.Pod) {
	node := pod.Status.NominatedNodeName
	n[node] = slices.DeleteFunc(n[node], func(p fwk.PodInfo) bool { return p.GetPod().UID == pod.UID })
}

func (n nominator) UpdateNominatedPod(klog.Logger, *v1.Pod, fwk.PodInfo) {}
