package live

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

// kind is a kind of object that a proof depends on.
//
// Lists and watches go through package feed, not through informers: the core keeps the only copy of
// each object.
type kind struct {
	client   rest.Interface
	resource string
	list     func() runtime.Object
	// optional: where it may not be read, pods stay that it matters for.
	optional bool
}

// kindsOf are the kinds that every proof depends on: what the scheduler's filters and scorers look
// at, budgets, and the controllers of pods. What is not served by the API server is left out later.
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
		// The permission to read these two may be missing. Without Jobs, none is known to survive
		// an eviction; without PodGroups, defragment moves no pod of a group.
		{client.BatchV1().RESTClient(), "jobs", func() runtime.Object { return &batchv1.JobList{} }, true},
		{client.SchedulingV1beta1().RESTClient(), "podgroups", func() runtime.Object { return &schedulingv1beta1.PodGroupList{} }, true},
	}
}

// surgeKinds are those that a surge depends on beside. They are asked for only with --surge, so
// that a drain without it needs no permission for them.
func surgeKinds(client kubernetes.Interface) []kind {
	return []kind{
		{client.AutoscalingV2().RESTClient(), "horizontalpodautoscalers",
			func() runtime.Object { return &autoscalingv2.HorizontalPodAutoscalerList{} }, false},
		{client.CoreV1().RESTClient(), "resourcequotas", func() runtime.Object { return &v1.ResourceQuotaList{} }, false},
	}
}

// newSource returns where objects of the kind are listed and watched, in all namespaces.
func (k kind) newSource() feed.Source { return feed.Of(k.client, "", k.resource, k.list) }

// servedKinds returns the kinds that the API server serves. A kind that may not be read is an
// error: nothing can be proved without it. It asks for one object of each kind: discovery would not
// tell whether it may be read.
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

// shown is what feeds show objects to: a [loop.Loop].
type shown interface {
	See(execute.Event)
	Show(e execute.Event, size int)
}

// feedsOf returns functions that show a core the objects of these kinds. When all have been listed,
// the core gets Listed, and then listed is called.
//
// Each function runs until its context ends, and lists again by itself when a watch breaks. Listed
// is shown once, after the first complete list of the last kind.
func feedsOf(ctx context.Context, kinds []kind, core shown, listed func()) (feeds []func(context.Context), err error) {
	kinds, err = servedKinds(ctx, kinds)
	if err != nil {
		return nil, err
	}

	var unlisted atomic.Int32
	unlisted.Store(int32(len(kinds)))
	for _, k := range kinds {
		first := true
		// While too much waits in the loop, Show holds the feed up; what is gone never does.
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

// mirror shows a core the objects of one kind. An object that a list no longer has is gone.
//
// A watch that breaks may miss deletions. The next list shows what is there, and from the
// difference follows what has gone.
type mirror struct {
	seen, gone func(metav1.Object)
	listed     func()
	// has is by namespace and name. It is for one goroutine, that of its feed.
	has   map[string]metav1.Object
	fresh map[string]metav1.Object // while a list is read
}

// newSink returns the functions that the feed calls, and begins without objects.
func (m *mirror) newSink() feed.Sink {
	key := func(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }
	m.has = map[string]metav1.Object{}
	return feed.Sink{
		Listing: func() {
			maps.Copy(m.has, m.fresh) // of a list that failed half way
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
			// Managed fields are a large part of many objects, and nothing reads them. The object
			// is the feed's, so a copy is changed.
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
