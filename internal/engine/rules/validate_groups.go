// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidatePodGroup checks the parts of a new pod group that affect scheduling: policy, topology,
// disruption mode and priority.
func ValidatePodGroup(g *schedulingv1beta1.PodGroup) field.ErrorList {
	spec := field.NewPath("spec")
	errs := append(ValidateMeta(&g.ObjectMeta, true), validateGroupPolicy(&g.Spec.SchedulingPolicy, spec.Child("schedulingPolicy"))...)
	// The constraints of groups and of composites are different API types with the same key.
	var keys []string
	if constraints := g.Spec.SchedulingConstraints; constraints != nil {
		keys = Mapped(constraints.Topology, func(t schedulingv1beta1.TopologyConstraint) string { return t.Key })
	}
	mode := g.Spec.DisruptionMode
	return append(errs, validateGroupRest(keys, mode == nil || (mode.Single == nil) != (mode.All == nil), g.Spec.Priority)...)
}

// ValidateCompositePodGroup checks the parts of a new group of pod groups that affect scheduling.
// It does not check that the parent exists: parents and children may be created in any order.
func ValidateCompositePodGroup(g *schedulingv1alpha3.CompositePodGroup) field.ErrorList {
	spec := field.NewPath("spec")
	errs := ValidateMeta(&g.ObjectMeta, true)
	path := spec.Child("schedulingPolicy")
	switch p := g.Spec.SchedulingPolicy; {
	case p.Basic == nil && p.Gang == nil:
		errs = append(errs, field.Required(path, "must be basic or gang"))
	case p.Basic != nil && p.Gang != nil:
		errs = append(errs, field.Invalid(path, "basic, gang", "must be one of basic and gang"))
	// A gang without groups would be placed without placing any pod.
	case p.Gang != nil && p.Gang.MinGroupCount < 1:
		errs = append(errs, field.Invalid(path.Child("gang", "minGroupCount"), p.Gang.MinGroupCount, "must be greater than or equal to 1"))
	}

	var keys []string
	if constraints := g.Spec.SchedulingConstraints; constraints != nil {
		keys = Mapped(constraints.Topology, func(t schedulingv1alpha3.TopologyConstraint) string { return t.Key })
	}
	mode := g.Spec.DisruptionMode
	return append(errs, validateGroupRest(keys, mode == nil || (mode.Single == nil) != (mode.All == nil), g.Spec.Priority)...)
}

// validateGroupRest checks what groups and composites share. At most one topology key is valid,
// since all pods share one domain. The disruption mode is a union: exactly one member must be set;
// without a mode the pods are disrupted one by one. Some priorities are reserved for the system.
func validateGroupRest(keys []string, mode bool, priority *int32) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	path := spec.Child("schedulingConstraints", "topology")
	if len(keys) > 1 {
		errs = append(errs, field.TooMany(path, len(keys), 1))
	}
	for i, key := range keys {
		if key == "" {
			errs = append(errs, field.Required(path.Index(i).Child("key"), ""))
		}
	}
	if !mode {
		errs = append(errs, field.Invalid(spec.Child("disruptionMode"), "", "must be one of single and all"))
	}
	if priority != nil && *priority > HighestUserPriority {
		errs = append(errs, field.Invalid(spec.Child("priority"), *priority, fmt.Sprintf("must be at most %d", HighestUserPriority)))
	}
	return errs
}

// ValidateWorkload checks a workload on creation: it must have templates of either pod groups or
// composite groups, with different names. It does not check the contents of composite templates.
func ValidateWorkload(w *schedulingv1beta1.Workload) field.ErrorList {
	errs := ValidateMeta(&w.ObjectMeta, true)
	path, names := field.NewPath("spec", "podGroupTemplates"), map[string]bool{}
	switch count, composite := len(w.Spec.PodGroupTemplates), len(w.Spec.CompositePodGroupTemplates); {
	case count > 0 && composite > 0:
		errs = append(errs, field.Invalid(path, count, "must not be specified when compositePodGroupTemplates is"))
	case count == 0 && composite == 0:
		errs = append(errs, field.Required(path, "must have at least one item"))
	// The bound is the API's.
	case count > schedulingv1beta1.WorkloadMaxPodGroupTemplates:
		errs = append(errs, field.TooMany(path, count, schedulingv1beta1.WorkloadMaxPodGroupTemplates))
	}

	for i := range w.Spec.PodGroupTemplates {
		t := &w.Spec.PodGroupTemplates[i]
		if names[t.Name] {
			errs = append(errs, field.Duplicate(path.Index(i).Child("name"), t.Name))
		}
		names[t.Name] = true
		errs = append(errs, validateGroupPolicy(&t.SchedulingPolicy, path.Index(i).Child("schedulingPolicy"))...)
	}

	return errs
}

// validateGroupPolicy checks that a group is either basic or a gang, and that a gang has pods.
func validateGroupPolicy(p *schedulingv1beta1.PodGroupSchedulingPolicy, path *field.Path) field.ErrorList {
	switch {
	case p.Basic == nil && p.Gang == nil:
		return field.ErrorList{field.Required(path, "must be basic or gang")}
	case p.Basic != nil && p.Gang != nil:
		return field.ErrorList{field.Invalid(path, "basic, gang", "must be one of basic and gang")}
	case p.Gang != nil && p.Gang.MinCount < 1:
		return field.ErrorList{field.Invalid(path.Child("gang", "minCount"), p.Gang.MinCount, "must be greater than or equal to 1")}
	}
	return nil
}

// immutable lists the paths of the fields fixed at creation, by the type of the object. Functions
// below check fields that may change under some condition.
var immutable = map[reflect.Type]string{
	reflect.TypeFor[appsv1.Deployment]():  "spec.selector",
	reflect.TypeFor[appsv1.ReplicaSet]():  "spec.selector",
	reflect.TypeFor[appsv1.DaemonSet]():   "spec.selector",
	reflect.TypeFor[appsv1.StatefulSet](): "spec.selector spec.volumeClaimTemplates spec.serviceName spec.podManagementPolicy",
	reflect.TypeFor[batchv1.Job](): "spec.selector spec.completionMode spec.podFailurePolicy spec.backoffLimitPerIndex spec.managedBy " +
		"spec.successPolicy",

	reflect.TypeFor[v1.ResourceQuota]():           "spec.scopes",
	reflect.TypeFor[schedulingv1.PriorityClass](): "preemptionPolicy",
	reflect.TypeFor[nodev1.RuntimeClass]():        "handler",

	reflect.TypeFor[storagev1.StorageClass]():       "parameters provisioner reclaimPolicy volumeBindingMode",
	reflect.TypeFor[storagev1.CSIDriver]():          "spec.attachRequired spec.volumeLifecycleModes",
	reflect.TypeFor[storagev1.CSIStorageCapacity](): "nodeTopology storageClassName",
	reflect.TypeFor[storagev1.VolumeAttachment]():   "spec",

	reflect.TypeFor[resourcev1.ResourceClaim]():         "spec",
	reflect.TypeFor[resourcev1.ResourceClaimTemplate](): "spec",
	reflect.TypeFor[resourcev1.ResourceSlice]():         "spec.pool.name spec.driver spec.nodeName",

	reflect.TypeFor[schedulingv1beta1.Workload](): "spec.controllerRef",
	reflect.TypeFor[schedulingv1beta1.PodGroup](): "spec.parentCompositePodGroupName spec.workloadRef spec.schedulingConstraints " +
		"spec.resourceClaims spec.disruptionMode spec.priorityClassName spec.priority spec.preemptionPolicy",
	reflect.TypeFor[schedulingv1alpha3.CompositePodGroup](): "spec.parentCompositePodGroupName spec.workloadRef spec.schedulingConstraints " +
		"spec.disruptionMode spec.priorityClassName spec.priority spec.preemptionPolicy",
}

// ValidateUpdate checks, like the API server after defaulting, that an update changes no immutable
// field. Both objects must be of the same type.
func ValidateUpdate(object, was metav1.Object) (errs field.ErrorList) {
	now, before := reflect.ValueOf(object).Elem(), reflect.ValueOf(was).Elem()
	for _, path := range strings.Fields(immutable[now.Type()]) {
		names := strings.Split(path, ".")
		errs = append(errs, apivalidation.ValidateImmutableField(fieldAt(now, names), fieldAt(before, names), field.NewPath(names[0], names[1:]...))...)
	}

	spec := field.NewPath("spec")
	switch o := object.(type) {
	case *v1.Pod:
		errs = append(errs, validatePodUpdate(&o.Spec, &was.(*v1.Pod).Spec, spec)...)
	case *batchv1.Job:
		errs = append(errs, validateJobUpdate(&o.Spec, was.(*batchv1.Job), spec)...)
	case *v1.PersistentVolumeClaim:
		errs = append(errs, validateClaimUpdate(&o.Spec, was.(*v1.PersistentVolumeClaim), spec)...)
	case *v1.PersistentVolume:
		is := &was.(*v1.PersistentVolume).Spec
		if !equality.Semantic.DeepEqual(o.Spec.PersistentVolumeSource, is.PersistentVolumeSource) {
			errs = append(errs, field.Forbidden(spec.Child("persistentvolumesource"), "spec.persistentvolumesource is immutable after creation"))
		}
		errs = append(errs, apivalidation.ValidateImmutableField(o.Spec.VolumeMode, is.VolumeMode, field.NewPath("volumeMode"))...)
	case *v1.Node:
		if is := was.(*v1.Node).Spec.ProviderID; is != "" && is != o.Spec.ProviderID {
			errs = append(errs, field.Invalid(spec.Child("providerID"), nil, "field cannot be modified once set"))
		}
	case *schedulingv1.PriorityClass:
		if o.Value != was.(*schedulingv1.PriorityClass).Value {
			errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
		}
	}
	return errs
}

// fieldAt returns the value of the field at a path of JSON names, which differ from the Go names
// only in case.
func fieldAt(v reflect.Value, names []string) any {
	for _, name := range names {
		v = v.FieldByNameFunc(func(s string) bool { return strings.EqualFold(s, name) })
	}
	return v.Interface()
}

// validatePodUpdate permits changes of images, a new or shorter active deadline, additional
// tolerations, fewer scheduling gates and, while there are gates, a narrower choice of nodes.
func validatePodUpdate(pod, was *v1.PodSpec, path *field.Path) (errs field.ErrorList) {
	spec := pod.DeepCopy()
	for _, list := range []struct {
		name     string
		now, was []v1.Container
	}{{"containers", spec.Containers, was.Containers}, {"initContainers", spec.InitContainers, was.InitContainers}} {
		if len(list.now) != len(list.was) {
			return field.ErrorList{field.Forbidden(path.Child(list.name), "pod updates may not add or remove containers")}
		}
		for i := range list.now {
			list.now[i].Image = list.was[i].Image
		}
	}

	switch now, limit := spec.ActiveDeadlineSeconds, was.ActiveDeadlineSeconds; {
	case limit == nil:
	case now == nil:
		errs = append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), now, "must not update from a positive integer to nil value"))
	case *now > *limit:
		return append(errs, field.Invalid(path.Child("activeDeadlineSeconds"), *now, "must be less than or equal to previous value"))
	}
	if slices.ContainsFunc(was.Tolerations, func(t v1.Toleration) bool { return !keepsToleration(spec.Tolerations, t) }) {
		errs = append(errs, field.Forbidden(path.Child("tolerations"), "existing toleration can not be modified except its tolerationSeconds"))
	}
	for i, gate := range spec.SchedulingGates {
		if !slices.Contains(was.SchedulingGates, gate) {
			errs = append(errs, field.Forbidden(path.Child("schedulingGates").Index(i).Child("name"),
				"only deletion is allowed, but found new scheduling gate '"+gate.Name+"'"))
		}
	}
	if len(was.SchedulingGates) > 0 {
		errs = append(errs, validateNodeChoice(spec, was, path)...)
		copyNodeChoice(spec, was)
	}

	if now, negative := spec.TerminationGracePeriodSeconds, was.TerminationGracePeriodSeconds; now != nil && *now == 1 &&
		negative != nil && *negative < 0 {
		spec.TerminationGracePeriodSeconds = negative
	}
	spec.ActiveDeadlineSeconds, spec.Tolerations, spec.SchedulingGates = was.ActiveDeadlineSeconds, was.Tolerations, was.SchedulingGates
	if !equality.Semantic.DeepEqual(spec, was) {
		errs = append(errs, field.Forbidden(path, "pod updates may not change fields other than "+
			"`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"+
			"`spec.tolerations` (only additions to existing tolerations),"+
			"`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"))
	}
	return errs
}

// keepsToleration reports whether a list has a toleration, with any tolerationSeconds.
func keepsToleration(list []v1.Toleration, t v1.Toleration) bool {
	return slices.ContainsFunc(list, func(other v1.Toleration) bool {
		other.TolerationSeconds = t.TolerationSeconds
		return other == t
	})
}

// validateNodeChoice permits only additional node labels and requirements for a gated pod.
func validateNodeChoice(spec, was *v1.PodSpec, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for key, value := range was.NodeSelector {
		if now, kept := spec.NodeSelector[key]; !kept || now != value {
			errs = append(errs, field.Invalid(path.Child("nodeSelector"), spec.NodeSelector,
				"only additions to spec.nodeSelector are allowed (no mutations or deletions)"))
			break
		}
	}

	terms, before := requiredTerms(spec.Affinity), requiredTerms(was.Affinity)
	path = path.Child("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
	if len(before) > 0 && len(before) != len(terms) {
		return append(errs, field.Invalid(path, terms, "no additions/deletions to non-empty NodeSelectorTerms list are allowed"))
	}
	for i, term := range before {
		empty := len(term.MatchExpressions)+len(term.MatchFields) == 0
		if empty && len(terms[i].MatchExpressions)+len(terms[i].MatchFields) > 0 ||
			!beginsWith(terms[i].MatchExpressions, term.MatchExpressions) || !beginsWith(terms[i].MatchFields, term.MatchFields) {
			errs = append(errs, field.Invalid(path.Index(i), terms[i], "only additions are allowed (no mutations or deletions)"))
		}
	}
	return errs
}

func beginsWith(list, first []v1.NodeSelectorRequirement) bool {
	return len(list) >= len(first) && equality.Semantic.DeepEqual(list[:len(first)], first)
}

func requiredTerms(a *v1.Affinity) []v1.NodeSelectorTerm {
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

// copyNodeChoice copies the node selector and the node affinity of another spec.
func copyNodeChoice(to, from *v1.PodSpec) {
	to.NodeSelector = from.NodeSelector
	if equality.Semantic.DeepEqual(podAffinityOf(to), podAffinityOf(from)) {
		to.Affinity = from.Affinity
	}
}

// podAffinityOf returns the affinity without node affinity, never nil.
func podAffinityOf(spec *v1.PodSpec) (a v1.Affinity) {
	if spec.Affinity != nil {
		a.PodAffinity, a.PodAntiAffinity = spec.Affinity.PodAffinity, spec.Affinity.PodAntiAffinity
	}
	return a
}

// validateJobUpdate permits changes of the completions of Indexed Jobs and, while a Job is
// suspended and has no pods, of its pods' resources and choice of nodes.
func validateJobUpdate(spec *batchv1.JobSpec, was *batchv1.Job, path *field.Path) (errs field.ErrorList) {
	indexed := spec.CompletionMode != nil && *spec.CompletionMode == batchv1.IndexedCompletion
	switch changed := !equality.Semantic.DeepEqual(spec.Completions, was.Spec.Completions); {
	case !indexed:
		errs = apivalidation.ValidateImmutableField(spec.Completions, was.Spec.Completions, path.Child("completions"))
	case changed && spec.Completions != nil && *spec.Completions != *spec.Parallelism:
		errs = append(errs, field.Invalid(path.Child("completions"), *spec.Completions, "can only be modified in tandem with spec.parallelism"))
	}

	now, before := spec.Template.DeepCopy(), was.Spec.Template
	suspended := slices.ContainsFunc(was.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobSuspended && c.Status == v1.ConditionTrue
	})
	if was.Spec.Suspend == nil || !*was.Spec.Suspend || was.Status.StartTime != nil && !suspended || was.Status.Active > 0 {
		return append(errs, apivalidation.ValidateImmutableField(now, &before, path.Child("template"))...)
	}
	copyNodeChoice(&now.Spec, &before.Spec)
	now.Spec.Tolerations, now.Spec.SchedulingGates = before.Spec.Tolerations, before.Spec.SchedulingGates
	for _, lists := range [][2][]v1.Container{{now.Spec.Containers, before.Spec.Containers}, {now.Spec.InitContainers, before.Spec.InitContainers}} {
		for i := range min(len(lists[0]), len(lists[1])) {
			if lists[0][i].Name == lists[1][i].Name {
				lists[0][i].Resources = lists[1][i].Resources
			}
		}
	}
	return append(errs, apivalidation.ValidateImmutableField(now.Spec, before.Spec, path.Child("template.spec"))...)
}

// validateClaimUpdate permits a larger request and another VolumeAttributesClass for bound claims.
// It also permits setting a volume or a storage class that is unset.
func validateClaimUpdate(claim *v1.PersistentVolumeClaimSpec, was *v1.PersistentVolumeClaim, path *field.Path) (errs field.ErrorList) {
	spec, before := claim.DeepCopy(), &was.Spec
	size, least := spec.Resources.Requests[v1.ResourceStorage], before.Resources.Requests[v1.ResourceStorage]
	if before.VolumeName == "" {
		spec.VolumeName = ""
	}
	if before.StorageClassName == nil && was.Annotations[v1.BetaStorageClassAnnotation] == "" {
		spec.StorageClassName = nil
	}

	if was.Status.Phase == v1.ClaimBound {
		spec.VolumeAttributesClassName = before.VolumeAttributesClassName
		if spec.Resources.Requests != nil {
			spec.Resources.Requests[v1.ResourceStorage] = least
		}
	}
	if !equality.Semantic.DeepEqual(spec, before) {
		errs = append(errs, field.Forbidden(path,
			"spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"))
	}
	if size.Cmp(least) < 0 && size.Cmp(was.Status.Capacity[v1.ResourceStorage]) <= 0 {
		errs = append(errs, field.Forbidden(path.Child("resources", "requests", "storage"), "field can not be less than status.capacity"))
	}
	return append(errs, apivalidation.ValidateImmutableField(spec.VolumeMode, before.VolumeMode, field.NewPath("volumeMode"))...)
}
