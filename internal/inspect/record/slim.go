// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"maps"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/provision"
	"github.com/berth-k8s/berth/internal/node/pressure"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// This file removes fields from recorded objects. A recording is meant to be handed on, to a
// colleague or with a bug report, so potentially confidential fields are never written.

// decisive lists the annotations that affect decisions and results. Recordings contain no other
// annotations, because those could contain anything.
var decisive = sets.New(slices.Concat(
	[]string{
		v1.MirrorPodAnnotationKey, v1.PodDeletionCost, batchv1.JobCompletionIndexAnnotation, batchv1.JobIndexFailureCountAnnotation,
		v1.BetaStorageClassAnnotation, v1.MigratedPluginsAnnotationKey, resourcev1.ExtendedResourceClaimAnnotation,
		"pv.kubernetes.io/bind-completed", "pv.kubernetes.io/bound-by-controller", "volume.kubernetes.io/selected-node",
		"storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class",
		admission.DefaultTolerationsAnnotation, admission.AllowedTolerationsAnnotation,
		admission.DedicatedNodesAnnotation, admission.NotReadySecondsAnnotation, admission.UnreachableSecondsAnnotation,
		eviction.NoteAnnotation, config.InUseAnnotation, pressure.AnnotationUses,
	},
	workload.Annotations, rebalance.Annotations, provision.NodeAnnotations,
)...)

// slimAnnotations removes all annotations but the decisive ones.
func slimAnnotations(o metav1.Object) {
	// Most importantly, remove kubectl's last-applied-configuration with its copy of the whole
	// object, including environments.
	annotations := o.GetAnnotations()
	maps.DeleteFunc(annotations, func(key, _ string) bool { return !decisive.Has(key) })
	if len(annotations) == 0 {
		o.SetAnnotations(nil)
	}
}

// Slim removes fields that do not affect decisions or may be confidential: environments,
// commands, arguments, probes, termination messages, annotations, and the parameters of devices and
// volumes readable only by their drivers. It modifies the object. It lists the removed fields by
// name, so a kind added to recordings requires a review of its fields.
func Slim(object metav1.Object) {
	slimAnnotations(object)
	switch o := object.(type) {
	case *v1.Node:
		return // keep the managed fields, which show when the taints were added
	// Volumes keep their names, sizes, classes and node affinity.
	case *v1.PersistentVolume:
		if o.Spec.CSI != nil {
			o.Spec.CSI.VolumeAttributes = nil
		}
		if o.Spec.FlexVolume != nil {
			o.Spec.FlexVolume.Options = nil
		}
	case *storagev1.StorageClass:
		o.Parameters = nil
	case *resourcev1.DeviceClass:
		for i := range o.Spec.Config {
			slimOpaque(o.Spec.Config[i].Opaque)
		}
	// Keep the allocated devices, but not their configuration.
	case *resourcev1.ResourceClaim:
		slimClaim(&o.Spec)
		if a := o.Status.Allocation; a != nil {
			for i := range a.Devices.Config {
				slimOpaque(a.Devices.Config[i].Opaque)
			}
		}
		// Drivers may write anything to the field Data.
		for i := range o.Status.Devices {
			o.Status.Devices[i].Data = nil
		}
	case *resourcev1.ResourceClaimTemplate:
		slimClaim(&o.Spec.Spec)
	case *v1.Pod:
		slimSpec(&o.Spec)
		o.Status.EphemeralContainerStatuses = nil
		for _, list := range [][]v1.ContainerStatus{o.Status.InitContainerStatuses, o.Status.ContainerStatuses} {
			for i := range list {
				// Messages of containers may contain anything. Keep restart counts, since scaling
				// down depends on them.
				list[i].State, list[i].LastTerminationState = v1.ContainerState{}, v1.ContainerState{}
			}
		}
	default:
		if l := workload.Of(object); l != nil {
			slimAnnotations(l.Template)
			slimSpec(&l.Template.Spec)
		}
	}
	// Managed fields are large, and except for nodes they do not affect decisions.
	object.SetManagedFields(nil)
	switch object.(type) {
	case *v1.Pod, *resourcev1.ResourceClaim: // finalizers of these kinds matter
	default:
		object.SetFinalizers(nil)
	}
}

// slimFiles removes the list of files from a volume: it does not affect any result, and a template
// may have megabytes of them, copied to each of its pods. The names of ConfigMaps and Secrets stay.
func slimFiles(volume *v1.Volume) {
	if projected := volume.Projected; projected != nil {
		projected.Sources = nil
	}
	if files := volume.ConfigMap; files != nil {
		files.Items = nil
	}
	if files := volume.Secret; files != nil {
		files.Items = nil
	}
	if files := volume.DownwardAPI; files != nil {
		files.Items = nil
	}
}

// slimSpec removes the fields of a pod's spec that do not affect its placement, such as commands
// and environments.
func slimSpec(spec *v1.PodSpec) {
	for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			c := &list[i]
			// All of these may contain passwords.
			c.Env, c.EnvFrom, c.Command, c.Args, c.Lifecycle = nil, nil, nil, nil, nil
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe = nil, nil, nil
		}
	}
	for i := range spec.Volumes {
		slimFiles(&spec.Volumes[i])
		// Keep the driver: it limits the number of such volumes on a node.
		if csi := spec.Volumes[i].CSI; csi != nil {
			csi.VolumeAttributes = nil
		}
		if flex := spec.Volumes[i].FlexVolume; flex != nil {
			flex.Options = nil
		}
	}
	// None of these has requests or otherwise affects the pod's placement.
	spec.EphemeralContainers, spec.ImagePullSecrets, spec.HostAliases, spec.DNSConfig = nil, nil, nil, nil
}

// slimClaim removes fields readable only by device drivers.
func slimClaim(spec *resourcev1.ResourceClaimSpec) {
	for i := range spec.Devices.Config {
		slimOpaque(spec.Devices.Config[i].Opaque)
	}
}

// slimOpaque removes fields readable only by a device driver.
func slimOpaque(o *resourcev1.OpaqueDeviceConfiguration) {
	if o != nil {
		// The API requires some JSON.
		o.Parameters.Raw = []byte("{}")
	}
}
