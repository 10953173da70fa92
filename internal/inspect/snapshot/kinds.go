package snapshot

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/feed"
)

// Kind is a kind of object that decisions depend on.
type Kind struct {
	Resource     string
	GroupVersion schema.GroupVersion
	Kind         string
	// Needed is set if there is no answer without it.
	Needed  bool
	newList func() runtime.Object
}

// Kinds returns all kinds that decisions depend on. No Secrets are among them, nor anything that
// contains them.
func Kinds() []Kind {
	return []Kind{
		{"nodes", v1.SchemeGroupVersion, "Node", true, func() runtime.Object { return &v1.NodeList{} }},
		{"pods", v1.SchemeGroupVersion, "Pod", true, func() runtime.Object { return &v1.PodList{} }},
		{"namespaces", v1.SchemeGroupVersion, "Namespace", false, func() runtime.Object { return &v1.NamespaceList{} }},
		{"services", v1.SchemeGroupVersion, "Service", false, func() runtime.Object { return &v1.ServiceList{} }},
		{"persistentvolumes", v1.SchemeGroupVersion, "PersistentVolume", false,
			func() runtime.Object { return &v1.PersistentVolumeList{} }},
		{"persistentvolumeclaims", v1.SchemeGroupVersion, "PersistentVolumeClaim", false,
			func() runtime.Object { return &v1.PersistentVolumeClaimList{} }},
		{"resourcequotas", v1.SchemeGroupVersion, "ResourceQuota", false, func() runtime.Object { return &v1.ResourceQuotaList{} }},
		{"limitranges", v1.SchemeGroupVersion, "LimitRange", false, func() runtime.Object { return &v1.LimitRangeList{} }},
		{"replicationcontrollers", v1.SchemeGroupVersion, "ReplicationController", false,
			func() runtime.Object { return &v1.ReplicationControllerList{} }},
		{"priorityclasses", schedulingv1.SchemeGroupVersion, "PriorityClass", false,
			func() runtime.Object { return &schedulingv1.PriorityClassList{} }},
		{"runtimeclasses", nodev1.SchemeGroupVersion, "RuntimeClass", false, func() runtime.Object { return &nodev1.RuntimeClassList{} }},
		{"poddisruptionbudgets", policyv1.SchemeGroupVersion, "PodDisruptionBudget", false,
			func() runtime.Object { return &policyv1.PodDisruptionBudgetList{} }},
		{"storageclasses", storagev1.SchemeGroupVersion, "StorageClass", false,
			func() runtime.Object { return &storagev1.StorageClassList{} }},
		{"csinodes", storagev1.SchemeGroupVersion, "CSINode", false, func() runtime.Object { return &storagev1.CSINodeList{} }},
		{"csidrivers", storagev1.SchemeGroupVersion, "CSIDriver", false, func() runtime.Object { return &storagev1.CSIDriverList{} }},
		{"csistoragecapacities", storagev1.SchemeGroupVersion, "CSIStorageCapacity", false,
			func() runtime.Object { return &storagev1.CSIStorageCapacityList{} }},
		{"volumeattachments", storagev1.SchemeGroupVersion, "VolumeAttachment", false,
			func() runtime.Object { return &storagev1.VolumeAttachmentList{} }},
		{"resourceslices", resourcev1.SchemeGroupVersion, "ResourceSlice", false,
			func() runtime.Object { return &resourcev1.ResourceSliceList{} }},
		{"resourceclaims", resourcev1.SchemeGroupVersion, "ResourceClaim", false,
			func() runtime.Object { return &resourcev1.ResourceClaimList{} }},
		{"resourceclaimtemplates", resourcev1.SchemeGroupVersion, "ResourceClaimTemplate", false,
			func() runtime.Object { return &resourcev1.ResourceClaimTemplateList{} }},
		{"deviceclasses", resourcev1.SchemeGroupVersion, "DeviceClass", false,
			func() runtime.Object { return &resourcev1.DeviceClassList{} }},
		{"devicetaintrules", resourcev1.SchemeGroupVersion, "DeviceTaintRule", false,
			func() runtime.Object { return &resourcev1.DeviceTaintRuleList{} }},
		{"leases", coordinationv1.SchemeGroupVersion, "Lease", false, func() runtime.Object { return &coordinationv1.LeaseList{} }},
		{"workloads", schedulingv1beta1.SchemeGroupVersion, "Workload", false,
			func() runtime.Object { return &schedulingv1beta1.WorkloadList{} }},
		{"podgroups", schedulingv1beta1.SchemeGroupVersion, "PodGroup", false,
			func() runtime.Object { return &schedulingv1beta1.PodGroupList{} }},
		{"compositepodgroups", schedulingv1alpha3.SchemeGroupVersion, "CompositePodGroup", false,
			func() runtime.Object { return &schedulingv1alpha3.CompositePodGroupList{} }},
		{"deployments", appsv1.SchemeGroupVersion, "Deployment", false, func() runtime.Object { return &appsv1.DeploymentList{} }},
		{"replicasets", appsv1.SchemeGroupVersion, "ReplicaSet", false, func() runtime.Object { return &appsv1.ReplicaSetList{} }},
		{"statefulsets", appsv1.SchemeGroupVersion, "StatefulSet", false, func() runtime.Object { return &appsv1.StatefulSetList{} }},
		{"daemonsets", appsv1.SchemeGroupVersion, "DaemonSet", false, func() runtime.Object { return &appsv1.DaemonSetList{} }},
		{"jobs", batchv1.SchemeGroupVersion, "Job", false, func() runtime.Object { return &batchv1.JobList{} }},
	}
}

// Client reads kinds from a cluster. All API groups share one connection.
type Client struct {
	config *rest.Config
	http   clientOf
}

type clientOf map[schema.GroupVersion]rest.Interface

// NewClient returns a client that only reads.
func NewClient(config *rest.Config) (*Client, error) {
	config = ReadOnly(config)
	if config.QPS == 0 {
		config.QPS, config.Burst = 50, 100
	}

	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}

	c := &Client{config: config, http: clientOf{}}
	for _, k := range Kinds() {
		if c.http[k.GroupVersion] != nil {
			continue
		}
		own := rest.CopyConfig(config)
		own.GroupVersion = &k.GroupVersion
		own.APIPath = "/apis"
		if k.GroupVersion.Group == "" {
			own.APIPath = "/api"
		}
		own.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
		if c.http[k.GroupVersion], err = rest.RESTClientForConfigAndClient(own, httpClient); err != nil {
			return nil, err
		}
	}

	return c, nil
}

// List lists one page of a kind.
func (c *Client) List(ctx context.Context, k Kind, options metav1.ListOptions) (runtime.Object, error) {
	list := k.newList()
	err := c.http[k.GroupVersion].Get().Resource(k.Resource).VersionedParams(&options, scheme.ParameterCodec).Do(ctx).Into(list)
	return list, connect.Reach(err)
}

// Host is the API server's address.
func (c *Client) Host() string { return c.config.Host }

// ClusterID identifies the cluster: the UID of a namespace that every cluster has.
func (c *Client) ClusterID(ctx context.Context) (string, error) {
	var ns v1.Namespace
	err := c.http[v1.SchemeGroupVersion].Get().Resource("namespaces").Name(metav1.NamespaceSystem).Do(ctx).Into(&ns)
	return string(ns.UID), connect.Reach(err)
}

// Source is how a kind is listed and watched.
func (c *Client) Source(k Kind) feed.Source {
	return feed.Source{
		Name: k.Resource,
		List: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return c.List(ctx, k, options)
		},
		Watch: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.Watch = true
			w, err := c.http[k.GroupVersion].Get().Resource(k.Resource).VersionedParams(&options, scheme.ParameterCodec).Watch(ctx)
			return w, connect.Reach(err)
		},
	}
}

// Optional reports whether this error of a list means that the kind can be left out: it may not be
// read, or is not served.
func Optional(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) }
