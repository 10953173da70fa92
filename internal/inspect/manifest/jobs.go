package manifest

import (
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/world/workload"
)

func (e *expansion) expandJobs() {
	for i, job := range e.set.Jobs {
		w := expanded{workload.Of(job), e.set.places["Job"][i]}
		pods := e.ownedPods(w)
		if !workload.MakesPods(job) {
			continue
		}

		group := e.groupOf(job, pods)
		if *job.Spec.CompletionMode == batchv1.IndexedCompletion {
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
