// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/dump"
	"k8s.io/utils/ptr"
)

// In these annotations of a ReplicaSet, the Deployment's controller records the last observed
// scale, and the maximum number of pods at that scale, from which it computes proportions.
const (
	scaleSeen = "deployment.kubernetes.io/desired-replicas"
	mostSeen  = "deployment.kubernetes.io/max-replicas"
)

// Active filters out the ReplicaSets without replicas. The given list is not changed.
func Active(sets []*appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	return slices.DeleteFunc(slices.Clone(sets), func(set *appsv1.ReplicaSet) bool { return ptr.Deref(set.Spec.Replicas, 1) <= 0 })
}

// ScaleSets returns the ReplicaSets changed by a Deployment's controller for a new scale, in their
// new state. A single active ReplicaSet gets all replicas. During a rollout, each ReplicaSet grows
// or shrinks in proportion, up to the rollout's maximum. The given objects are not changed. For
// example, scaled from 10 to 15 with maxSurge 2, in the middle of a rollout:
//
//	old 8, new 4 (max-replicas 12)    -> 17 in all: old 11, new 6
func ScaleSets(d *appsv1.Deployment, sets []*appsv1.ReplicaSet) []*appsv1.ReplicaSet {
	wanted, current, active := ptr.Deref(d.Spec.Replicas, 1), currentSet(d, sets), Active(sets)
	// The Deployment is scaled up from zero: use the ReplicaSet of the current template, or else
	// the newest.
	if len(active) == 0 && len(sets) > 0 {
		active = []*appsv1.ReplicaSet{current}
		if current == nil {
			active[0] = slices.MaxFunc(sets, compareMade)
		}
	}

	sizes := map[*appsv1.ReplicaSet]int32{}
	switch rolling := d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType; {
	case len(active) == 1:
		sizes[active[0]] = wanted
	// The rollout is complete, except for old pods that still count.
	case current != nil && isSaturated(current, wanted):
		for _, set := range active {
			sizes[set] = 0
		}
		sizes[current] = wanted
	case rolling:
		sizes = proportions(d, active)
	}
	scaled := slices.SortedFunc(maps.Keys(sizes), compareMade)
	for i, set := range scaled {
		scaled[i] = set.DeepCopy()
		scaled[i].Spec.Replicas = ptr.To(sizes[set])
		metav1.SetMetaDataAnnotation(&scaled[i].ObjectMeta, scaleSeen, strconv.Itoa(int(wanted)))
		metav1.SetMetaDataAnnotation(&scaled[i].ObjectMeta, mostSeen, strconv.Itoa(int(wanted+maxSurge(d))))
	}
	return scaled
}

// NewReplicaSet returns the first ReplicaSet of a Deployment like its controller: with the hash of
// the template in its name, labels and selector. It shares no data with the Deployment.
func NewReplicaSet(d *appsv1.Deployment) *appsv1.ReplicaSet {
	hash := templateHash(&d.Spec.Template, d.Status.CollisionCount)
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name: d.Name + "-" + hash, Namespace: d.Namespace,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))},
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: new(*d.Spec.Replicas), Selector: cmp.Or(d.Spec.Selector.DeepCopy(), &metav1.LabelSelector{}),
			Template: *d.Spec.Template.DeepCopy(),
		},
	}
	// The label separates the pods of a Deployment's different templates.
	metav1.AddLabelToSelector(rs.Spec.Selector, appsv1.DefaultDeploymentUniqueLabelKey, hash)
	metav1.SetMetaDataLabel(&rs.Spec.Template.ObjectMeta, appsv1.DefaultDeploymentUniqueLabelKey, hash)
	rs.Labels = maps.Clone(rs.Spec.Template.Labels)
	return rs
}

// templateHash returns the deployment controller's hash of a template. For a template stored by an
// API server, it equals the cluster's hash. For a hand-written template, which lacks defaults, it
// may differ.
func templateHash(template *v1.PodTemplateSpec, collisions *int32) string {
	hasher := fnv.New32a()
	fmt.Fprintf(hasher, "%v", dump.ForHash(*template))
	// The controller increases the collision count when another template has the same hash.
	if collisions != nil {
		hasher.Write(binary.LittleEndian.AppendUint32(nil, uint32(*collisions)))
		// Upstream hashes a buffer of eight bytes but fills only four.
		hasher.Write(make([]byte, 4))
	}
	return rand.SafeEncodeString(fmt.Sprint(hasher.Sum32()))
}

// currentSet returns the oldest ReplicaSet with the Deployment's template, or nil. Several
// ReplicaSets may have the same template after hash collisions.
func currentSet(d *appsv1.Deployment, sets []*appsv1.ReplicaSet) *appsv1.ReplicaSet {
	same := slices.DeleteFunc(slices.Clone(sets), func(set *appsv1.ReplicaSet) bool {
		return !equality.Semantic.DeepEqual(withoutHash(&set.Spec.Template), withoutHash(&d.Spec.Template))
	})
	if len(same) == 0 {
		return nil
	}
	return slices.MinFunc(same, compareMade)
}

// withoutHash returns a template without the label added by the controller to distinguish
// ReplicaSets. It does not modify the given template.
func withoutHash(template *v1.PodTemplateSpec) *v1.PodTemplateSpec {
	t := *template
	t.Labels = maps.Clone(t.Labels)
	delete(t.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return &t
}

// compareMade orders the older ReplicaSet first.
func compareMade(a, b *appsv1.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// isSaturated reports whether a ReplicaSet has all replicas of its Deployment, all of them are
// available, and the controller has observed this scale.
func isSaturated(set *appsv1.ReplicaSet, wanted int32) bool {
	seen, err := strconv.Atoi(set.Annotations[scaleSeen])
	return err == nil && int32(seen) == wanted && ptr.Deref(set.Spec.Replicas, 1) == wanted && set.Status.AvailableReplicas == wanted
}

// proportions distributes the change of the Deployment's scale, beginning with the largest
// ReplicaSet, which also gets the rounding remainder. It sorts active.
func proportions(d *appsv1.Deployment, active []*appsv1.ReplicaSet) map[*appsv1.ReplicaSet]int32 {
	change, sizes := int32(0), map[*appsv1.ReplicaSet]int32{}
	if wanted := ptr.Deref(d.Spec.Replicas, 1); wanted > 0 {
		change = wanted + maxSurge(d)
	}
	for _, set := range active {
		sizes[set] = ptr.Deref(set.Spec.Replicas, 1)
		change -= sizes[set]
	}
	slices.SortFunc(active, func(a, b *appsv1.ReplicaSet) int {
		older := compareMade(a, b)
		if change > 0 {
			older = -older
		}
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), older)
	})

	left := change
	for _, set := range active {
		part := fraction(d, set)
		if change > 0 {
			part = min(part, left)
		} else {
			part = max(part, left)
		}
		if left != 0 {
			sizes[set] += part
			left -= part
		}
	}
	sizes[active[0]] = max(0, sizes[active[0]]+left)
	return sizes
}

// fraction returns the growth of a ReplicaSet that preserves its share of the Deployment. It is
// negative if the ReplicaSet shrinks, and is rounded to the nearest whole pod.
func fraction(d *appsv1.Deployment, set *appsv1.ReplicaSet) int32 {
	size, wanted := ptr.Deref(set.Spec.Replicas, 1), ptr.Deref(d.Spec.Replicas, 1)
	if wanted == 0 {
		return -size
	}
	before, err := strconv.ParseUint(set.Annotations[mostSeen], 10, 31)
	if err != nil || before == 0 {
		before = uint64(d.Status.Replicas)
	}
	if before == 0 {
		return 0
	}
	return int32(float64(size)*float64(wanted+maxSurge(d))/float64(before)+0.5) - size
}

// maxSurge returns the number of pods allowed beyond a Deployment's scale during a rollout. A
// percentage is rounded up; the API's default is 25%.
func maxSurge(d *appsv1.Deployment) int32 {
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return 0
	}
	surge := intstr.FromString("25%")
	if r := d.Spec.Strategy.RollingUpdate; r != nil && r.MaxSurge != nil {
		surge = *r.MaxSurge
	}
	n, _ := intstr.GetScaledValueFromIntOrPercent(&surge, int(ptr.Deref(d.Spec.Replicas, 1)), true)
	return int32(n)
}
