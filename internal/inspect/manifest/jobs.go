package manifest

import (
	"slices"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	pointer "k8s.io/utils/ptr"
)

func (e *expansion) expandJobs() {
	for i, job := range e.set.Jobs {
		w := workload{gvk: batchv1.SchemeGroupVersion.WithKind("Job"), meta: &job.ObjectMeta,
			template: &job.Spec.Template, at: e.set.places["Job"][i]}
		pods := e.ownedPods(w)
		if !makesPods(job) {
			continue
		}

		group := e.groupOf(job, pods)
		if *job.Spec.CompletionMode == batchv1.IndexedCompletion {
			for _, index := range NextIndexes(job, pods) {
				pod := indexedPod(w, index)
				if group != "" {
					pod.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
				}
				e.addNamed(pod, w.meta.Name+"-"+strconv.Itoa(index)+"-", w.at)
			}
			continue
		}

		for range missingPods(job, pods) {
			e.addNamed(jobPod(w), w.meta.Name+"-", w.at)
		}
	}
}

// makesPods reports whether the Job controller makes pods for the Job.
func makesPods(job *batchv1.Job) bool {
	managed := pointer.Deref(job.Spec.ManagedBy, batchv1.JobControllerName) == batchv1.JobControllerName
	return managed && job.DeletionTimestamp == nil && !pointer.Deref(job.Spec.Suspend, false) && !isFinished(job)
}

// isFinished reports whether the Job has ended, or ends once its pods have: then it has only the
// conditions that precede Complete and Failed.
func isFinished(job *batchv1.Job) bool {
	ends := []batchv1.JobConditionType{batchv1.JobComplete, batchv1.JobFailed, batchv1.JobSuccessCriteriaMet, batchv1.JobFailureTarget}
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return slices.Contains(ends, c.Type) && c.Status == v1.ConditionTrue
	})
}

func hasEnded(pod *v1.Pod) bool {
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

// missingPods returns how many pods the job makes now.
func missingPods(job *batchv1.Job, pods []*v1.Pod) int {
	running := len(slices.DeleteFunc(slices.Clone(pods), hasEnded))
	return min(wantedPods(job, pods, running), mostPods) - running
}

// NextIndexes returns the indexes that an Indexed Job with these pods makes pods for now.
func NextIndexes(job *batchv1.Job, pods []*v1.Pod) []int {
	return openIndexes(job, pods, missingPods(job, pods))
}

// openIndexes returns the lowest indexes that no pod works on, and that are neither completed nor
// failed.
func openIndexes(job *batchv1.Job, pods []*v1.Pod, count int) []int {
	taken := slices.Concat(parseIndexes(job.Status.CompletedIndexes), parseIndexes(pointer.Deref(job.Status.FailedIndexes, "")))
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
		if i := slices.IndexFunc(taken, func(s span) bool { return s.first <= index && index <= s.last }); i >= 0 {
			index = taken[i].last
			continue
		}
		open = append(open, index)
	}
	return open
}

func jobPod(w workload) *v1.Pod {
	pod := w.newPod()
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
	SetIndex(pod, w.meta.Name, index)
	return pod
}

// SetIndex makes a pod that of an index of an Indexed Job.
func SetIndex(pod *v1.Pod, job string, index int) {
	number := strconv.Itoa(index)
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, batchv1.JobCompletionIndexAnnotation, number)
	metav1.SetMetaDataLabel(&pod.ObjectMeta, batchv1.JobCompletionIndexAnnotation, number)
	pod.Spec.Hostname, pod.GenerateName = job+"-"+number, job+"-"+number+"-"
}
