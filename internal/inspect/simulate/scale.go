// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/world/disruption"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// asReplica returns the controller's view of a pod, which determines the order of removal.
func (p *pod) asReplica() *workload.Replica {
	return &workload.Replica{
		Object: p.object, UID: p.UID, Node: p.NodeName,
		Phase: phaseOf(p), Ready: !seemsUnready(p), Since: readySince(p), Created: p.Created.Time(),
	}
}

// phaseOf returns a pod's progress. A pod placed by this world is running, and so is a pod of a
// hand-written manifest, which is Pending only by default.
func phaseOf(p *pod) workload.Phase {
	switch said := p.object.Status.Phase; {
	case p.NodeName == "":
		return workload.Pending
	case p.tried:
		return workload.Running
	case said == v1.PodUnknown:
		return workload.Unknown
	case said == v1.PodPending && disruption.Ungoverned(p.object):
		return workload.Pending
	}
	return workload.Running
}

// seemsUnready reports whether the ReplicaSet controller considers a pod not ready. A pod placed by
// this world counts as ready.
func seemsUnready(p *pod) bool {
	return p.unready || !p.tried && !disruption.IsReady(p.object)
}

// readySince returns the time since which the pod is ready: from its condition or, without one,
// from its arrival on the node.
func readySince(p *pod) time.Time {
	since := p.since
	for i := range p.object.Status.Conditions {
		if c := &p.object.Status.Conditions[i]; c.Type == v1.PodReady && !c.LastTransitionTime.IsZero() {
			since = c.LastTransitionTime.Time
		}
	}
	return since
}

// scaleWorkload carries out a Scale. Scaling a ReplicaSet of a Deployment has no lasting effect,
// like in a cluster: scaleWorkload scales it, lets the Deployment revert that, and adds a note.
// Scaling a workload being deleted has no effect either.
func (c *controllers) scaleWorkload(op *Scale) (*Done, error) {
	if kind, _, _ := strings.Cut(op.Workload, "/"); slices.Contains([]string{"pod", "pods", "po"}, kind) {
		return nil, fmt.Errorf("%q: a pod has no replicas: name a deployment, replicaset or statefulset", op.Workload)
	}
	l, err := c.workloads.findNamed(op.Workload, op.Namespace)
	switch {
	case err != nil:
		return nil, err
	case l.Replicas == nil:
		return nil, fmt.Errorf("%s has no replicas to set", op.Workload)
	case op.Replicas < 0 || op.Replicas > MostPods:
		return nil, fmt.Errorf("%d replicas: must be from 0 to %d", op.Replicas, MostPods)
	case len(c.workloads.table().MakersOf(l)) == 0:
		return nil, fmt.Errorf("%s has no ReplicaSet that could be read, so that its pods are not known", op.Workload)
	}

	if l.Object.GetDeletionTimestamp() != nil {
		c.workloads.keepWorkload(l.Resized(op.Replicas))
		return &Done{Notes: []string{op.Workload + " is being deleted: its controller no longer creates or deletes pods"}}, nil
	}
	c.setReplicas(l, op.Replicas)
	// The Deployment immediately reverts the number, so the pods are removed and recreated.
	owner := c.workloads.table().DeploymentOf(l)
	if owner == nil {
		return &Done{}, nil
	}

	c.workloads.keepWorkload(l.Object)
	c.fillUp(l)
	return &Done{Notes: []string{fmt.Sprintf("%s belongs to %s, which sets its replicas back: scale that",
		op.Workload, strings.ToLower(owner.Ref()))}}, nil
}

// setReplicas sets the workload's number of replicas and makes its controller react.
func (c *controllers) setReplicas(l *workload.Workload, replicas int) {
	c.report.addEvent(Event{Kind: "Scaled", Message: fmt.Sprintf("%s %s/%s from %d to %d", strings.ToLower(l.Kind.Kind),
		l.Object.GetNamespace(), l.Object.GetName(), len(c.podsOf(l)), replicas)})
	c.workloads.keepWorkload(l.Resized(replicas))
	c.fillUp(workload.Of(l.Resized(replicas)))
}

// fillUp removes a workload's surplus pods and creates its missing ones. Replicas must not be nil.
func (c *controllers) fillUp(l *workload.Workload) {
	switch o := l.Object.(type) {
	case *appsv1.StatefulSet:
		c.fillOrdinals(l, o, int(*l.Replicas))
		return
	case *appsv1.Deployment:
		for _, set := range workload.ScaleSets(o, c.workloads.replicaSetsOf(l)) {
			c.workloads.keepWorkload(set)
			c.fillUp(workload.Of(set))
		}
		return
	}

	pods, replicas := c.podsOf(l), int(*l.Replicas)
	// podsOf lists pods in the controller's order of removal.
	for _, p := range pods[:max(0, len(pods)-replicas)] {
		c.dropPod(p, ByScaling, l.Ref())
	}
	for i := len(pods); i < replicas && !c.allowed.mustStop(); i++ {
		c.pods.createPod(c.podOf(l), false)
	}
}

// replicaSetsOf returns the ReplicaSets of a Deployment.
func (w *workloads) replicaSetsOf(l *workload.Workload) (sets []*appsv1.ReplicaSet) {
	for _, maker := range w.table().MadeBy(l) {
		if set, ok := maker.Object.(*appsv1.ReplicaSet); ok {
			sets = append(sets, set)
		}
	}
	return sets
}

// fillOrdinals is fillUp for a StatefulSet, where the ordinals determine surplus and missing pods.
// If an ordinal's old pod has not ended yet, or a finalizer keeps it, fillOrdinals waits for its
// end. If the set was just rolled out, all missing pods are created together, as with
// podManagementPolicy Parallel, because rollouts are not simulated step by step.
func (c *controllers) fillOrdinals(l *workload.Workload, set *appsv1.StatefulSet, replicas int) {
	if workload.InOrder(set) && !c.workloads.renewed[l.Owner()] {
		c.proceed(set)
		return
	}
	for _, p := range c.podsOf(l) {
		if !workload.HasReplica(set, p.Name, replicas) {
			c.dropPod(p, ByScaling, l.Ref())
		}
	}
	first := workload.FirstOrdinal(set)
	for ordinal := first; ordinal < first+replicas && !c.allowed.mustStop(); ordinal++ {
		if p := c.pods.named[Name{set.Namespace, workload.OrdinalName(set, ordinal)}]; p == nil || isReplaceable(p) {
			c.makeOrdinal(set, ordinal)
		}
	}
}
