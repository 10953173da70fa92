package live

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/queue"
)

// watch says what is followed and what becomes of it.
func (s *Scheduler) watch() error {
	core, apps, storage := s.client.CoreV1(), s.client.AppsV1(), s.client.StorageV1()
	follow[*v1.Node](s, "nodes", core.Nodes(), s.watchedNode, func(n cluster.Name, _ types.UID) { s.cluster.RemoveNode(n.Name) })
	follow[*v1.Pod](s, "pods", core.Pods(""), s.watchedPod, s.gonePod)
	o := &s.cluster.Objects
	followTable(s, "namespaces", core.Namespaces(), &o.Namespaces, queue.NamespaceChanged)
	followTable(s, "services", core.Services(""), &o.Services, queue.PodPlaced)
	followTable(s, "replicationcontrollers", core.ReplicationControllers(""), &o.ReplicationControllers, queue.PodPlaced)
	followTable(s, "replicasets", apps.ReplicaSets(""), &o.ReplicaSets, queue.PodPlaced)
	followTable(s, "statefulsets", apps.StatefulSets(""), &o.StatefulSets, queue.PodPlaced)
	followTable(s, "poddisruptionbudgets", s.client.PolicyV1().PodDisruptionBudgets(""), &o.Budgets, queue.PodPlaced)
	followTable(s, "persistentvolumes", core.PersistentVolumes(), &o.Volumes, queue.VolumesChanged)
	followTable(s, "persistentvolumeclaims", core.PersistentVolumeClaims(""), &o.Claims, queue.VolumesChanged)
	followTable(s, "storageclasses", storage.StorageClasses(), &o.StorageClasses, queue.VolumesChanged)
	followTable(s, "csinodes", storage.CSINodes(), &o.CSINodes, queue.VolumesChanged)
	followTable(s, "csidrivers", storage.CSIDrivers(), &o.CSIDrivers, queue.VolumesChanged)
	followTable(s, "csistoragecapacities", storage.CSIStorageCapacities(""), &o.CSICapacities, queue.VolumesChanged)
	followTable(s, "volumeattachments", storage.VolumeAttachments(), &o.VolumeAttachments, queue.VolumesChanged)
	return s.watchDevices()
}

// watchDevices follows devices where the API server has that API.
func (s *Scheduler) watchDevices() error {
	_, err := s.client.Discovery().ServerResourcesForGroupVersion(resourcev1.SchemeGroupVersion.String())
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ask the API server for %s: %w", resourcev1.SchemeGroupVersion, err)
	}
	devices, o := s.client.ResourceV1(), &s.cluster.Objects
	followTable(s, "resourceslices", devices.ResourceSlices(), &o.ResourceSlices, queue.DevicesChanged)
	followTable(s, "resourceclaims", devices.ResourceClaims(""), &o.ResourceClaims, queue.DevicesChanged)
	followTable(s, "deviceclasses", devices.DeviceClasses(), &o.DeviceClasses, queue.DevicesChanged)
	return nil
}
