// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Placeholders are pods that keep room while a plan removes nodes. They exist only in the simulated
// worlds. placeholder is the name of their class and the beginning of their names. With the lowest
// possible priority, they leave for any other pod.
const (
	placeholder         = "berth-headroom"
	placeholderPriority = math.MinInt32
	mostPlaceholders    = 10_000 // of a CapacityBuffer
)

// capacityBuffer is a CapacityBuffer of the autoscalers, as far as plans use it.
type capacityBuffer struct {
	Metadata metav1.ObjectMeta
	Spec     struct {
		PodTemplateRef, ScalableRef *struct{ Kind, Name string }
		Replicas, Percentage        *int32
		Limits                      v1.ResourceList
	}
}

// keeper collects the ReplicaSets of placeholders.
type keeper struct {
	sets    []*appsv1.ReplicaSet
	notes   []string
	buffers int             // placeholders of CapacityBuffers
	taken   map[string]bool // NAMESPACE/NAME of all workloads
}

// KeepRoom adds placeholders to a world: for the share [Options.Headroom] of the replicas of all
// workloads, and for the cluster's CapacityBuffers. Placeholders without room are dropped, because
// this room is missing already today.
//
//	Headroom 0.1, Deployments with 24 and 6 replicas: 2 placeholders like the first, 1 like the second
func (o *Options) KeepRoom(w *simulate.World) (*simulate.Done, error) {
	k, set := &keeper{taken: map[string]bool{}}, w.Manifests()
	for _, object := range set.Controllers() {
		k.taken[object.GetNamespace()+"/"+object.GetName()] = true
	}
	placed := map[string]int{} // by namespace
	for _, n := range w.Cluster().SortedNodes() {
		for _, p := range n.Pods {
			placed[p.Namespace()]++
		}
	}
	share := 0.0 // carries fractions over to the next workload
	for _, object := range set.Controllers() {
		if l := workload.Of(object); l.Replicas != nil && metav1.GetControllerOfNoCopy(object) == nil {
			// Any tenant may ask for billions of replicas that do not run.
			count := min(int(*l.Replicas), placed[object.GetNamespace()])
			placed[object.GetNamespace()] -= count
			share += o.Headroom * float64(count)
			k.keep(object.GetNamespace(), l.Template, int32(share))
			share -= math.Trunc(share)
		}
	}
	for _, d := range set.ForPlans {
		if d.Kind == manifest.CapacityBuffer {
			if err := k.keepBuffer(set, d); err != nil {
				k.notes = append(k.notes, fmt.Sprintf("CapacityBuffer %v: no room is kept for it", err))
			}
		}
	}
	if len(k.sets) == 0 {
		return &simulate.Done{Notes: k.notes}, nil
	}

	objects := []metav1.Object{&schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: placeholder}, Value: placeholderPriority, PreemptionPolicy: new(v1.PreemptNever),
	}}
	for _, s := range k.sets {
		objects = append(objects, s)
	}
	if _, err := w.Apply(manifest.Assemble(placeholder, objects)); err != nil {
		return nil, err
	}
	w.Settle()
	return &simulate.Done{Notes: k.notes}, k.dropUnplaced(w)
}

// keepBuffer keeps the room of a CapacityBuffer: the greater of its replicas and its percentage of
// a workload, within its limits, like Karpenter and the cluster autoscaler.
func (k *keeper) keepBuffer(set *manifest.Set, d manifest.Document) error {
	var b capacityBuffer
	if err := json.Unmarshal(d.Text, &b); err != nil {
		return fmt.Errorf("of %s: %w", d.File, err)
	}
	name, namespace := b.Metadata.Namespace+"/"+b.Metadata.Name, b.Metadata.Namespace
	var template *v1.PodTemplateSpec
	count := ptr.Deref(b.Spec.Replicas, 0)
	switch ref, scalable := b.Spec.PodTemplateRef, b.Spec.ScalableRef; {
	case ref != nil:
		template = podTemplate(set, types.NamespacedName{Namespace: namespace, Name: ref.Name})
	case scalable != nil:
		for _, object := range set.Controllers() {
			l := workload.Of(object)
			if l.Ref() == scalable.Kind+"/"+scalable.Name && object.GetNamespace() == namespace && l.Replicas != nil {
				template = l.Template
				count = max(count, int32(min(math.MaxInt32, math.Ceil(float64(*l.Replicas)*float64(ptr.Deref(b.Spec.Percentage, 0))/100))))
			}
		}
	}
	if template == nil {
		return fmt.Errorf("%s: its pod template or workload was not found", name)
	}

	if b.Spec.Replicas == nil && b.Spec.Percentage == nil {
		count = math.MaxInt32
	}
	requests := rules.Requests(&v1.Pod{Spec: template.Spec})
	for resource, limit := range b.Spec.Limits {
		if request := requests[resource]; !request.IsZero() {
			count = int32(min(int64(count), limit.MilliValue()/request.MilliValue()))
		}
	}
	if k.buffers+int(count) > mostPlaceholders {
		return fmt.Errorf("%s: %d pods are too many", name, count)
	}
	k.buffers += int(max(count, 0))
	k.keep(namespace, template, count)
	return nil
}

// podTemplate finds a PodTemplate, or returns nil.
func podTemplate(set *manifest.Set, name types.NamespacedName) *v1.PodTemplateSpec {
	for _, d := range set.ForPlans {
		var t v1.PodTemplate
		if d.Kind == manifest.PodTemplate && json.Unmarshal(d.Text, &t) == nil && t.Namespace == name.Namespace && t.Name == name.Name {
			return &t.Template
		}
	}
	return nil
}

// keep adds placeholders like a template. They have labels of their own, so that no budget, Service
// or spread constraint counts them, and no volumes or claims.
func (k *keeper) keep(namespace string, template *v1.PodTemplateSpec, count int32) {
	if count <= 0 {
		return
	}
	name := fmt.Sprintf("%s-%d", placeholder, len(k.sets))
	for k.taken[namespace+"/"+name] { // any tenant may use the name
		name += "-0"
	}
	labels := map[string]string{"app": name}
	s := template.Spec.DeepCopy()
	s.PriorityClassName, s.Priority, s.PreemptionPolicy = placeholder, nil, nil
	s.NodeName, s.SchedulingGroup, s.ResourceClaims, s.RestartPolicy = "", nil, nil, v1.RestartPolicyAlways
	s.Volumes = slices.DeleteFunc(s.Volumes, func(v v1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil })
	for i := range s.Containers {
		s.Containers[i].Resources.Claims = nil
	}

	k.sets = append(k.sets, &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &count, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: *s},
		},
	})
}

// dropUnplaced scales down to the placeholders that have room.
func (k *keeper) dropUnplaced(w *simulate.World) error {
	for _, s := range k.sets {
		ref, placed := "replicaset/"+s.Name, 0
		found, err := w.PodsOf(ref, s.Namespace)
		if err != nil {
			return err
		}
		for _, f := range found {
			if f.Pod != nil && f.Pod.NodeName != "" {
				placed++
			}
		}

		if placed < int(*s.Spec.Replicas) {
			down := &simulate.Scale{Workload: ref, Namespace: s.Namespace, Replicas: placed}
			if _, err := w.Do(&simulate.Operation{Scale: down}); err != nil {
				return err
			}
		}
	}
	return w.Err()
}

// isMoved reports whether moving a pod disturbs something: DaemonSets' pods stay on their nodes,
// and placeholders do not exist.
func isMoved(p *cluster.Pod) bool {
	return rules.KindOf(p.Class.Controller.Reference()) != rules.DaemonSet && p.Class.Priority != placeholderPriority
}
