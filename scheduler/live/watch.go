package live

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/queue"
)

// watch says what is followed and what becomes of it.
func (s *Scheduler) watch(ctx context.Context) error {
	core, apps, storage := s.client.CoreV1(), s.client.AppsV1(), s.client.StorageV1()
	follow[*v1.Node](s, "nodes", queue.Node, core.Nodes(), s.watchedNode,
		func(n cluster.Name, _ types.UID, last *v1.Node) { s.goneNode(n.Name, last) })
	pods := follow[*v1.Pod](s, "pods", queue.Pod, core.Pods(""), func(pod, _ *v1.Pod) {
		pod.ManagedFields = nil // as long as all the rest, and of no use here
		s.watchedPod(pod)
	},
		func(_ cluster.Name, uid types.UID, last *v1.Pod) { s.gonePod(last, uid) })
	s.podNames = pods.known
	pods.single = func(pod *v1.Pod) *v1.Pod { own := *pod; return &own } // its spec stands for its class
	o := &s.cluster.Objects
	followTable(s, "namespaces", core.Namespaces(), &o.Namespaces, queue.Namespace)
	followTable(s, "services", core.Services(""), &o.Services, queue.Owner)
	followTable(s, "replicationcontrollers", core.ReplicationControllers(""), &o.ReplicationControllers, queue.Owner)
	followTable(s, "replicasets", apps.ReplicaSets(""), &o.ReplicaSets, queue.Owner)
	followTable(s, "statefulsets", apps.StatefulSets(""), &o.StatefulSets, queue.Owner)
	followTable(s, "poddisruptionbudgets", s.client.PolicyV1().PodDisruptionBudgets(""), &o.Budgets, queue.Budget)
	followTable(s, "persistentvolumes", core.PersistentVolumes(), &o.Volumes, queue.Volume)
	followTable(s, "persistentvolumeclaims", core.PersistentVolumeClaims(""), &o.Claims, queue.Claim)
	followTable(s, "storageclasses", storage.StorageClasses(), &o.StorageClasses, queue.StorageClass)
	followTable(s, "csinodes", storage.CSINodes(), &o.CSINodes, queue.CSINode)
	followTable(s, "csidrivers", storage.CSIDrivers(), &o.CSIDrivers, queue.CSIDriver)
	followTable(s, "csistoragecapacities", storage.CSIStorageCapacities(""), &o.CSICapacities, queue.CSIStorageCapacity)
	followTable(s, "volumeattachments", storage.VolumeAttachments(), &o.VolumeAttachments, queue.VolumeAttachment)
	return s.watchDevices(ctx)
}

// watchDevices follows devices where the API server has that API.
func (s *Scheduler) watchDevices(ctx context.Context) error {
	var err error
	s.insist(ctx, func(context.Context) bool {
		_, err = s.client.Discovery().ServerResourcesForGroupVersion(resourcev1.SchemeGroupVersion.String())
		return answered(err)
	})
	switch {
	case apierrors.IsNotFound(err), ctx.Err() != nil:
		return nil
	case err != nil:
		return fmt.Errorf("ask the API server for %s: %w", resourcev1.SchemeGroupVersion, err)
	}
	devices, o := s.client.ResourceV1(), &s.cluster.Objects
	followTable(s, "resourceslices", devices.ResourceSlices(), &o.ResourceSlices, queue.ResourceSlice)
	followTableAs(s, "resourceclaims", devices.ResourceClaims(""), &o.ResourceClaims, queue.ResourceClaim, s.watchedClaim)
	followTable(s, "deviceclasses", devices.DeviceClasses(), &o.DeviceClasses, queue.DeviceClass)
	return nil
}
