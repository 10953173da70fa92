package manifest

import (
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
)

func (e *expansion) jobs() {
	for i, job := range e.set.Jobs {
		w := workload{gvk: batchv1.SchemeGroupVersion.WithKind("Job"), meta: &job.ObjectMeta, template: &job.Spec.Template, at: e.set.places["Job"][i]}
		pods := e.owned(w)
		if job.DeletionTimestamp != nil || job.Spec.Suspend != nil && *job.Spec.Suspend || isFinished(job) {
			continue
		}
		running := slices.DeleteFunc(slices.Clone(pods), func(pod *v1.Pod) bool { return ended(pod) })
		group := e.groupOf(job, pods)
		missing := min(wantedPods(job, pods, len(running)), maxReplicas) - len(running)
		if *job.Spec.CompletionMode == batchv1.IndexedCompletion {
			for _, index := range openIndexes(job, pods, missing) {
				pod := indexedPod(w, index)
				if group != "" {
					pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
				}
				e.addNamed(pod, w.meta.Name+"-"+strconv.Itoa(index)+"-", w.at)
			}
			continue
		}
		for range missing {
			e.addNamed(jobPod(w), w.meta.Name+"-", w.at)
		}
	}
}

func isFinished(job *batchv1.Job) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == v1.ConditionTrue
	})
}

func ended(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// wantedPods returns how many pods the job wants to run now: as many as may run at a time, but no
// more than the completions that are left. Without a number of completions, no pod is added after
// the first success.
func wantedPods(job *batchv1.Job, pods []*v1.Pod, running int) int {
	succeeded := 0
	for _, pod := range pods {
		if pod.Status.Phase == v1.PodSucceeded {
			succeeded++
		}
	}
	succeeded = max(succeeded, int(job.Status.Succeeded))
	parallel := int(*job.Spec.Parallelism)
	if job.Spec.Completions != nil {
		return max(0, min(parallel, int(*job.Spec.Completions)-succeeded))
	}
	if succeeded > 0 {
		return running
	}
	return parallel
}

// openIndexes returns the lowest indexes that no pod works on or has completed.
func openIndexes(job *batchv1.Job, pods []*v1.Pod, count int) []int {
	taken := completedIndexes(job.Status.CompletedIndexes)
	for _, pod := range pods {
		if index, err := strconv.Atoi(pod.Annotations[batchv1.JobCompletionIndexAnnotation]); err == nil && pod.Status.Phase != v1.PodFailed {
			taken = append(taken, span{index, index})
		}
	}
	var open []int
	if job.Spec.Completions == nil {
		return nil
	}
	for index := 0; index < int(*job.Spec.Completions) && len(open) < count; index++ {
		if i := slices.IndexFunc(taken, func(s span) bool { return s.first <= index && index <= s.last }); i >= 0 {
			index = taken[i].last
			continue
		}
		open = append(open, index)
	}
	return open
}

func jobPod(w workload) *v1.Pod {
	pod := w.pod()
	for _, label := range []string{batchv1.JobNameLabel, "job-name"} {
		pod.Labels[label] = w.meta.Name
	}
	for _, label := range []string{batchv1.ControllerUidLabel, "controller-uid"} {
		pod.Labels[label] = string(w.meta.UID)
	}
	return pod
}

func indexedPod(w workload, index int) *v1.Pod {
	pod := jobPod(w)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[batchv1.JobCompletionIndexAnnotation] = strconv.Itoa(index)
	pod.Labels[batchv1.JobCompletionIndexAnnotation] = strconv.Itoa(index)
	pod.Spec.Hostname = w.meta.Name + "-" + strconv.Itoa(index)
	return pod
}
