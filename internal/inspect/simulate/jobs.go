package simulate

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// failsJob reports whether the Job of a pod fails because the pod leaves. Its other pods are then
// deleted.
func (c *controllers) failsJob(d *Departure, owner *metav1.OwnerReference) bool {
	if owner.Kind != "Job" {
		return false
	}
	job, known := called(c.workloads.set.Jobs, Name{d.Namespace, owner.Name}).(*batchv1.Job)
	if !known {
		return false
	}
	if d.Reason = c.workloads.exhausted(job, d.object, d.Cause); d.Reason == "" {
		return false
	}
	c.report.tell(Event{Kind: "JobFailed", Message: fmt.Sprintf("job %s/%s: %s", job.Namespace, job.Name, d.Reason)})
	l := workloadOf(job)
	c.workloads.failed[controllerName(l.kind, job.Namespace, job.Name)] = true
	for _, p := range c.podsOf(l) {
		c.drop(p, ByJobFailure, l.ref())
	}
	return true
}

// exhausted counts a pod that leaves as a failure of its Job, as the Job controller does, and
// returns why the Job fails, or "". Exit codes are not known, so that rules about them do not
// apply. Failures of single indexes are not counted.
func (w *workloads) exhausted(job *batchv1.Job, p *v1.Pod, cause Cause) (why string) {
	if number, action := ruleFor(job, disrupted(p, cause)); action != batchv1.PodFailurePolicyActionCount {
		if action == batchv1.PodFailurePolicyActionFailJob {
			return fmt.Sprintf("rule %d of its podFailurePolicy", number)
		}
		return ""
	}
	if job.Spec.BackoffLimitPerIndex != nil {
		return ""
	}
	name := controllerName("Job", job.Namespace, job.Name)
	w.failures[name]++
	limit := ptr.Deref(job.Spec.BackoffLimit, defaultBackoffLimit)
	if int64(job.Status.Failed)+w.failures[name] <= int64(limit) {
		return ""
	}
	return fmt.Sprintf("backoffLimit %d", limit)
}

// defaultBackoffLimit is the API's.
const defaultBackoffLimit = 6

// ruleFor returns the number and the action of the first rule of the Job's podFailurePolicy that
// applies to a failed pod. Without one, failures count.
func ruleFor(job *batchv1.Job, disrupted bool) (number int, action batchv1.PodFailurePolicyAction) {
	if job.Spec.PodFailurePolicy != nil && disrupted {
		for i, rule := range job.Spec.PodFailurePolicy.Rules {
			if slices.ContainsFunc(rule.OnPodConditions, isOfDisruption) {
				return i + 1, rule.Action
			}
		}
	}
	return 0, batchv1.PodFailurePolicyActionCount
}

func isOfDisruption(p batchv1.PodFailurePolicyOnPodConditionsPattern) bool {
	return p.Type == v1.DisruptionTarget && (p.Status == "" || p.Status == v1.ConditionTrue)
}

// disrupted reports whether the pod has the condition DisruptionTarget: whatever removes pods sets
// it, but not a user who deletes one.
func disrupted(p *v1.Pod, cause Cause) bool {
	if cause != ByDeletion && cause != ByTermination {
		return true
	}
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue
	})
}

// awaitsFailure reports whether a Job replaces its pods only once they have ended.
func awaitsFailure(job *batchv1.Job) bool {
	return job.Spec.PodFailurePolicy != nil || ptr.Deref(job.Spec.PodReplacementPolicy, "") == batchv1.Failed
}
