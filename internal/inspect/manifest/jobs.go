package manifest

import (
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/world/workload"
)

// expandJobs makes the pods that the Job controller makes now: as many as may run at a time,
// and no more than there are completions left. Those that follow when others end are not
// made. Suspended and finished Jobs have none, nor have those that another controller
// manages.
func (e *expansion) expandJobs() {
	for i, job := range e.set.Jobs {
		w := expanded{workload.Of(job), e.set.places["Job"][i]}
		pods := e.ownedPods(w)
		// Its pods have been adopted all the same, so that they are known to be its
		// own.
		if !workload.MakesPods(job) {
			continue
		}

		// Before the pods, which name it: those of both completion modes.
		var member *v1.PodSchedulingGroup
		if group := e.groupOf(job, pods); group != "" {
			member = &v1.PodSchedulingGroup{PodGroupName: &group}
		}

		if *job.Spec.CompletionMode == batchv1.IndexedCompletion {
			// Each pod of an Indexed Job is for one index, and is named after it.
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

// jobPod is a pod that the Job controller creates, as a member of the job's group. member is
// nil if the controller makes no group: the pod then keeps what its template says.
func jobPod(job *batchv1.Job, member *v1.PodSchedulingGroup) *v1.Pod {
	pod := workload.JobPod(job)
	if member != nil {
		pod.Spec.SchedulingGroup = member.DeepCopy()
	}
	return pod
}
