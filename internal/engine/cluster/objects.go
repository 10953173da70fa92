// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Objects are the API objects other than nodes and pods used by plugins. They are kept without a
// copy, and must not be modified.
type Objects struct {
	Namespaces             Table[*v1.Namespace]
	Services               Table[*v1.Service]
	ReplicationControllers Table[*v1.ReplicationController]
	ReplicaSets            Table[*appsv1.ReplicaSet]
	StatefulSets           Table[*appsv1.StatefulSet]
	Budgets                Table[*policyv1.PodDisruptionBudget]
	PriorityClasses        Table[*schedulingv1.PriorityClass]

	Volumes           Table[*v1.PersistentVolume]
	Claims            Table[*v1.PersistentVolumeClaim]
	StorageClasses    Table[*storagev1.StorageClass]
	CSINodes          Table[*storagev1.CSINode]
	CSIDrivers        Table[*storagev1.CSIDriver]
	CSICapacities     Table[*storagev1.CSIStorageCapacity]
	VolumeAttachments Table[*storagev1.VolumeAttachment]

	// ResourceSlices include the taints of the DeviceTaintRules; see Tainted.
	ResourceSlices   Table[*resourcev1.ResourceSlice]
	ResourceClaims   Table[*resourcev1.ResourceClaim]
	DeviceClasses    Table[*resourcev1.DeviceClass]
	DeviceTaintRules Table[*resourcev1.DeviceTaintRule]
	// published holds the published states of the slices tainted by rules, by name.
	published map[string]*resourcev1.ResourceSlice

	// PodGroups holds the groups with device claims, if the feature gate for such claims is on.
	// Their first state is kept, since their spec does not change.
	PodGroups Table[*schedulingv1beta1.PodGroup]
}

// Put sets an object in the table of its kind, and Drop removes it there. They return false for pod
// groups, and for kinds without a table. They serve callers with objects of many kinds; the cycle
// accesses the tables directly.
func (o *Objects) Put(object any) bool  { return o.change(object, false) }
func (o *Objects) Drop(object any) bool { return o.change(object, true) }

// change is Put, or Drop if gone.
func (o *Objects) change(object any, gone bool) bool {
	switch object := object.(type) {
	case *v1.Namespace:
		o.Namespaces.change(object, gone)
	case *v1.Service:
		o.Services.change(object, gone)
	case *v1.ReplicationController:
		o.ReplicationControllers.change(object, gone)
	case *appsv1.ReplicaSet:
		o.ReplicaSets.change(object, gone)
	case *appsv1.StatefulSet:
		o.StatefulSets.change(object, gone)
	case *policyv1.PodDisruptionBudget:
		o.Budgets.change(object, gone)
	case *schedulingv1.PriorityClass:
		o.PriorityClasses.change(object, gone)
	case *v1.PersistentVolume:
		o.Volumes.change(object, gone)
	case *v1.PersistentVolumeClaim:
		o.Claims.change(object, gone)
	case *storagev1.StorageClass:
		o.StorageClasses.change(object, gone)
	case *storagev1.CSINode:
		o.CSINodes.change(object, gone)
	case *storagev1.CSIDriver:
		o.CSIDrivers.change(object, gone)
	case *storagev1.CSIStorageCapacity:
		o.CSICapacities.change(object, gone)
	case *storagev1.VolumeAttachment:
		o.VolumeAttachments.change(object, gone)
	case *resourcev1.ResourceSlice:
		if gone {
			o.Unpublish(object.Name)
		} else {
			object = o.Tainted(object)
		}
		o.ResourceSlices.change(object, gone)
	case *resourcev1.ResourceClaim:
		o.ResourceClaims.change(object, gone)
	case *resourcev1.DeviceClass:
		o.DeviceClasses.change(object, gone)
	case *resourcev1.DeviceTaintRule:
		name := object.Name
		if gone {
			object = nil
		}
		o.Retaint(name, object)
	default:
		return false
	}

	return true
}

// Name is a namespaced name. Namespace is empty for cluster-scoped objects.
type Name struct{ Namespace, Name string }

// Table holds the objects of one kind by name. The zero value is empty and ready.
type Table[T metav1.Object] struct {
	spaces map[string]*space[T] // by namespace
	count  int
	// Version grows by one with every change relevant to decisions; see decidesAlike.
	Version uint64
	// changed holds the names of the most recent changes, up to Version. It is kept only if
	// followed, which is set by the first call of Since.
	changed  []Name
	followed bool
}

// space holds the objects of one namespace, or all cluster-scoped objects.
type space[T metav1.Object] struct {
	byName map[string]T
	most   int // maximum size of byName; see Shrunk
	sorted []T // by name; nil until requested
}

// A table remembers at most twice as many changes as objects, within these limits, and then drops
// the older half. A reader further behind rescans the whole table, at about the same cost.
const leastChanges, mostChanges = 256, 4096

// Get returns the object with that name; ok reports whether it exists.
func (t *Table[T]) Get(namespace, name string) (object T, ok bool) {
	if s := t.spaces[namespace]; s != nil {
		object, ok = s.byName[name]
	}
	return object, ok
}

// hasObject reports whether an object with that name exists.
func (t *Table[T]) hasObject(name Name) bool {
	_, there := t.Get(name.Namespace, name.Name)
	return there
}

// Set adds the object, or replaces the object with the same name. It keeps the object itself: do
// not modify it afterwards.
func (t *Table[T]) Set(object T) {
	name := Name{object.GetNamespace(), object.GetName()}
	s := t.spaces[name.Namespace]
	if s == nil {
		if t.spaces == nil {
			t.spaces = map[string]*space[T]{}
		}
		s = &space[T]{byName: map[string]T{}}
		t.spaces[name.Namespace] = s
	}

	before, known := s.byName[name.Name]
	if !known {
		t.count++
	}

	s.byName[name.Name] = object
	s.byName = Shrunk(s.byName, &s.most)
	// The sorted list is maintained only if it has been requested before.
	if s.sorted != nil {
		if i, known := s.findName(name.Name); known {
			s.sorted[i] = object
		} else {
			s.sorted = slices.Insert(s.sorted, i, object)
		}
	}

	if !known || !decidesAlike(before, object) {
		t.noteChange(name)
	}
}

// decidesAlike reports whether no decision can distinguish two states of an object. Controllers
// update the status of their objects with every pod added or removed. Other kinds are not compared,
// because their changes are rare or relevant.
func decidesAlike(a, b metav1.Object) bool {
	switch a := a.(type) {
	case *v1.Namespace:
		return maps.Equal(a.Labels, b.(*v1.Namespace).Labels)
	case *v1.Service:
		return maps.Equal(a.Spec.Selector, b.(*v1.Service).Spec.Selector)
	case *v1.ReplicationController:
		return maps.Equal(a.Spec.Selector, b.(*v1.ReplicationController).Spec.Selector)
	case *appsv1.ReplicaSet:
		return reflect.DeepEqual(a.Spec.Selector, b.(*appsv1.ReplicaSet).Spec.Selector)
	case *appsv1.StatefulSet:
		return reflect.DeepEqual(a.Spec.Selector, b.(*appsv1.StatefulSet).Spec.Selector)
	}
	return false
}

// Delete removes the object with that name. Even an absent name counts as a change, which is
// harmless.
func (t *Table[T]) Delete(namespace, name string) {
	if s := t.spaces[namespace]; s != nil {
		if _, known := s.byName[name]; known {
			t.count--
		}
		delete(s.byName, name)
		s.byName = Shrunk(s.byName, &s.most)
		if i, known := s.findName(name); known {
			s.sorted = ShrunkList(slices.Delete(s.sorted, i, i+1))
		}
		if len(s.byName) == 0 {
			delete(t.spaces, namespace)
		}
	}
	t.noteChange(Name{namespace, name})
}

// change is Set, or Delete if gone.
func (t *Table[T]) change(object T, gone bool) {
	if gone {
		t.Delete(object.GetNamespace(), object.GetName())
	} else {
		t.Set(object)
	}
}

// findName returns the index of a name in sorted, or its insertion point.
func (s *space[T]) findName(name string) (i int, known bool) {
	return slices.BinarySearchFunc(s.sorted, name, func(o T, name string) int { return strings.Compare(o.GetName(), name) })
}

// inOrder sorts the objects on the first request for their order. From then on Set and Delete
// maintain it.
func (s *space[T]) inOrder() []T {
	if s.sorted == nil {
		s.sorted = slices.SortedFunc(maps.Values(s.byName), func(a, b T) int { return strings.Compare(a.GetName(), b.GetName()) })
	}
	return s.sorted
}

// noteChange counts a change, and records its name if the table is followed. It drops half of the
// names at a time, so that each name is moved once on average.
func (t *Table[T]) noteChange(name Name) {
	t.Version++
	if !t.followed {
		return
	}
	if most := min(max(2*t.count, leastChanges), mostChanges); len(t.changed) >= most {
		kept := copy(t.changed, t.changed[len(t.changed)-most/2:])
		clear(t.changed[kept:]) // names of possibly deleted objects
		t.changed = ShrunkList(t.changed[:kept])
	}
	t.changed = append(t.changed, name)
}

// Since returns the names of the objects changed after a version, in order and with repetitions.
// known is false if that version is too old, or precedes the first call of Since. The names are
// valid until the next change.
func (t *Table[T]) Since(version uint64) (names []Name, known bool) {
	t.followed = true
	count := t.Version - version
	if count > uint64(len(t.changed)) {
		return nil, false
	}
	return t.changed[uint64(len(t.changed))-count:], true
}

// Len returns the number of objects.
func (t *Table[T]) Len() int { return t.count }

// Each yields the objects in no particular order.
func (t *Table[T]) Each(yield func(object T) bool) {
	for _, s := range t.spaces {
		for _, object := range s.byName {
			if !yield(object) {
				return
			}
		}
	}
}

// All returns the objects sorted by namespace and name. Each call sorts the namespaces and
// allocates a new list.
func (t *Table[T]) All() []T {
	all := make([]T, 0, t.count)
	for _, namespace := range slices.Sorted(maps.Keys(t.spaces)) {
		all = append(all, t.spaces[namespace].inOrder()...)
	}
	return all
}

// InNamespace returns the objects of one namespace, sorted by name. The list must not be modified,
// and is valid until the next change of the table.
func (t *Table[T]) InNamespace(namespace string) []T {
	if s := t.spaces[namespace]; s != nil {
		return s.inOrder()
	}
	return nil
}
