// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"context"
	"fmt"
	"maps"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/kube/feed"
)

// kind is a resource that proofs depend on.
//
// Lists and watches use package feed rather than informers: the core keeps the only copy of each
// object.
type kind struct {
	client   rest.Interface
	resource string
	list     func() runtime.Object
	// optional means that the kind is skipped if it may not be read. The affected pods then stay.
	optional bool
}

// kindsOf returns the kinds needed by every proof: the inputs of the scheduler's filters and
// scorers, budgets, and the controllers of pods. Kinds not served by the API server are dropped
// later.
func kindsOf(client kubernetes.Interface) []kind {
	core, apps, storage := client.CoreV1().RESTClient(), client.AppsV1().RESTClient(), client.StorageV1().RESTClient()
	devices := client.ResourceV1().RESTClient()

	return []kind{
		{core, "nodes", func() runtime.Object { return &v1.NodeList{} }, false},
		{core, "pods", func() runtime.Object { return &v1.PodList{} }, false},
		{core, "namespaces", func() runtime.Object { return &v1.NamespaceList{} }, false},
		{core, "services", func() runtime.Object { return &v1.ServiceList{} }, false},
		{core, "replicationcontrollers", func() runtime.Object { return &v1.ReplicationControllerList{} }, false},
		{core, "persistentvolumes", func() runtime.Object { return &v1.PersistentVolumeList{} }, false},
		{core, "persistentvolumeclaims", func() runtime.Object { return &v1.PersistentVolumeClaimList{} }, false},
		{apps, "replicasets", func() runtime.Object { return &appsv1.ReplicaSetList{} }, false},
		{apps, "statefulsets", func() runtime.Object { return &appsv1.StatefulSetList{} }, false},
		{apps, "deployments", func() runtime.Object { return &appsv1.DeploymentList{} }, false},
		{client.PolicyV1().RESTClient(), "poddisruptionbudgets",
			func() runtime.Object { return &policyv1.PodDisruptionBudgetList{} }, false},
		{storage, "storageclasses", func() runtime.Object { return &storagev1.StorageClassList{} }, false},
		{storage, "csinodes", func() runtime.Object { return &storagev1.CSINodeList{} }, false},
		{storage, "csidrivers", func() runtime.Object { return &storagev1.CSIDriverList{} }, false},
		{storage, "csistoragecapacities", func() runtime.Object { return &storagev1.CSIStorageCapacityList{} }, false},
		{storage, "volumeattachments", func() runtime.Object { return &storagev1.VolumeAttachmentList{} }, false},
		{devices, "resourceslices", func() runtime.Object { return &resourcev1.ResourceSliceList{} }, false},
		{devices, "resourceclaims", func() runtime.Object { return &resourcev1.ResourceClaimList{} }, false},
		{devices, "resourceclaimtemplates", func() runtime.Object { return &resourcev1.ResourceClaimTemplateList{} }, false},
		{devices, "deviceclasses", func() runtime.Object { return &resourcev1.DeviceClassList{} }, false},
		{devices, "devicetaintrules", func() runtime.Object { return &resourcev1.DeviceTaintRuleList{} }, false},
		// The permission to read these two may be missing. Without Jobs, no Job is known to
		// tolerate evictions; without PodGroups, defragment moves no pod of a group.
		{client.BatchV1().RESTClient(), "jobs", func() runtime.Object { return &batchv1.JobList{} }, true},
		{client.SchedulingV1beta1().RESTClient(), "podgroups", func() runtime.Object { return &schedulingv1beta1.PodGroupList{} }, true},
	}
}

// surgeKinds returns the additional kinds needed by a surge. They are read only with --surge, so
// that a drain without it needs no permission for them.
func surgeKinds(client kubernetes.Interface) []kind {
	return []kind{
		{client.AutoscalingV2().RESTClient(), "horizontalpodautoscalers",
			func() runtime.Object { return &autoscalingv2.HorizontalPodAutoscalerList{} }, false},
		{client.CoreV1().RESTClient(), "resourcequotas", func() runtime.Object { return &v1.ResourceQuotaList{} }, false},
	}
}

// newSource returns a source to list and watch objects of the kind in all namespaces.
func (k kind) newSource() feed.Source { return feed.Of(k.client, "", k.resource, k.list) }

// servedKinds returns the kinds served by the API server. A missing permission to read a required
// kind is an error, because proofs depend on the kind. servedKinds lists one object of each kind,
// because discovery does not show read permission.
func servedKinds(ctx context.Context, all []kind) (list []kind, err error) {
	for _, k := range all {
		_, err := k.newSource().List(ctx, metav1.ListOptions{Limit: 1})
		switch {
		case apierrors.IsNotFound(err), k.optional && apierrors.IsForbidden(err):
		case err != nil:
			return nil, fmt.Errorf("%s cannot be listed, and no move can be proved without them: %w", k.resource, err)
		default:
			list = append(list, k)
		}
	}
	return list, nil
}

// shown receives objects from feeds; it is a [loop.Loop].
type shown interface {
	See(execute.Event)
	Show(e execute.Event, size int)
}

// feedsOf returns functions that feed a core with the objects of these kinds. After all kinds have
// been listed, Listed is sent to the core, and then listed is called.
//
// Each function runs until its context ends, and relists after a broken watch. Listed is sent only
// once, after the first complete list of the last kind.
func feedsOf(ctx context.Context, kinds []kind, core shown, listed func()) (feeds []func(context.Context), err error) {
	kinds, err = servedKinds(ctx, kinds)
	if err != nil {
		return nil, err
	}

	var unlisted atomic.Int32
	unlisted.Store(int32(len(kinds)))
	for _, k := range kinds {
		first := true
		// Show blocks the feed while too much is queued in the loop; deletions never block.
		m := &mirror{
			seen: func(o metav1.Object) { core.Show(execute.Seen{Object: o}, feed.SizeOf(o.(runtime.Object))) },
			gone: func(o metav1.Object) { core.See(execute.Gone{Object: o}) },
			listed: func() {
				if first && unlisted.Add(-1) == 0 {
					core.See(execute.Listed{})
					listed()
				}
				first = false
			},
		}
		feeds = append(feeds, func(ctx context.Context) { feed.Run(ctx, k.newSource(), m.newSink()) })
	}

	return feeds, nil
}

// mirror feeds a core with the objects of one kind. An object missing from a new list counts as
// deleted.
//
// A broken watch may miss deletions. The next list has the existing objects, and the difference
// yields the deletions.
type mirror struct {
	seen, gone func(metav1.Object)
	listed     func()
	// has is keyed by namespace and name, and used only on the goroutine of its feed.
	has   map[string]metav1.Object
	fresh map[string]metav1.Object // objects of the list being read; nil while watching
}

// newSink returns the functions called by the feed, and begins without objects.
func (m *mirror) newSink() feed.Sink {
	key := func(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }
	m.has = map[string]metav1.Object{}
	return feed.Sink{
		Listing: func() {
			maps.Copy(m.has, m.fresh) // includes objects of a list that failed halfway
			m.fresh = map[string]metav1.Object{}
		},
		Listed: func() {
			for name, o := range m.has {
				if m.fresh[name] == nil {
					m.gone(o)
				}
			}
			m.has, m.fresh = m.fresh, nil
			m.listed()
		},
		Seen: func(object runtime.Object) {
			// Managed fields are a large part of many objects, and unused. The feed owns the
			// object, so a copy is changed.
			o := object.DeepCopyObject().(metav1.Object)
			o.SetManagedFields(nil)
			if m.fresh != nil {
				m.fresh[key(o)] = o
			} else {
				m.has[key(o)] = o
			}
			m.seen(o)
		},
		Gone: func(object runtime.Object) {
			o := object.(metav1.Object)
			delete(m.has, key(o))
			m.gone(o)
		},
	}
}
