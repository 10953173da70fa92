// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

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
	f := workload.Fail(job, d.object, isDisrupted(d.object, d.Cause))
	c.retries.count(job)
	c.scheduler.follow(f.Job, false)
	if d.object, d.Reason = f.Pod, f.Why; f.Why == "" {
		return false
	}
	if d.Fate = Fails; f.Index {
		d.Fate = IndexFails
		index := d.object.Annotations[batchv1.JobCompletionIndexAnnotation]
		c.report.addEvent(Event{Kind: "IndexFailed", Message: fmt.Sprintf("index %s of job %s/%s: %s", index,
			job.Namespace, job.Name, d.Reason)})
		return true
	}

	c.report.addEvent(Event{Kind: "JobFailed", Message: fmt.Sprintf("job %s/%s: %s", job.Namespace, job.Name, d.Reason)})
	l := workload.Of(job)
	c.retries.end(l.Owner())
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

// goOn creates pods for the next indexes of a Job after one of its indexes has failed. The new pods
// are copies of the failed index's pod with another index.
func (c *controllers) goOn(d *Departure) {
	job := c.workloads.table().JobOf(d.object)
	if job == nil || !c.workloads.isWanted(d.object) {
		return
	}
	var pods []*v1.Pod
	for _, p := range c.pods.named {
		// A terminating pod still holds its index if the Job waits for the pod's end.
		counts := p.object.DeletionTimestamp == nil || workload.AwaitsFailure(job)
		if counts && rules.OwnerOf(p.object) == rules.OwnerOf(d.object) {
			pods = append(pods, p.object)
		}
	}
	for _, w := range c.retries.retryOf(rules.OwnerOf(d.object)).waiting {
		pods = append(pods, w.object)
	}
	for _, index := range workload.NextIndexes(job, pods) {
		next := d.object.DeepCopy()
		workload.SetIndex(next, job.Name, index)
		c.makeAgain(next)
	}
}

// isDisrupted reports whether the pod has the condition DisruptionTarget: every removal sets it,
// except deletion by a user. For an initially terminating pod, its status decides.
func isDisrupted(p *v1.Pod, cause Cause) bool {
	return cause != ByDeletion && cause != ByTermination || slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue
	})
}

// retries holds the Jobs with lost pods. The Job controller creates no pod until its back-off since
// the last failure is over.
type retries map[rules.Owner]*retry

// retry is a Job with lost pods.
type retry struct {
	failures int          // consecutive failures
	waiting  []*Departure // pods to recreate, each at its due time
}

// count counts a failure of a Job; job is its state before the failure. The Job controller keeps
// the number of failures since the last success in memory; the Job's status approximates it.
func (r retries) count(job *batchv1.Job) {
	owner := workload.Of(job).Owner()
	known := r[owner] != nil
	its := r.retryOf(owner)
	if its.failures++; !known && job.Status.Succeeded == 0 {
		its.failures += int(job.Status.Failed)
	}
}

// retryOf returns the record of a Job, and creates an empty record if there is none.
func (r retries) retryOf(owner rules.Owner) *retry {
	if r[owner] == nil {
		r[owner] = &retry{}
	}
	return r[owner]
}

// end drops the record of a Job. The Job's waiting pods are not recreated.
func (r retries) end(owner rules.Owner) {
	its := r.retryOf(owner)
	for _, d := range its.waiting {
		d.Fate = Ends
	}
	its.waiting = nil // calls already on the agenda hold a reference to the record, and then find no pods
	delete(r, owner)
}

// awaitRetry recreates a Job's pod once the back-off is over. A Job that limits failures per index
// has a separate back-off for each index; otherwise, each failure prolongs the wait of all pods.
func (c *controllers) awaitRetry(d *Departure, job *batchv1.Job) {
	r := c.retries.retryOf(rules.OwnerOf(d.object))
	failed := d.failed
	if failed.IsZero() || workload.AwaitsFailure(job) {
		failed = c.clock.time()
	}
	failures := r.failures
	perIndex := job.Spec.BackoffLimitPerIndex != nil
	if perIndex {
		failures = workload.IndexFailures(d.object)
	}
	d.Fate, d.due = Waits, failed.Add(workload.Backoff(failures)).Sub(c.clock.start)
	if r.waiting = append(r.waiting, d); !perIndex {
		for _, other := range r.waiting {
			other.due = d.due
		}
	}

	if d.due <= c.clock.now {
		c.retryPods(r)
		return
	}
	if d.Again {
		c.repeats++
	}
	c.clock.callAt(d.due, func() {
		if d.Again {
			c.repeats--
		}
		c.retryPods(r)
	})
}

// retryPods recreates the pods of a Job that are due.
func (c *controllers) retryPods(r *retry) {
	var due []*Departure
	r.waiting = slices.DeleteFunc(r.waiting, func(d *Departure) bool {
		if d.due > c.clock.now {
			return false
		}
		due = append(due, d)
		return true
	})
	for _, d := range due {
		if d.Fate = Ends; c.workloads.isWanted(d.object) && c.workloads.isReplaced(d.object) {
			c.replace(d)
		}
	}
}

// Simulation of the DaemonSet controller: one pod on each eligible node. It runs whenever a node is
// added or changes. Its pods are pinned to their nodes, and the scheduler places them there.

// startDaemons creates DaemonSet pods on a new node. Here and below, a DaemonSet being deleted
// creates no pods.
func (c *controllers) startDaemons(m *machine) {
	for _, set := range c.workloads.daemonSets() {
		if set.DeletionTimestamp == nil && workload.RunsDaemon(set, m.object) {
			c.makeDaemon(set, m.object.Name)
		}
	}
}

// updateDaemons creates the pods of DaemonSets that a node change made eligible. Pods of DaemonSets
// that are no longer eligible stay: the controller's deletion of such pods is not simulated.
func (c *controllers) updateDaemons(m *machine, before *v1.Node) {
	// Only taints and labels matter; heartbeats and conditions change far more often.
	if !equality.Semantic.DeepEqual(before.Spec.Taints, m.object.Spec.Taints) || !maps.Equal(before.Labels, m.object.Labels) {
		for _, set := range c.workloads.daemonSets() {
			if set.DeletionTimestamp == nil && !workload.RunsDaemon(set, before) &&
				workload.RunsDaemon(set, m.object) && !c.hasDaemon(m, set) {
				c.makeDaemon(set, m.object.Name)
			}
		}
	}

	node := m.object.Name
	// gaps holds the pods lost by the node until a node change lets them return.
	gaps := c.gaps[node]
	delete(c.gaps, node)
	for _, p := range gaps {
		if c.runsDaemon(p, m.object) {
			c.makeAgain(p)
		} else {
			c.gaps[node] = append(c.gaps[node], p)
		}
	}
}

// hasDaemon reports whether the DaemonSet has a placed or pending pod for the node, or will
// recreate the pod lost there.
func (c *controllers) hasDaemon(m *machine, set *appsv1.DaemonSet) bool {
	owner := workload.Of(set).Owner()
	its := func(p *v1.Pod) bool { return rules.OwnerOf(p) == owner && workload.DaemonNode(p) == m.object.Name }
	itsPod := func(p *pod) bool { return its(p.object) }
	return slices.ContainsFunc(c.gaps[m.object.Name], its) || slices.ContainsFunc(c.pods.podsOn(m.object.Name), itsPod) ||
		rules.Any(c.scheduler.eachWaiting, itsPod)
}

// makeDaemons creates a DaemonSet's pods for all eligible nodes, in order of node name, regardless
// of existing pods.
func (c *controllers) makeDaemons(d *appsv1.DaemonSet) {
	wants := workload.NodesOf(d)
	for _, name := range c.nodes.names() {
		if c.allowed.mustStop() {
			return
		}
		if wants(c.nodes.named[name].object) {
			c.makeDaemon(d, name)
		}
	}
}

// makeDaemon creates the DaemonSet's pod for one node.
func (c *controllers) makeDaemon(d *appsv1.DaemonSet, node string) {
	c.pods.createPod(c.daemonPod(d, node), false)
}

// daemonPod returns the DaemonSet's pod for one node, under an unused name.
func (c *controllers) daemonPod(d *appsv1.DaemonSet, node string) *v1.Pod {
	p := workload.DaemonPod(d, node)
	p.Name = c.pods.generateName(d.Namespace, d.Name+"-")
	return p
}

// runsDaemon reports whether the pod's DaemonSet wants a pod on the node. For an unknown DaemonSet,
// the pod's tolerations decide.
func (c *controllers) runsDaemon(p *v1.Pod, node *v1.Node) bool {
	if !c.workloads.isWanted(p) {
		return false
	}
	if l := c.workloads.table().ControllerOf(p); l != nil {
		if set, ok := l.Object.(*appsv1.DaemonSet); ok {
			return workload.RunsDaemon(set, node)
		}
	}
	return rules.Untolerated(node.Spec.Taints, p.Spec.Tolerations, rules.KeepsOff) == nil
}
