package simulate

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// failsJob counts a pod that leaves as a failure of its Job, and reports whether the Job fails
// because of it, or the pod's index of the Job. The other pods of a Job that fails are deleted.
func (c *controllers) failsJob(d *Departure, owner *metav1.OwnerReference) bool {
	job := c.workloads.jobOf(d.object, owner)
	if job == nil {
		return false
	}
	if d.Fate, d.Reason = c.workloads.countFailure(job, d.object, d.Cause); d.Reason == "" {
		return false
	}
	if d.Fate == IndexFails {
		index := d.object.Annotations[batchv1.JobCompletionIndexAnnotation]
		c.report.addEvent(Event{Kind: "IndexFailed", Message: fmt.Sprintf("index %s of job %s/%s: %s", index,
			job.Namespace, job.Name, d.Reason)})
		return true
	}

	c.report.addEvent(Event{Kind: "JobFailed", Message: fmt.Sprintf("job %s/%s: %s", job.Namespace, job.Name, d.Reason)})
	l := workloadOf(job)
	c.workloads.failed[controllerName(l.kind, job.Namespace, job.Name)] = true
	for _, p := range c.podsOf(l) {
		c.dropPod(p, ByJobFailure, l.ref())
	}
	return true
}

// jobOf returns the Job that controls a pod, or nil.
func (w *workloads) jobOf(object *v1.Pod, owner *metav1.OwnerReference) *batchv1.Job {
	if owner == nil || owner.Kind != "Job" {
		return nil
	}
	job, _ := findByName(w.set.Jobs, Name{object.Namespace, owner.Name}).(*batchv1.Job)
	return job
}

// goOn makes the pods that a Job makes in place of one whose index has failed: those of indexes
// that no pod has worked on yet. A Job that replaces its pods once they have ended waits for that
// here, too.
func (c *controllers) goOn(d *Departure) {
	owner := metav1.GetControllerOfNoCopy(d.object)
	job := c.workloads.jobOf(d.object, owner)
	if job == nil || !c.workloads.isWanted(d.object) {
		return
	}
	var pods []*v1.Pod
	for _, p := range c.pods.named {
		ref := metav1.GetControllerOfNoCopy(p.object)
		counts := p.object.DeletionTimestamp == nil || awaitsFailure(job)
		if counts && ref != nil && ref.Kind == owner.Kind && ref.Name == owner.Name && p.object.Namespace == job.Namespace {
			pods = append(pods, p.object)
		}
	}
	for _, index := range manifest.NextIndexes(job, pods) {
		next := d.object.DeepCopy()
		manifest.SetIndex(next, job.Name, index)
		delete(next.Annotations, batchv1.JobIndexFailureCountAnnotation) // which is of the other index
		c.makeAgain(next)
	}
}

// countFailure counts a pod that leaves as a failure of its Job, as the Job controller does. If the
// Job fails, or the pod's index, it returns which of the two and why. Exit codes are not known, so
// that rules about them do not apply.
func (w *workloads) countFailure(job *batchv1.Job, p *v1.Pod, cause Cause) (fate Fate, why string) {
	number, action := ruleFor(job, isDisrupted(p, cause))
	rule := fmt.Sprintf("rule %d of its podFailurePolicy", number)
	switch action {
	case batchv1.PodFailurePolicyActionFailJob:
		return Fails, rule
	case batchv1.PodFailurePolicyActionIgnore:
		return "", ""
	}
	name := controllerName("Job", job.Namespace, job.Name)
	w.failures[name]++
	if limit := backoffLimit(job); int64(job.Status.Failed)+w.failures[name] > int64(limit) {
		return Fails, fmt.Sprintf("backoffLimit %d", limit)
	}
	index, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	if job.Spec.BackoffLimitPerIndex == nil || err != nil {
		return "", ""
	}
	// Pods are made again with the annotations that they had: what failed since is counted here.
	name += "/" + strconv.Itoa(index)
	before := w.failures[name]
	w.failures[name]++
	if counted, err := strconv.ParseInt(p.Annotations[batchv1.JobIndexFailureCountAnnotation], 10, 32); err == nil && counted > 0 {
		before += counted
	}
	switch {
	case action == batchv1.PodFailurePolicyActionFailIndex:
		return w.failIndex(job, index, rule)
	case before >= int64(*job.Spec.BackoffLimitPerIndex):
		return w.failIndex(job, index, fmt.Sprintf("backoffLimitPerIndex %d", *job.Spec.BackoffLimitPerIndex))
	}
	return "", ""
}

// failIndex records that an index of a Job has failed, and reports whether the Job fails because of
// that.
func (w *workloads) failIndex(job *batchv1.Job, index int, why string) (Fate, string) {
	job = job.DeepCopy()
	job.Status.FailedIndexes = ptr.To(strings.TrimPrefix(ptr.Deref(job.Status.FailedIndexes, "")+","+strconv.Itoa(index), ","))
	w.keepWorkload(job)
	failed, all := manifest.CountIndexes(*job.Status.FailedIndexes), int(ptr.Deref(job.Spec.Completions, 1))
	switch most := job.Spec.MaxFailedIndexes; {
	case most != nil && failed > int(*most):
		return Fails, fmt.Sprintf("maxFailedIndexes %d", *most)
	case failed+manifest.CountIndexes(job.Status.CompletedIndexes) >= all:
		return Fails, fmt.Sprintf("%d of its %d indexes failed, and none is left", failed, all)
	}
	return IndexFails, why
}

// backoffLimit is how many failures a Job survives, with the API's default.
func backoffLimit(job *batchv1.Job) int32 {
	if job.Spec.BackoffLimitPerIndex != nil {
		return ptr.Deref(job.Spec.BackoffLimit, math.MaxInt32)
	}
	return ptr.Deref(job.Spec.BackoffLimit, 6)
}

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

// isDisrupted reports whether the pod has the condition DisruptionTarget: whatever removes pods
// sets it, but not a user who deletes one.
func isDisrupted(p *v1.Pod, cause Cause) bool {
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
