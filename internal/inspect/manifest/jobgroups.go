// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"hash/fnv"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/dump"
)

// Emulation of the Job controller with the feature gate WorkloadWithJob. For a Job requesting a
// gang, the controller creates a Workload, and from the Workload a PodGroup, to which the Job's
// pods refer. Objects of the input are used if the Job controls them, but not if it controls
// several of a kind. Objects created by users for the Job are ignored.
//
//	Job train (parallelism 4, gang) -> Workload train-<hash> -> PodGroup ...-<hash>, minCount 4 -> 4 pods

// groupOf returns the name of a job's pod group. It creates the group for a new job if the
// controller would. It returns "" for jobs with individually scheduled pods: the controller creates
// groups for these jobs as well, but without effect.
func (e *expansion) groupOf(job *batchv1.Job, pods []*v1.Pod) string {
	if !e.set.JobGroups || gangOf(job) == nil || job.Spec.Template.Spec.SchedulingGroup != nil || metav1.GetControllerOf(job) != nil {
		return ""
	}
	// Existing pods cannot join a group; the controller continues without one.
	fresh := len(pods) == 0 && !hasBegun(job)
	workload := e.workloadOf(job, fresh)
	// A Workload modified by another party differs from the Workload expected by the controller,
	// which then ignores the Job.
	if workload == nil || len(workload.Spec.PodGroupTemplates) != 1 {
		return ""
	}

	var own []*schedulingv1beta1.PodGroup
	for _, g := range e.set.PodGroups {
		if ref := g.Spec.WorkloadRef; g.Namespace == job.Namespace && ref != nil && ref.WorkloadName == workload.Name &&
			metav1.IsControlledBy(g, job) {
			own = append(own, g)
		}
	}

	switch {
	// The group exists already.
	case len(own) == 1:
		return own[0].Name
	case len(own) > 1 || !fresh:
		return ""
	}

	// The group copies the template's scheduling fields, because the template, unlike the group,
	// may change later.
	template := &workload.Spec.PodGroupTemplates[0]
	group := &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: job.Namespace, Name: groupName(workload.Name, template.Name), CreationTimestamp: job.CreationTimestamp,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))},
		},
		Spec: schedulingv1beta1.PodGroupSpec{
			WorkloadRef:      &schedulingv1beta1.WorkloadReference{WorkloadName: workload.Name, TemplateName: template.Name},
			SchedulingPolicy: template.SchedulingPolicy, SchedulingConstraints: template.SchedulingConstraints,
			ResourceClaims: template.ResourceClaims, DisruptionMode: template.DisruptionMode,
			PriorityClassName: template.PriorityClassName, Priority: template.Priority,
		},
	}

	// The pods refer to the group by its name only, but the scheduler expects objects with UIDs.
	group.UID = uidOf("PodGroup", group)
	e.set.PodGroups = append(e.set.PodGroups, group)
	return group.Name
}

// workloadOf returns the job's Workload, or nil. It creates one only for a fresh job, which has not
// begun.
func (e *expansion) workloadOf(job *batchv1.Job, fresh bool) *schedulingv1beta1.Workload {
	var own []*schedulingv1beta1.Workload
	for _, w := range e.set.Workloads {
		if ref := w.Spec.ControllerRef; w.Namespace == job.Namespace && ref != nil && ref.Kind == "Job" &&
			ref.APIGroup == batchv1.GroupName && ref.Name == job.Name && metav1.IsControlledBy(w, job) {
			own = append(own, w)
		}
	}

	switch {
	case len(own) == 1:
		return own[0]
	case len(own) > 1 || !fresh:
		return nil
	}

	workload := &schedulingv1beta1.Workload{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: job.Namespace, Name: workloadName(job),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, batchv1.SchemeGroupVersion.WithKind("Job"))},
		},
		Spec: schedulingv1beta1.WorkloadSpec{
			ControllerRef:     &schedulingv1beta1.TypedLocalObjectReference{APIGroup: batchv1.GroupName, Kind: "Job", Name: job.Name},
			PodGroupTemplates: []schedulingv1beta1.PodGroupTemplate{templateOf(job)},
		},
	}

	workload.UID = uidOf("Workload", workload)
	e.set.Workloads = append(e.set.Workloads, workload)
	return workload
}

// gangOf returns the gang requested by a job, or nil for a job with the basic policy or without a
// policy.
func gangOf(job *batchv1.Job) *schedulingv1alpha3.WorkloadPodGroupGangSchedulingPolicy {
	if s := job.Spec.Scheduling; s != nil && s.SchedulingPolicy != nil {
		return s.SchedulingPolicy.Gang
	}
	return nil
}

// templateOf returns the pod group template of a job with a gang. The default size is the job's
// parallelism.
func templateOf(job *batchv1.Job) schedulingv1beta1.PodGroupTemplate {
	count := max(1, *job.Spec.Parallelism)
	if asked := gangOf(job).MinCount; asked != nil {
		count = *asked
	}

	t := schedulingv1beta1.PodGroupTemplate{
		Name:             job.Name + "-pgt-0",
		SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: count}},
		// The gang preempts with the priority of its pods.
		PriorityClassName: job.Spec.Template.Spec.PriorityClassName,
	}

	if constraints := job.Spec.Scheduling.SchedulingConstraints; constraints != nil {
		t.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{}
		for _, c := range constraints.Topology {
			t.SchedulingConstraints.Topology = append(t.SchedulingConstraints.Topology, schedulingv1beta1.TopologyConstraint{Key: c.Key})
		}
	}

	// The pods share these claims if they refer to the same claims.
	for _, c := range job.Spec.Scheduling.ResourceClaims {
		t.ResourceClaims = append(t.ResourceClaims, schedulingv1beta1.PodGroupResourceClaim(c))
	}

	// Preemption then removes the whole gang or none of its pods.
	if mode := job.Spec.Scheduling.DisruptionMode; mode != nil && mode.All != nil {
		t.DisruptionMode = &schedulingv1beta1.DisruptionMode{All: &schedulingv1beta1.AllDisruptionMode{}}
	}
	return t
}

// hasBegun reports whether the controller may have created pods for the job before, or has
// suspended it.
func hasBegun(job *batchv1.Job) bool {
	// Pods may have been created without a group.
	return job.Status.StartTime != nil || job.Status.Succeeded != 0 || job.Status.Failed != 0 ||
		slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == batchv1.JobSuspended })
}

// workloadName generates the name of a job's Workload like the Job controller: the job's name,
// truncated if necessary, and a hash.
func workloadName(job *batchv1.Job) string {
	sum := fnv.New32a()
	fmt.Fprintf(sum, "%v", dump.ForHash(job.UID))
	hash := rand.SafeEncodeString(fmt.Sprint(sum.Sum32()))
	return fmt.Sprintf("%.*s-%s", validation.DNS1123SubdomainMaxLength-len(hash)-1, job.Name, hash)
}

// groupName generates the name of a PodGroup like the Job controller. It truncates the longer of
// the two parts if necessary.
func groupName(workload, template string) string {
	sum := fnv.New32a()
	sum.Write([]byte(workload + template))
	hash := rand.SafeEncodeString(fmt.Sprint(sum.Sum32()))
	room := validation.DNS1123SubdomainMaxLength - len(hash) - 2
	if half := room / 2; len(workload)+len(template) > room { // the longer part gets the room left by the shorter one
		switch {
		case len(workload) <= half:
			template = template[:room-len(workload)]
		case len(template) <= half:
			workload = workload[:room-len(template)]
		default:
			workload, template = workload[:room-half], template[:half]
		}
	}
	return workload + "-" + template + "-" + hash
}
