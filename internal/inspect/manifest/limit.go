// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/world/workload"
)

// Limits for workloads too large to expand. A huge number of replicas takes ten characters in a
// file, but gigabytes as pods, so it is checked before any pod is created.

// demand is a workload with the number of missing pods, which Expand would create.
type demand struct {
	// kind, meta and at identify the workload and its place.
	kind  string
	meta  metav1.Object
	at    place
	lacks int
	// settle reduces the workload's demand to its existing pods, so that Expand creates none.
	settle func()
}

// tooMany returns the workloads beyond the limit on created pods, workload.Most, which all
// workloads share. It admits small workloads first, so that one absurd number does not exclude the
// ordinary ones. It sorts the list.
func tooMany(list []demand) (refused []demand) {
	slices.SortStableFunc(list, func(a, b demand) int { return cmp.Compare(a.lacks, b.lacks) })
	// Each workload is admitted or refused as a whole.
	room := workload.Most
	for i := range list {
		if list[i].lacks > room {
			return list[i:]
		}
		room -= max(0, list[i].lacks)
	}
	return nil
}

// limitWorkloads prevents the expansion of workloads beyond the limit, and adds a warning for each.
// Recordings of clusters contain such workloads if a quota refuses their pods.
func (s *Set) limitWorkloads() {
	for _, d := range tooMany(s.listDemands()) {
		d.settle()
		s.Warnings = append(s.Warnings, fmt.Sprintf("%s %s/%s keeps its present pods: %d are missing, and at most %d are added for all "+
			"workloads together",
			d.kind, d.meta.GetNamespace(), d.meta.GetName(), d.lacks, workload.Most))
	}
}

// withinLimit adds a fault for each workload refused by limitWorkloads. In hand-written manifests,
// such a number of replicas is a mistake.
func (c *checker) withinLimit() {
	for _, d := range tooMany(c.set.listDemands()) {
		c.subject = subject{d.kind, d.meta}
		c.addFault(d.at, d.at.line, "spec", "%d pods are too many to add: the limit for all workloads together is %d",
			d.lacks, workload.Most)
	}
}

// listDemands lists the demands of all workloads. A Deployment's demand excludes the replicas of
// its ReplicaSets, which have separate demands. The numbers are estimates: terminated pods count as
// present, and a DaemonSet is assumed to need all nodes.
func (s *Set) listDemands() (list []demand) {
	pods := map[types.UID]int{}
	for _, pod := range s.Pods {
		if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
			pods[ref.UID]++
		}
	}
	add := func(kind string, i int, meta metav1.Object, wants *int32) {
		if wants == nil {
			return // unset means one replica
		}
		// A workload without a UID is from a hand-written file; all its pods count as missing.
		has := 0
		if meta.GetUID() != "" {
			has = pods[meta.GetUID()]
		}
		list = append(list, demand{kind, meta, s.placeOf(kind, i), int(*wants) - has, func() { *wants = min(*wants, int32(has)) }})
	}
	deployments := map[types.UID]*appsv1.Deployment{}
	for _, d := range s.Deployments {
		if d.UID != "" && d.Spec.Replicas != nil {
			deployments[d.UID] = d
		}
	}
	for i, rs := range s.ReplicaSets {
		add("ReplicaSet", i, rs, rs.Spec.Replicas)
		ref := metav1.GetControllerOfNoCopy(rs)
		if rs.Spec.Replicas == nil || ref == nil || deployments[ref.UID] == nil {
			continue
		}
		of := deployments[ref.UID]
		// Count the ReplicaSet's replicas as pods of the Deployment.
		pods[of.UID] += int(*rs.Spec.Replicas)
		last := &list[len(list)-1]
		// A ReplicaSet of a Deployment cannot be settled separately: the Deployment's number must
		// decrease with it.
		alone := last.settle
		last.settle = func() { // otherwise the Deployment would lack the difference
			before := *rs.Spec.Replicas
			alone()
			*of.Spec.Replicas -= min(*of.Spec.Replicas, before-*rs.Spec.Replicas)
		}
	}
	for _, kind := range []string{"Deployment", "ReplicationController", "StatefulSet"} {
		for i, object := range s.OfKind(kind) {
			add(kind, i, object, *workload.ReplicasOf(object))
		}
	}
	for i, job := range s.Jobs {
		wants := job.Spec.Parallelism
		// A Job runs no more pods at a time than it has completions.
		if all := job.Spec.Completions; all != nil && wants != nil && *all < *wants {
			wants = all
		}
		add("Job", i, job, wants)
	}
	for i, set := range s.DaemonSets {
		list = append(list, demand{"DaemonSet", set, s.placeOf("DaemonSet", i),
			len(s.Nodes) - pods[set.UID], func() { s.leaveOut(set) }})
	}
	return list
}

// leaveOut removes a DaemonSet from the set, but keeps its pods.
func (s *Set) leaveOut(set *appsv1.DaemonSet) {
	i := slices.Index(s.DaemonSets, set)
	s.DaemonSets = slices.Delete(s.DaemonSets, i, i+1)
	if places := s.places["DaemonSet"]; i < len(places) {
		s.places["DaemonSet"] = slices.Delete(places, i, i+1)
	}
}

// placeOf returns the place of the i-th object of a kind; the zero place for sets not read from
// files.
func (s *Set) placeOf(kind string, i int) (at place) {
	if places := s.places[kind]; i < len(places) {
		at = places[i]
	}
	return at
}
