package record

import (
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/provision"
	"github.com/berth-k8s/berth/internal/node/pressure"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// What of an object is recorded. A recording is made to be handed on, to a colleague
// or with a bug report, so what may be confidential is never written.

// decisive are the annotations that decisions and answers depend on. A recording has no others,
// since they can contain anything.
var decisive = annotations(
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
)

// annotations makes a set of lists of keys.
func annotations(lists ...[]string) map[string]bool {
	keys := map[string]bool{}
	for _, key := range slices.Concat(lists...) {
		keys[key] = true
	}
	return keys
}

// slimAnnotations removes all annotations but the decisive ones.
func slimAnnotations(o metav1.Object) {
	// Above all, kubectl's last-applied-configuration goes, which has the whole
	// object in it, environment included.
	annotations := o.GetAnnotations()
	for key := range annotations {
		if !decisive[key] {
			delete(annotations, key)
		}
	}
	if len(annotations) == 0 {
		o.SetAnnotations(nil)
	}
}

// slimTemplate does with a template what slimObject does with a pod.
func slimTemplate(t *v1.PodTemplateSpec) {
	slimAnnotations(t)
	slimSpec(&t.Spec)
}

// slimObject removes from an object what decisions do not depend on and what may be
// confidential: environments, commands, arguments, probes, termination messages,
// annotations, and the parameters of devices and volumes that only their drivers can
// read. It changes the object. What is removed is listed here by name: whoever adds a
// kind to a recording has to look at its fields.
func slimObject(object metav1.Object) {
	slimAnnotations(object)
	switch o := object.(type) {
	case *v1.Node:
		return // its managed fields tell since when it has its taints
	// Of volumes, their names, sizes, classes and reach stay.
	case *v1.PersistentVolume:
		slimVolume(&o.Spec)
	case *storagev1.StorageClass:
		o.Parameters = nil
	case *resourcev1.DeviceClass:
		for i := range o.Spec.Config {
			slimOpaque(o.Spec.Config[i].Opaque)
		}
	// What devices were allocated stays; how they are configured goes.
	case *resourcev1.ResourceClaim:
		slimClaim(&o.Spec)
		if a := o.Status.Allocation; a != nil {
			for i := range a.Devices.Config {
				slimOpaque(a.Devices.Config[i].Opaque)
			}
		}
		// Drivers may write anything there.
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
				// Messages of containers may be anything. Restart counts stay: scaling
				// down depends on them.
				list[i].State, list[i].LastTerminationState = v1.ContainerState{}, v1.ContainerState{}
			}
		}
	case *appsv1.Deployment:
		slimTemplate(&o.Spec.Template)
	case *appsv1.ReplicaSet:
		slimTemplate(&o.Spec.Template)
	case *appsv1.StatefulSet:
		slimTemplate(&o.Spec.Template)
	case *appsv1.DaemonSet:
		slimTemplate(&o.Spec.Template)
	case *batchv1.Job:
		slimTemplate(&o.Spec.Template)
	case *v1.ReplicationController:
		if o.Spec.Template != nil {
			slimTemplate(o.Spec.Template)
		}
	}
	// They are large, and no decision depends on them, apart from those of nodes.
	object.SetManagedFields(nil)
	switch object.(type) {
	case *v1.Pod, *resourcev1.ResourceClaim: // whether one holds them back matters
	default:
		object.SetFinalizers(nil)
	}
}

// slimFiles drops which files a volume has: no question asks, and there may be
// megabytes of them in a template, of which each pod that is made from it has a copy.
// The names of ConfigMaps and Secrets stay.
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

// slimSpec removes from a pod's spec what runs in the pod and how.
func slimSpec(spec *v1.PodSpec) {
	for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			c := &list[i]
			// Passwords are found in all of these.
			c.Env, c.EnvFrom, c.Command, c.Args, c.Lifecycle = nil, nil, nil, nil, nil
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe = nil, nil, nil
		}
	}
	for i := range spec.Volumes {
		slimFiles(&spec.Volumes[i])
		// The driver stays: it decides how many such volumes a node can have.
		if csi := spec.Volumes[i].CSI; csi != nil {
			csi.VolumeAttributes = nil
		}
		if flex := spec.Volumes[i].FlexVolume; flex != nil {
			flex.Options = nil
		}
	}
	// None of these has requests, or any other say in where the pod goes.
	spec.EphemeralContainers, spec.ImagePullSecrets, spec.HostAliases, spec.DNSConfig = nil, nil, nil, nil
}

// slimClaim removes what only device drivers can read.
func slimClaim(spec *resourcev1.ResourceClaimSpec) {
	for i := range spec.Devices.Config {
		slimOpaque(spec.Devices.Config[i].Opaque)
	}
}

// slimOpaque removes what only a device driver can read.
func slimOpaque(o *resourcev1.OpaqueDeviceConfiguration) {
	if o != nil {
		// Empty JSON instead of nothing: the API requires some.
		o.Parameters.Raw = []byte("{}")
	}
}

// slimVolume removes what only a volume driver can read. The driver and the handle
// stay: they count against limits.
func slimVolume(spec *v1.PersistentVolumeSpec) {
	if spec.CSI != nil {
		spec.CSI.VolumeAttributes = nil
	}
	if spec.FlexVolume != nil {
		spec.FlexVolume.Options = nil
	}
}
