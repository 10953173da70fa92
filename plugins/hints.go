package plugins

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// What package queue/hints needs to know of volumes.

// DisksConflict tells whether two volumes are the same disk and cannot be used by two pods of a node.
func DisksConflict(a, b *v1.Volume) bool { return disksConflict(a, b) }

// ClaimClass returns the name of a claim's storage class, or "".
func ClaimClass(claim *v1.PersistentVolumeClaim) string { return claimClass(claim) }

// VolumeClass returns the name of a volume's storage class, or "".
func VolumeClass(volume *v1.PersistentVolume) string { return volumeClass(volume) }

// LargestVolume is the size of the largest volume that can be made; -1 if the driver does not say.
func LargestVolume(capacity *storagev1.CSIStorageCapacity) int64 { return largest(capacity) }
