// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"slices"
	"strconv"

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
	for _, label := range []string{batchv1.JobNameLabel, "job-name"} {
		pod.Labels[label] = job.Name
	}
	for _, label := range []string{batchv1.ControllerUidLabel, "controller-uid"} {
		pod.Labels[label] = string(job.UID)
	}
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
