package record

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slim takes out of an object what decisions do not depend on and what may be confidential: environments, commands, arguments,
// probes, and what kubectl apply keeps. The object is changed.
func slim(object metav1.Object) {
	if annotations := object.GetAnnotations(); annotations[v1.LastAppliedConfigAnnotation] != "" {
		delete(annotations, v1.LastAppliedConfigAnnotation)
	}
	switch o := object.(type) {
	case *v1.Node:
		return // its managed fields tell since when it has its taints
	case *v1.Pod:
		slimSpec(&o.Spec)
		for i := range o.Status.ContainerStatuses {
			s := &o.Status.ContainerStatuses[i]
			s.State, s.LastTerminationState = v1.ContainerState{}, v1.ContainerState{}
		}
	case *appsv1.Deployment:
		slimSpec(&o.Spec.Template.Spec)
	case *appsv1.ReplicaSet:
		slimSpec(&o.Spec.Template.Spec)
	case *appsv1.StatefulSet:
		slimSpec(&o.Spec.Template.Spec)
	case *appsv1.DaemonSet:
		slimSpec(&o.Spec.Template.Spec)
	case *batchv1.Job:
		slimSpec(&o.Spec.Template.Spec)
	case *v1.ReplicationController:
		if o.Spec.Template != nil {
			slimSpec(&o.Spec.Template.Spec)
		}
	}
	object.SetManagedFields(nil)
}

func slimSpec(spec *v1.PodSpec) {
	for _, list := range [][]v1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			c := &list[i]
			c.Env, c.EnvFrom, c.Command, c.Args, c.Lifecycle = nil, nil, nil, nil, nil
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe = nil, nil, nil
		}
	}
	spec.EphemeralContainers, spec.ImagePullSecrets, spec.HostAliases, spec.DNSConfig = nil, nil, nil, nil
}
