// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// pending is the time after which a waiting workload counts as late.
const pending = time.Minute

// newJob returns the i-th job. Its number of pods is between 1 and most, small ones being frequent,
// and its pods request between a fifth and more than half of a node of 32 CPUs.
func newJob(i, most int, runFor time.Duration) *batchv1.Job {
	random := rand.New(rand.NewPCG(uint64(i), 75))
	pods := int32(math.Exp(random.Float64() * math.Log(float64(most)+0.99)))
	suspend := true
	runFor = time.Duration((0.5 + random.Float64()) * float64(runFor)).Round(time.Second)
	cpu := []string{"7", "11", "17"}[random.IntN(3)]
	return &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("job-%d", i), Labels: map[string]string{"kueue.x-k8s.io/queue-name": fmt.Sprintf("queue-%d", i%queues)},
		},
		Spec: batchv1.JobSpec{
			Parallelism: &pods, Completions: &pods, Suspend: &suspend,
			Template: v1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"berth.dev/run-for": runFor.String()}},
				Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyNever, Containers: []v1.Container{{
					Name: "c", Image: "i", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}},
				}}},
			},
		},
	}
}

// placement is the history of a job's pods.
type placement struct {
	wanted                     int
	admitted, began, completed time.Time // began: the first pod was bound, completed: all pods
}

// play creates the jobs and follows them until they have ended.
func (b *bench) play(ctx context.Context) (*result, error) {
	jobs := make([]*placement, b.jobs)
	index := map[string]*placement{}
	began := time.Now()
	err := driver.InParallel(ctx, b.jobs, func(ctx context.Context, i int) error {
		job := newJob(i, b.most, b.runFor)
		jobs[i] = &placement{wanted: int(*job.Spec.Parallelism)}
		_, err := b.Client.BatchV1().Jobs(v1.NamespaceDefault).Create(ctx, job, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, p := range jobs {
		index[fmt.Sprintf("job-%d", i)] = p
	}

	done, last, used := &result{}, began, 0.0
	err = b.Until(ctx, "the jobs to end", b.limit, func() (string, error) {
		now := time.Now()
		running, err := b.look(ctx, index, now)
		if err != nil {
			return "", err
		}
		used += running * now.Sub(last).Seconds()
		last = now
		ended, err := b.countEnded(ctx)
		return driver.Lacking(ended, b.jobs), err
	})
	if err != nil {
		return nil, err
	}
	done.makespan = last.Sub(began)
	done.used = used / done.makespan.Seconds() / b.cpus
	for _, p := range jobs {
		waited := p.completed.Sub(p.admitted)
		done.longest = max(done.longest, waited)
		done.partial = max(done.partial, p.completed.Sub(p.began))
		if waited >= pending {
			done.late++
		}
	}
	done.retries, err = b.countRetries(ctx)
	return done, err
}

// look notes what happened to the jobs, and returns the CPUs requested by running pods.
func (b *bench) look(ctx context.Context, jobs map[string]*placement, now time.Time) (running float64, err error) {
	workloads, err := b.workloads(ctx)
	if err != nil {
		return 0, err
	}
	for i := range workloads {
		if owners := workloads[i].GetOwnerReferences(); len(owners) == 1 && isAdmitted(&workloads[i]) {
			if p := jobs[owners[0].Name]; p != nil && p.admitted.IsZero() {
				p.admitted = now
			}
		}
	}
	pods, err := b.Client.CoreV1().Pods(v1.NamespaceDefault).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return 0, err
	}
	bound := map[string]int{}
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.NodeName == "" {
			continue
		}
		bound[p.Labels[batchv1.JobNameLabel]]++
		if p.Status.Phase == v1.PodPending || p.Status.Phase == v1.PodRunning {
			running += p.Spec.Containers[0].Resources.Requests.Cpu().AsApproximateFloat64()
		}
	}
	for name, n := range bound {
		p := jobs[name]
		if p == nil {
			continue
		}
		if p.admitted.IsZero() {
			p.admitted = now // between the two lists
		}
		if p.began.IsZero() {
			p.began = now
		}
		if n >= p.wanted && p.completed.IsZero() {
			p.completed = now
		}
	}
	return running, nil
}

func (b *bench) countEnded(ctx context.Context) (n int, err error) {
	jobs, err := b.Client.BatchV1().Jobs(v1.NamespaceDefault).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return 0, err
	}
	for i := range jobs.Items {
		if jobs.Items[i].Status.CompletionTime != nil {
			n++
		}
	}
	return n, nil
}

// workloads lists the Workloads of Kueue.
func (b *bench) workloads(ctx context.Context) ([]unstructured.Unstructured, error) {
	list, err := b.dynamic.Resource(workloadResource).Namespace(v1.NamespaceDefault).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

func isAdmitted(w *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(w.Object, "status", "conditions")
	for _, c := range conditions {
		if c, ok := c.(map[string]any); ok && c["type"] == "Admitted" && c["status"] == "True" {
			return true
		}
	}
	return false
}

// countRetries adds up the retries of the checks.
func (b *bench) countRetries(ctx context.Context) (n int, err error) {
	workloads, err := b.workloads(ctx)
	for i := range workloads {
		checks, _, _ := unstructured.NestedSlice(workloads[i].Object, "status", "admissionChecks")
		for _, c := range checks {
			if c, ok := c.(map[string]any); ok {
				retries, _ := c["retryCount"].(int64)
				n += int(retries)
			}
		}
	}
	return n, err
}
