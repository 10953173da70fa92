// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// MakesPods reports whether the Job controller creates pods for the Job: it manages the Job, and
// the Job is neither suspended nor deleted nor finished.
func MakesPods(job *batchv1.Job) bool {
	managed := ptr.Deref(job.Spec.ManagedBy, batchv1.JobControllerName) == batchv1.JobControllerName
	return managed && job.DeletionTimestamp == nil && !ptr.Deref(job.Spec.Suspend, false) && !IsFinished(job)
}

// Replaces reports whether the Job replaces a lost pod: it is neither suspended nor finished, nor a
// work queue with a succeeded pod, which its remaining pods finish.
func Replaces(job *batchv1.Job) bool {
	finishing := job.Spec.Completions == nil && job.Status.Succeeded > 0
	return !ptr.Deref(job.Spec.Suspend, false) && !IsFinished(job) && !finishing
}

// IsFinished reports whether the Job has ended, or will end as soon as its pods have ended. In the
// latter case, the Job only has a condition that precedes Complete or Failed.
func IsFinished(job *batchv1.Job) bool {
	ends := []batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed, batchv1.JobSuccessCriteriaMet, batchv1.JobFailureTarget}
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return slices.Contains(ends, c.Type) && c.Status == v1.ConditionTrue
	})
}

// wantedPods returns the number of pods the job wants to run now: its parallelism, bounded by the
// remaining completions. Without a number of completions, the first success ends the creation of
// pods.
func wantedPods(job *batchv1.Job, pods []*v1.Pod, running int) int {
	succeeded := 0
	for _, pod := range pods {
		if pod.Status.Phase == v1.PodSucceeded {
			succeeded++
		}
	}
	succeeded = max(succeeded, int(job.Status.Succeeded))
	parallel := int(ptr.Deref(job.Spec.Parallelism, 1))
	// A fixed number of completions bounds the pods.
	if job.Spec.Completions != nil {
		return max(0, min(parallel, int(*job.Spec.Completions)-succeeded))
	}
	// In a work queue, the running pods finish the remaining work.
	if succeeded > 0 {
		return running
	}
	return parallel
}

// MissingPods returns the number of pods the job creates now, or a negative number for a surplus.
// pods are all of the job's pods, including terminal ones.
func MissingPods(job *batchv1.Job, pods []*v1.Pod) int {
	running := len(slices.DeleteFunc(slices.Clone(pods), rules.IsTerminal))
	return min(wantedPods(job, pods, running), Most) - running
}

// NextIndexes returns the indexes of the pods that an Indexed Job with these pods creates now, in
// ascending order.
func NextIndexes(job *batchv1.Job, pods []*v1.Pod) []int {
	return openIndexes(job, pods, MissingPods(job, pods))
}

// openIndexes returns the lowest indexes that have no pod and are neither completed nor failed.
func openIndexes(job *batchv1.Job, pods []*v1.Pod, count int) []int {
	taken := slices.Concat(parseIndexes(job.Status.CompletedIndexes), parseIndexes(ptr.Deref(job.Status.FailedIndexes, "")))
	for _, pod := range pods {
		if index, err := strconv.Atoi(pod.Annotations[batchv1.JobCompletionIndexAnnotation]); err == nil &&
			pod.Status.Phase != v1.PodFailed {
			taken = append(taken, span{index, index})
		}
	}

	var open []int
	if job.Spec.Completions == nil {
		return nil
	}

	for index := 0; index < int(*job.Spec.Completions) && len(open) < count; index++ {
		// Ranges are skipped as a whole: a Job may have a hundred thousand indexes.
		if i := slices.IndexFunc(taken, func(s span) bool { return s.first <= index && index <= s.last }); i >= 0 {
			index = taken[i].last
			continue
		}
		open = append(open, index)
	}
	return open
}

// JobPod returns the pod created by the Job controller, without a name. It has the job's labels
// with and without a prefix, because selectors of old Jobs use the labels without a prefix.
func JobPod(job *batchv1.Job) *v1.Pod {
	pod := Of(job).NewPod()
	pod.Labels[batchv1.JobNameLabel], pod.Labels["job-name"] = job.Name, job.Name
	pod.Labels[batchv1.ControllerUidLabel], pod.Labels["controller-uid"] = string(job.UID), string(job.UID)
	return pod
}

// SetIndex gives a pod the index of an Indexed Job, replacing any other index.
func SetIndex(pod *v1.Pod, job string, index int) {
	number := strconv.Itoa(index)
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, batchv1.JobCompletionIndexAnnotation, number)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, batchv1.JobCompletionIndexAnnotation, number)
	pod.Spec.Hostname, pod.GenerateName = job+"-"+number, job+"-"+number+"-"
	// These annotations belong to the former index.
	delete(pod.Annotations, batchv1.JobIndexFailureCountAnnotation)
	delete(pod.Annotations, batchv1.JobIndexIgnoredFailureCountAnnotation)
}

// Failure is the effect of a lost pod on its Job.
type Failure struct {
	// Job is the Job with the failure counted in its status, and Pod is the pod with the failure
	// counted in its annotations. Successors are created from Pod, so that later failures of its
	// index are counted as well.
	Job *batchv1.Job
	Pod *v1.Pod
	// Why is the reason for the failure of the Job or, if Index is set, only of the pod's index;
	// empty if neither fails. A failed Job has a condition with the same message.
	Why   string
	Index bool
}

// Fail counts a lost pod as a failure of its Job, like the Job controller; disrupted is set if the
// pod has the condition DisruptionTarget. Exit codes are unknown, so rules about them do not apply.
// Neither object is changed.
//
//	podFailurePolicy rule: FailJob -> the Job fails; Ignore -> nothing counts; FailIndex -> see below
//	failures of the Job   > backoffLimit           -> the Job fails
//	failures of the index > backoffLimitPerIndex   -> the index fails, or the Job after maxFailedIndexes
func Fail(job *batchv1.Job, p *v1.Pod, disrupted bool) Failure {
	f := Failure{Job: job.DeepCopy(), Pod: p}
	number, action := 0, batchv1.PodFailurePolicyActionCount
	if disrupted {
		number, action = DisruptionRule(job)
	}
	index, counted := countIndex(&f, action == batchv1.PodFailurePolicyActionIgnore)
	rule := fmt.Sprintf("rule %d of its podFailurePolicy", number)
	limit := backoffLimit(job)
	lost := int64(job.Status.Failed) + 1
	switch action {
	case batchv1.PodFailurePolicyActionFailJob:
		f.failJob(rule)
		return f
	case batchv1.PodFailurePolicyActionIgnore:
		return f
	}

	if f.Job.Status.Failed = int32(min(lost, math.MaxInt32)); lost > int64(limit) {
		f.failJob(fmt.Sprintf("backoffLimit %d", limit))
		return f
	}
	switch {
	case index < 0:
	case action == batchv1.PodFailurePolicyActionFailIndex:
		f.failIndex(index, rule)
	case counted > int(*job.Spec.BackoffLimitPerIndex):
		f.failIndex(index, fmt.Sprintf("backoffLimitPerIndex %d", *job.Spec.BackoffLimitPerIndex))
	}
	return f
}

// failJob records the failure of the Job.
func (f *Failure) failJob(why string) {
	f.Why, f.Index = why, false
	f.Job.Status.Conditions = append(f.Job.Status.Conditions, batchv1.JobCondition{
		Type: batchv1.JobFailed, Status: v1.ConditionTrue, Message: why,
	})
}

// failIndex records the failure of an index. It fails the Job if too many indexes have failed, or
// no remaining index can succeed.
func (f *Failure) failIndex(index int, why string) {
	s, spec := &f.Job.Status, &f.Job.Spec
	s.FailedIndexes = ptr.To(strings.TrimPrefix(ptr.Deref(s.FailedIndexes, "")+","+strconv.Itoa(index), ","))
	failed, all := CountIndexes(*s.FailedIndexes), int(ptr.Deref(spec.Completions, 1))
	switch most := spec.MaxFailedIndexes; {
	case most != nil && failed > int(*most):
		f.failJob(fmt.Sprintf("maxFailedIndexes %d", *most))
	case failed+CountIndexes(s.CompletedIndexes) >= all:
		f.failJob(fmt.Sprintf("%d of its %d indexes failed, and none is left", failed, all))
	default:
		f.Why, f.Index = why, true
	}
}

// countIndex counts the failure, or an ignored failure, in the annotations of the pod. It returns
// the pod's index and the failures counted so far, or a negative index if the Job does not limit
// the failures of single indexes.
func countIndex(f *Failure, ignored bool) (index, failures int) {
	index, err := strconv.Atoi(f.Pod.Annotations[batchv1.JobCompletionIndexAnnotation])
	if f.Job.Spec.BackoffLimitPerIndex == nil || err != nil {
		return -1, 0
	}
	key := batchv1.JobIndexFailureCountAnnotation
	if ignored {
		key = batchv1.JobIndexIgnoredFailureCountAnnotation
	}
	f.Pod = f.Pod.DeepCopy()
	metav1.SetMetaDataAnnotation(&f.Pod.ObjectMeta, key, strconv.Itoa(countOf(f.Pod, key)+1))
	return index, countOf(f.Pod, batchv1.JobIndexFailureCountAnnotation)
}

// countOf returns the number in an annotation, or 0 without one.
func countOf(p *v1.Pod, annotation string) int {
	n, err := strconv.ParseInt(p.Annotations[annotation], 10, 32)
	if err != nil || n < 0 {
		return 0
	}
	return int(n)
}

// IndexFailures returns the number of consecutive failures of a pod's index, including ignored
// failures, from the annotations updated by [Fail].
func IndexFailures(p *v1.Pod) int {
	return countOf(p, batchv1.JobIndexFailureCountAnnotation) + countOf(p, batchv1.JobIndexIgnoredFailureCountAnnotation)
}

// Backoff returns the delay before the Job controller creates a pod after this number of
// consecutive failures. If the Job limits failures per index, failures counts the failures of the
// index, and otherwise the failures of the Job.
func Backoff(failures int) time.Duration {
	if failures <= 0 {
		return 0
	}
	return min(10*time.Second<<min(failures-1, 6), 10*time.Minute)
}

// backoffLimit returns the number of failures a Job survives. The API's default is 6, or no limit
// if failures are limited per index.
func backoffLimit(job *batchv1.Job) int32 {
	if job.Spec.BackoffLimitPerIndex != nil {
		return ptr.Deref(job.Spec.BackoffLimit, math.MaxInt32)
	}
	return ptr.Deref(job.Spec.BackoffLimit, 6)
}

// DisruptionRule returns the 1-based number and the action of the first rule of the Job's
// podFailurePolicy for a disrupted pod. Without such a rule, the failure counts and the number is
// 0.
func DisruptionRule(job *batchv1.Job) (number int, action batchv1.PodFailurePolicyAction) {
	if job.Spec.PodFailurePolicy != nil {
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

// span is a range of completion indexes, both ends included.
type span struct{ first, last int }

// CountIndexes returns the number of indexes in a Job's completedIndexes or failedIndexes: 5 for
// "1,3-5,7".
func CountIndexes(text string) (count int) {
	for _, s := range parseIndexes(text) {
		count += s.last - s.first + 1
	}
	return count
}

// parseIndexes parses a Job's completedIndexes or failedIndexes, such as "1,3-5,7". It skips
// malformed parts.
func parseIndexes(text string) (spans []span) {
	for part := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(low)
		if err != nil {
			continue
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(high); err != nil || last < first {
				continue
			}
		}
		spans = append(spans, span{first, last})
	}
	return spans
}
