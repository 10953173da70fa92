// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/world/workload"
)

// expandJobs creates the pods that the Job controller would create now: up to the parallelism and
// the remaining completions. It omits successors of running pods, and skips Jobs that are
// suspended, finished or managed by another controller.
func (e *expansion) expandJobs() {
	for i, job := range e.set.Jobs {
		w := expanded{workload.Of(job), e.set.places["Job"][i]}
		pods := e.ownedPods(w)
		// ownedPods has adopted the pods nevertheless, so that they have an owner.
		if !workload.MakesPods(job) {
			continue
		}

		// Create the group before the pods, which refer to it.
		var member *v1.PodSchedulingGroup
		if group := e.groupOf(job, pods); group != "" {
			member = &v1.PodSchedulingGroup{PodGroupName: &group}
		}

		if *job.Spec.CompletionMode == batchv1.IndexedCompletion {
			// Each pod of an Indexed Job has an index and is named after it.
			for _, index := range workload.NextIndexes(job, pods) {
				pod := jobPod(job, member)
				workload.SetIndex(pod, job.Name, index)
				e.addNamed(pod, pod.GenerateName, w.at)
			}
			continue
		}

		for range workload.MissingPods(job, pods) {
			e.addNamed(jobPod(job, member), job.Name+"-", w.at)
		}
	}
}

// jobPod returns a pod created by the Job controller as a member of the job's group. If member is
// nil, the job has no group, and the pod keeps its template's value.
func jobPod(job *batchv1.Job, member *v1.PodSchedulingGroup) *v1.Pod {
	pod := workload.JobPod(job)
	if member != nil {
		pod.Spec.SchedulingGroup = member.DeepCopy()
	}
	return pod
}
