// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"iter"
	"maps"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Table holds the workloads of a cluster, in order of addition. A replacement keeps the place of
// the replaced workload. The zero value is empty. It is not safe for concurrent use. Workloads in
// it must not be modified; use Put to replace them.
type Table struct {
	list []*Workload // dropped entries are nil; see tidy
	// byOwner and byName hold the workloads' indexes in list. A workload is found by its name, and
	// by its UID if it has one.
	byOwner map[rules.Owner]int
	byName  map[named]int
	// made holds the workloads controlled by another workload, such as the ReplicaSets of
	// Deployments, by controller, the oldest first. Lists in it are replaced, never changed,
	// because callers of MadeBy may still be iterating over them.
	made map[rules.Owner][]*Workload
}

// named is a workload by kind, namespace and name.
type named struct {
	kind            schema.GroupKind
	namespace, name string
}

// named returns the workload's key in Table.byName.
func (l *Workload) named() named {
	return named{l.Kind.GroupKind(), l.Object.GetNamespace(), l.Object.GetName()}
}

// Put adds a workload, or replaces the workload of the same kind and name. It ignores other
// objects.
func (t *Table) Put(object metav1.Object) {
	l := Of(object)
	if l == nil {
		return
	}
	if t.byOwner == nil {
		t.byOwner, t.byName, t.made = map[rules.Owner]int{}, map[named]int{}, map[rules.Owner][]*Workload{}
	}

	i, there := t.byName[l.named()]
	if there {
		t.unlink(t.list[i])
		t.list[i] = l
	} else {
		t.tidy()
		i, t.list = len(t.list), append(t.list, l)
	}
	t.byName[l.named()], t.byOwner[l.Owner()] = i, i
	if by := rules.OwnerOf(object); by != (rules.Owner{}) {
		t.made[by] = append(slices.Clone(t.made[by]), l)
		slices.SortStableFunc(t.made[by], func(a, b *Workload) int {
			return a.Object.GetCreationTimestamp().Compare(b.Object.GetCreationTimestamp().Time)
		})
	}
}

// Drop removes a workload by its kind and name. The workloads controlled by it stay.
func (t *Table) Drop(l *Workload) {
	if i, there := t.byName[l.named()]; there {
		t.unlink(t.list[i])
		t.list[i] = nil
		delete(t.byName, l.named())
	}
}

// mostDropped is the number of nil entries that a list of any length may have.
const mostDropped = 64

// tidy makes a new list when most entries of the old list are nil. Otherwise a table that follows a
// cluster would grow with each rollout.
func (t *Table) tidy() {
	if len(t.list) <= 2*len(t.byName)+mostDropped {
		return
	}
	t.list = slices.DeleteFunc(slices.Clone(t.list), func(l *Workload) bool { return l == nil })
	for i, l := range t.list {
		t.byName[l.named()], t.byOwner[l.Owner()] = i, i
	}
}

// Clone returns a table with the same workloads, to be changed independently.
func (t *Table) Clone() *Table {
	return &Table{
		list: slices.Clone(t.list), byOwner: maps.Clone(t.byOwner), byName: maps.Clone(t.byName),
		made: maps.Clone(t.made), // its lists are never changed in place
	}
}

// unlink removes a workload from the maps by owner. The caller updates list and byName.
func (t *Table) unlink(l *Workload) {
	delete(t.byOwner, l.Owner())
	by := rules.OwnerOf(l.Object)
	t.made[by] = slices.DeleteFunc(slices.Clone(t.made[by]), func(other *Workload) bool { return other == l })
	if len(t.made[by]) == 0 {
		delete(t.made, by)
	}
}

// OwnedBy returns the workload identified by an owner, or nil. The owner has the form returned by
// [rules.OwnerOf] for a pod.
func (t *Table) OwnedBy(owner rules.Owner) *Workload {
	if i, there := t.byOwner[owner]; there {
		return t.list[i]
	}
	return nil
}

// ControllerOf returns the workload that controls an object, or nil.
func (t *Table) ControllerOf(object metav1.Object) *Workload { return t.OwnedBy(rules.OwnerOf(object)) }

// JobOf returns the Job controlling a pod. It returns nil if the pod has another controller or
// none, or if its Job was not read.
func (t *Table) JobOf(object metav1.Object) *batchv1.Job {
	l := t.ControllerOf(object)
	if l == nil {
		return nil
	}
	job, _ := l.Object.(*batchv1.Job)
	return job
}

// Named returns the workload of a kind and a name, or nil.
func (t *Table) Named(kind schema.GroupKind, namespace, name string) *Workload {
	if i, there := t.byName[named{kind, namespace, name}]; there {
		return t.list[i]
	}
	return nil
}

// All lists the workloads, including the ReplicaSets of Deployments. The table may be changed
// during the iteration: dropped workloads are skipped, and added workloads are not listed.
func (t *Table) All() iter.Seq[*Workload] {
	return func(yield func(*Workload) bool) {
		for _, l := range t.list {
			if l == nil {
				continue
			}
			// The list may be outdated by now.
			if l = t.Named(l.Kind.GroupKind(), l.Object.GetNamespace(), l.Object.GetName()); l != nil && !yield(l) {
				return
			}
		}
	}
}

// MadeBy returns the workloads controlled by another workload, the newest last. The list must not
// be changed.
func (t *Table) MadeBy(l *Workload) []*Workload { return t.made[l.Owner()] }

// MakersOf returns the workloads that own a workload's pods: the workload itself or, for a
// Deployment, its ReplicaSets, the newest last. It returns nil if the ReplicaSets were not read.
func (t *Table) MakersOf(l *Workload) []*Workload {
	if l.Kind.GroupKind() == rules.Deployment {
		return t.MadeBy(l)
	}
	return []*Workload{l}
}

// DeploymentOf returns the Deployment owning a workload, or nil.
func (t *Table) DeploymentOf(l *Workload) *Workload {
	if top := t.ControllerOf(l.Object); top != nil && top.Kind.GroupKind() == rules.Deployment {
		return top
	}
	return nil
}

// KindNamed returns the kind of workloads for one of kubectl's resource names, such as deploy. ok
// is false for pods, and for kinds that are not workloads here, such as CronJobs.
func KindNamed(word string) (kind schema.GroupKind, ok bool) {
	kind, ok = map[string]schema.GroupKind{
		"deployment": rules.Deployment, "deployments": rules.Deployment, "deploy": rules.Deployment,
		"replicaset": rules.ReplicaSet, "replicasets": rules.ReplicaSet, "rs": rules.ReplicaSet,
		"statefulset": rules.StatefulSet, "statefulsets": rules.StatefulSet, "sts": rules.StatefulSet,
		"daemonset": rules.DaemonSet, "daemonsets": rules.DaemonSet, "ds": rules.DaemonSet,
		"job": rules.Job, "jobs": rules.Job,
		"replicationcontroller": rules.ReplicationController, "replicationcontrollers": rules.ReplicationController,
		"rc": rules.ReplicationController,
	}[strings.ToLower(word)]
	return kind, ok
}
