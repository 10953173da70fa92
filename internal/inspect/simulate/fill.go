// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Fill reports the number of copies of a pod that fit, and the reason one more does not fit.
type Fill struct {
	Like   string `json:"like"`
	Wanted int    `json:"wanted,omitempty"` // 0: as many as fit
	Placed int    `json:"placed"`
	// Ahead counts the pods that were already pending and were placed first.
	Ahead int            `json:"ahead,omitempty"`
	Nodes map[string]int `json:"nodes"`
	// Stops is the reason one more pod does not fit, in the words of the FailedScheduling event,
	// and Reasons counts the nodes by reason. Both are empty if all requested pods fit.
	Stops   string         `json:"stops,omitempty"`
	Reasons map[string]int `json:"reasons,omitempty"`
}

// MostPods limits the pods added to measure how many fit. Kubernetes supports fewer pods in a
// cluster (150,000), so the limit truncates no realistic result.
const MostPods = 200_000

// addPods places copies of a pod where they fit, without preemption. With Count, pods that do not
// fit become pending like any new pod, and may then preempt. With Max, it continues until a pod
// does not fit.
//
// Each pod is decided separately, because each one takes room and shifts spread constraints: the
// number cannot be derived from the nodes' free room.
func (o *operations) addPods(op *AddPods) (*Done, error) {
	model, err := o.controllers.modelPod(op)
	if err != nil {
		return nil, err
	}
	// Exactly one of the two must be set.
	if op.Max == (op.Count > 0) {
		return nil, errors.New("give a number of pods, or max for as many as fit")
	}
	if op.Count < 0 || op.Count > MostPods {
		return nil, fmt.Errorf("%d pods: must be from 1 to %d", op.Count, MostPods)
	}
	fill := &Fill{Like: op.Like, Wanted: op.Count, Nodes: map[string]int{}}
	limit := op.Count
	if op.Max {
		limit = MostPods
		// Reaching the allowance is not an error here: addPods stops before, and Stops mentions it.
		if o.allowed.pods > 0 {
			limit = min(limit, max(0, o.allowed.pods-len(o.pods.named)))
		}
	}
	if o.scheduler.profiles[model.Spec.SchedulerName] == nil {
		return nil, fmt.Errorf("no profile serves the scheduler name %q", model.Spec.SchedulerName)
	}
	decided := len(o.report.said.Pods)
	o.scheduler.trySettled() // place pods that are already pending first
	for _, p := range o.report.said.Pods[decided:] {
		if p.Node != "" {
			fill.Ahead++
		}
	}
	number := 0
	for fill.Placed < limit && !o.allowed.mustStop() {
		// Take the steps of createPod, but decide immediately and without a result line per pod. If
		// the pod does not fit, revert its charges and claims.
		p := o.pods.copyOf(model, &number)
		if fill.Stops = o.bounds.chargePod(p.object, true); fill.Stops == "" {
			o.claims.MakeFor(p.object)
			if fill.Stops, fill.Reasons = o.scheduler.tryAlone(p); fill.Stops != "" {
				o.bounds.releasePod(p.object)
				o.claims.Release(p.object)
			}
		}
		if fill.Stops != "" {
			number-- // its name is free again
			break
		}
		p.charged = true
		o.pods.registerPod(p)
		o.budgets.expectPods(p, 1)
		fill.Placed++
		fill.Nodes[p.NodeName]++
	}
	for i := fill.Placed + 1; i <= op.Count && !o.allowed.mustStop(); i++ { // the remaining pods stay pending, or preempt
		p := o.pods.copyOf(model, &number)
		o.claims.MakeFor(p.object)
		o.budgets.expectPods(o.pods.enterPod(p.object, o.bounds.chargePod(p.object, true)), 1)
	}
	if fill.Placed == limit && op.Max {
		fill.Stops = fmt.Sprintf("not tried beyond %d pods", limit)
	}
	o.report.addEvent(Event{Kind: "PodsAdded", Message: fmt.Sprintf("%d like %s", fill.Placed, op.Like)})
	return &Done{Fill: fill}, nil
}

// copyOf returns a new pod like the model, named with the next free number: MODEL-copy-1. It shares
// the model's maps and slices, so neither may be modified in place. It does not add the pod.
func (s *pods) copyOf(model *v1.Pod, number *int) *pod {
	object := *model
	for taken := true; taken; taken = s.named[Name{object.Namespace, object.Name}] != nil {
		*number++
		object.Name = fmt.Sprintf("%s-copy-%d", strings.TrimSuffix(model.Name, "-"), *number)
	}
	object.UID = types.UID(fmt.Sprintf("%s/%s-%d", object.Namespace, object.Name, s.entered+1))
	object.CreationTimestamp = metav1.NewTime(s.clock.time())
	s.entered++
	return &pod{number: s.entered, object: &object}
}

// modelPod returns the template for new pods, after admission: a copy of an existing pod, or a new
// pod of a workload, without node and status.
func (c *controllers) modelPod(op *AddPods) (*v1.Pod, error) {
	kind, name, ok := strings.Cut(op.Like, "/")
	if !ok {
		kind, name = "pod", op.Like
	}

	namespace := cmp.Or(op.Namespace, v1.NamespaceDefault)
	var model *v1.Pod
	if strings.EqualFold(kind, "pod") || strings.EqualFold(kind, "pods") || strings.EqualFold(kind, "po") {
		if model = c.objectOf(Name{namespace, name}); model == nil {
			return nil, fmt.Errorf("there is no pod %s/%s to take as a model", namespace, name)
		}
		model = model.DeepCopy()
	} else {
		l, err := c.workloads.findNamed(op.Like, namespace)
		if err != nil {
			return nil, err
		}
		created := l.NewPod()
		created.Name = l.Object.GetName()
		if model, err = c.pods.admitPod(created); err != nil {
			return nil, err
		}
	}

	if rules.ControllerKind(model) == rules.DaemonSet {
		return nil, fmt.Errorf("%s belongs to a DaemonSet, which already has a pod on each node", op.Like)
	}
	model.Spec.NodeName, model.ResourceVersion, model.DeletionTimestamp = "", "", nil
	model.Status = v1.PodStatus{Phase: v1.PodPending, QOSClass: model.Status.QOSClass}
	return model, nil
}

// objectOf returns the latest pod of that name, possibly a departed one, so that callers can add
// copies of an evicted pod. It returns nil if there never was such a pod.
func (c *controllers) objectOf(name Name) *v1.Pod {
	if p := c.pods.named[name]; p != nil {
		return p.object
	}
	for _, d := range slices.Backward(c.departed) {
		if d.Namespace == name.Namespace && d.Name == name.Name {
			return d.object
		}
	}
	return nil
}
