// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import "cmp"

import v1 "k8s.io/api/core/v1"

// fileMode is the default mode of files from the API: secrets, config maps, the pod's own fields.
const fileMode int32 = 0o644

// defaultVolume sets the defaults specific to the volume's kind. A volume without a kind is an
// emptyDir.
func defaultVolume(volume *v1.Volume) {
	if volume.VolumeSource == (v1.VolumeSource{}) {
		volume.EmptyDir = &v1.EmptyDirVolumeSource{}
	}
	// Use the same rule as for a container's image.
	if volume.Image != nil && volume.Image.PullPolicy == "" {
		volume.Image.PullPolicy = pullPolicy(volume.Image.Reference)
	}

	// The empty type is a valid type: it skips checks before the mount.
	if volume.HostPath != nil {
		setDefault(&volume.HostPath.Type, v1.HostPathUnset)
	}
	if volume.Secret != nil {
		setDefault(&volume.Secret.DefaultMode, fileMode)
	}

	if volume.ConfigMap != nil {
		setDefault(&volume.ConfigMap.DefaultMode, fileMode)
	}
	if volume.DownwardAPI != nil {
		setDefault(&volume.DownwardAPI.DefaultMode, fileMode)
		defaultItems(volume.DownwardAPI.Items)
	}

	if volume.Projected != nil {
		defaultProjected(volume.Projected)
	}
	if volume.Ephemeral != nil && volume.Ephemeral.VolumeClaimTemplate != nil {
		// The template becomes a PersistentVolumeClaim, and gets its defaults.
		claim := &volume.Ephemeral.VolumeClaimTemplate.Spec
		setDefault(&claim.VolumeMode, v1.PersistentVolumeFilesystem)
		roundUp(claim.Resources.Limits)
		roundUp(claim.Resources.Requests)
	}

	defaultOfOldKinds(volume)
}

// defaultProjected sets the default mode of the files and the default lifetime of tokens.
func defaultProjected(projected *v1.ProjectedVolumeSource) {
	const hour int64 = 3600
	setDefault(&projected.DefaultMode, fileMode)
	for i := range projected.Sources {
		source := &projected.Sources[i]
		if source.DownwardAPI != nil {
			defaultItems(source.DownwardAPI.Items)
		}
		if source.ServiceAccountToken != nil {
			setDefault(&source.ServiceAccountToken.ExpirationSeconds, hour)
		}
	}
}

// defaultItems sets the default API versions of the fields exposed as files.
func defaultItems(items []v1.DownwardAPIVolumeFile) {
	for i := range items {
		defaultFieldRef(items[i].FieldRef)
	}
}

// defaultOfOldKinds handles volumes now served by CSI drivers. The API retains their fields, and
// still sets their defaults.
func defaultOfOldKinds(volume *v1.Volume) {
	or := func(field *string, value string) {
		*field = cmp.Or(*field, value)
	}

	if volume.ISCSI != nil {
		or(&volume.ISCSI.ISCSIInterface, "default")
	}
	if volume.RBD != nil {
		or(&volume.RBD.RBDPool, "rbd")
		or(&volume.RBD.RadosUser, "admin")
		or(&volume.RBD.Keyring, "/etc/ceph/keyring")
	}

	if volume.ScaleIO != nil {
		or(&volume.ScaleIO.StorageMode, "ThinProvisioned")
		or(&volume.ScaleIO.FSType, "xfs")
	}

	if disk := volume.AzureDisk; disk != nil {
		setDefault(&disk.CachingMode, v1.AzureDataDiskCachingReadWrite)
		setDefault(&disk.FSType, "ext4")
		setDefault(&disk.ReadOnly, false)
		setDefault(&disk.Kind, v1.AzureSharedBlobDisk)
	}
}
