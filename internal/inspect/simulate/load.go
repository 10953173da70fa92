package simulate

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// load puts what is neither node nor pod where plugins look for it.
func load(c *cluster.Cluster, set *manifest.Set) {
	all(set.Namespaces, &c.Namespaces)
	all(set.Services, &c.Services)
	all(set.ReplicationControllers, &c.ReplicationControllers)
	all(set.ReplicaSets, &c.ReplicaSets)
	all(set.StatefulSets, &c.StatefulSets)
	all(set.PodDisruptionBudgets, &c.Budgets)
	all(set.PersistentVolumes, &c.Volumes)
	all(set.PersistentVolumeClaims, &c.Claims)
	all(set.StorageClasses, &c.StorageClasses)
	all(set.CSINodes, &c.CSINodes)
	all(set.CSIDrivers, &c.CSIDrivers)
	all(set.CSIStorageCapacities, &c.CSICapacities)
	all(set.VolumeAttachments, &c.VolumeAttachments)
	all(set.ResourceSlices, &c.ResourceSlices)
	all(set.ResourceClaims, &c.ResourceClaims)
	all(set.DeviceClasses, &c.DeviceClasses)
}

func all[T metav1.Object](list []T, table *cluster.Table[T]) {
	for _, object := range list {
		table.Set(object)
	}
}

// identify gives a pod what the API server gives to every object: a UID, and the time at which it was created.
func identify(p *v1.Pod, now time.Time) {
	if p.UID == "" {
		p.UID = types.UID(p.Namespace + "/" + p.Name)
	}
	if p.CreationTimestamp.IsZero() {
		p.CreationTimestamp = metav1.NewTime(now)
	}
}
