package simulate

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// failsJob counts a departing pod as a failure of its Job, and reports whether this fails the Job
// or the pod's index. If so, it sets the fate and reason of d, and the pod must not be replaced. It
// deletes the other pods of a failed Job.
func (c *controllers) failsJob(d *Departure) bool {
	job := c.workloads.table().JobOf(d.object)
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
	l := workload.Of(job)
	c.workloads.failed[l.Owner()] = true
	for _, p := range c.podsOf(l) {
		c.dropPod(p, ByJobFailure, l.Ref())
	}
	return true
}

// isReplaced reports whether the pod's Job, if any, would replace the pod.
func (w *workloads) isReplaced(object *v1.Pod) bool {
	job := w.table().JobOf(object)
	return job == nil || workload.Replaces(job)
}

// goOn replaces a pod of a failed index with pods of indexes not worked on yet. A Job that replaces
// its pods only after they have ended waits here as well. The new pods are copies of the old one
// with another index.
func (c *controllers) goOn(d *Departure) {
	job := c.workloads.table().JobOf(d.object)
	if job == nil || !c.workloads.isWanted(d.object) {
		return
	}
	var pods []*v1.Pod
	for _, p := range c.pods.named {
		// A terminating pod still holds its index if the Job waits for its end.
		counts := p.object.DeletionTimestamp == nil || workload.AwaitsFailure(job)
		if counts && rules.OwnerOf(p.object) == rules.OwnerOf(d.object) {
			pods = append(pods, p.object)
		}
	}
	for _, index := range workload.NextIndexes(job, pods) {
		next := d.object.DeepCopy()
		workload.SetIndex(next, job.Name, index)
		delete(next.Annotations, batchv1.JobIndexFailureCountAnnotation) // which is of the other index
		c.makeAgain(next)
	}
}

// failures counts the pods lost by a Job since the world began; the Job's status holds earlier
// ones. byIndex contains only indexes with failures.
type failures struct {
	all     int64
	byIndex map[int]int64
}

// failuresOf returns the Job's failure counters, for the caller to increment.
func (w *workloads) failuresOf(job *batchv1.Job) *failures {
	owner := workload.Of(job).Owner()
	if w.failures[owner] == nil {
		w.failures[owner] = &failures{byIndex: map[int]int64{}}
	}
	return w.failures[owner]
}

// countFailure counts a departing pod as a failure of its Job, like the Job controller. It returns
// whether the Job or the pod's index fails, and why; otherwise both results are empty. Exit codes
// are unknown, so rules about them do not apply.
//
//	podFailurePolicy rule: FailJob -> Fails; Ignore -> nothing counts; FailIndex -> see below
//	failures of the Job   > backoffLimit           -> Fails
//	failures of the index > backoffLimitPerIndex   -> IndexFails, or Fails after maxFailedIndexes
func (w *workloads) countFailure(job *batchv1.Job, p *v1.Pod, cause Cause) (fate Fate, why string) {
	number, action := ruleFor(job, isDisrupted(p, cause))
	rule := fmt.Sprintf("rule %d of its podFailurePolicy", number)
	switch action {
	case batchv1.PodFailurePolicyActionFailJob:
		return Fails, rule
	case batchv1.PodFailurePolicyActionIgnore:
		return "", ""
	}
	lost := w.failuresOf(job)
	lost.all++
	if limit := backoffLimit(job); int64(job.Status.Failed)+lost.all > int64(limit) {
		return Fails, fmt.Sprintf("backoffLimit %d", limit)
	}
	index, err := strconv.Atoi(p.Annotations[batchv1.JobCompletionIndexAnnotation])
	if job.Spec.BackoffLimitPerIndex == nil || err != nil {
		return "", ""
	}
	// Recreated pods keep their annotations, so later failures are counted here.
	before := lost.byIndex[index]
	lost.byIndex[index]++
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

// failIndex records a failed index in the Job's status, and reports whether this fails the Job: too
// many indexes have failed, or no remaining index can succeed.
func (w *workloads) failIndex(job *batchv1.Job, index int, why string) (Fate, string) {
	job = job.DeepCopy()
	job.Status.FailedIndexes = ptr.To(strings.TrimPrefix(ptr.Deref(job.Status.FailedIndexes, "")+","+strconv.Itoa(index), ","))
	w.keepWorkload(job)
	failed, all := workload.CountIndexes(*job.Status.FailedIndexes), int(ptr.Deref(job.Spec.Completions, 1))
	switch most := job.Spec.MaxFailedIndexes; {
	case most != nil && failed > int(*most):
		return Fails, fmt.Sprintf("maxFailedIndexes %d", *most)
	case failed+workload.CountIndexes(job.Status.CompletedIndexes) >= all:
		return Fails, fmt.Sprintf("%d of its %d indexes failed, and none is left", failed, all)
	}
	return IndexFails, why
}

// backoffLimit is the number of failures a Job survives, with the API's default: 6, or unlimited if
// failures are limited per index.
func backoffLimit(job *batchv1.Job) int32 {
	if job.Spec.BackoffLimitPerIndex != nil {
		return ptr.Deref(job.Spec.BackoffLimit, math.MaxInt32)
	}
	return ptr.Deref(job.Spec.BackoffLimit, 6)
}

// ruleFor returns the 1-based number and the action of the first matching rule of the Job's
// podFailurePolicy for a failed pod. Without a matching rule, failures count and the number is 0.
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

// isOfDisruption reports whether a pattern matches disrupted pods.
func isOfDisruption(p batchv1.PodFailurePolicyOnPodConditionsPattern) bool {
	return p.Type == v1.DisruptionTarget && (p.Status == "" || p.Status == v1.ConditionTrue)
}

// isDisrupted reports whether the pod has the condition DisruptionTarget: every removal sets it,
// except deletion by a user. For an initially terminating pod, its status decides.
func isDisrupted(p *v1.Pod, cause Cause) bool {
	if cause != ByDeletion && cause != ByTermination {
		return true
	}
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue
	})
}
