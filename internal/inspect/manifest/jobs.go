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

		// Before the pods, which name it.
		group := e.groupOf(job, pods)
		if *job.Spec.CompletionMode == batchv1.IndexedCompletion {
			// Each pod of an Indexed Job is for one index, and is named after it.
			for _, index := range workload.NextIndexes(job, pods) {
				pod := workload.JobPod(job)
				workload.SetIndex(pod, job.Name, index)
				if group != "" {
					pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
				}
				e.addNamed(pod, pod.GenerateName, w.at)
			}
			continue
		}

		for range workload.MissingPods(job, pods) {
			e.addNamed(workload.JobPod(job), job.Name+"-", w.at)
		}
	}
}
