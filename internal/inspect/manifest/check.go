// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// checkObjects finds faults that involve several objects: duplicate names and, unless the options
// are lenient, references to missing objects and too many pods to be created. Pods on missing nodes
// are faults only in strict mode. The errors are in the order of the input.
func (s *Set) checkObjects(options Options) Errors {
	c := checker{set: s, strict: options.Strict, nodes: map[string]bool{}, priorities: map[string]bool{}, runtimes: map[string]bool{}}
	for _, k := range ordered {
		c.checkDuplicates(k.name, k.list(s))
	}
	// Objects referenced in a recording may have been deleted since.
	if !options.Lenient {
		c.checkReferences(options.Over)
		c.withinLimit()
	}

	// Faults were found kind by kind, but are listed file by file.
	slices.SortStableFunc(c.errs, func(a, b *located) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.err.Line, b.err.Line))
	})
	return rules.Mapped(c.errs, func(e *located) *Error { return e.err })
}

// checker collects the faults that involve several objects of a set.
type checker struct {
	set *Set
	// subject is the object being checked. Callers set it before each check.
	subject subject
	// shared counts the objects that begin on each line; onItsOwn creates it on first use.
	shared map[spot]int
	strict bool
	// nodes, priorities and runtimes hold the valid targets of references.
	nodes, priorities, runtimes map[string]bool
	workloads                   []*schedulingv1beta1.Workload // Workloads that groups may reference
	errs                        []*located
}

// located is an error with the number of its file, as a sort key.
type located struct {
	file int32
	err  *Error
}

// subject is the object being checked, for errors on lines shared by several objects.
type subject struct {
	kind   string
	object metav1.Object
}

// spot is a line of a file.
type spot struct{ file, line int32 }

// addFault adds a fault of the object at a place. path is the path of the field, and line is the
// line of the field or, if it is missing, of its parent.
func (c *checker) addFault(at place, line int32, path, format string, args ...any) {
	fault := &Error{File: c.set.fileName(at.file), Line: int(line), Field: path, Text: fmt.Sprintf(format, args...)}
	if !c.onItsOwn(at) {
		o := c.subject.object
		fault.Object = c.subject.kind + " " + strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
	}
	c.errs = append(c.errs, &located{at.file, fault})
}

// onItsOwn reports whether an object's first line begins no other object. It is false for JSON
// without line breaks.
func (c *checker) onItsOwn(at place) bool {
	if c.shared == nil {
		c.shared = map[spot]int{}
		for _, places := range c.set.places {
			for _, p := range places {
				c.shared[spot{p.file, p.line}]++
			}
		}
	}
	return c.shared[spot{at.file, at.line}] == 1
}

// checkDuplicates adds a fault for each object with the name of an earlier object of its kind. With
// kubectl apply, the later object would replace the earlier one; here the user may mean either.
func (c *checker) checkDuplicates(kind string, list []metav1.Object) {
	type name struct{ namespace, name string }
	first := make(map[name]place, len(list))
	for i, o := range list {
		id := name{o.GetNamespace(), o.GetName()}
		at := c.set.places[kind][i]
		c.subject = subject{kind, o}
		if before, found := first[id]; found {
			c.addFault(at, at.line, "metadata.name", "%q: there is a %s of this name at %s:%d", id.name, kind,
				c.set.fileName(before.file), before.line)
			continue
		}
		// Compare later objects with the first one of that name.
		first[id] = at
	}
}

// checkReferences checks the references of new objects, whose targets must be in the set, or in the
// set to which it is applied. References of stored objects were checked by the API server on
// creation, and their targets may have been deleted since.
func (c *checker) checkReferences(over *Set) {
	s := c.set
	for _, known := range []*Set{s, cmp.Or(over, &Set{})} {
		for _, node := range known.Nodes {
			c.nodes[node.Name] = true
		}
		for _, class := range known.PriorityClasses {
			c.priorities[class.Name] = true
		}
		for _, class := range known.RuntimeClasses {
			c.runtimes[class.Name] = true
		}
		c.workloads = append(c.workloads, known.Workloads...)
	}
	for i, pod := range s.Pods {
		at := s.places["Pod"][i]
		c.subject = subject{"Pod", pod}
		// A bound pod, stored or not, requires an existing node. A terminated pod may outlive its
		// node for a while.
		if name := pod.Spec.NodeName; name != "" && !c.nodes[name] && !rules.IsTerminal(pod) {
			c.noteElsewhere(at, name)
		}
		// A stored pod already has its priority and overhead.
		if !admission.Stored(pod) {
			c.checkClasses(at, &pod.Spec, "spec.")
		}
	}
	for i, group := range s.PodGroups {
		// Stored groups were checked when they were created.
		if group.UID == "" {
			c.subject = subject{"PodGroup", group}
			c.checkGroup(s.places["PodGroup"][i], group)
		}
	}
	for i, group := range s.CompositePodGroups {
		if name := group.Spec.PriorityClassName; group.UID == "" && name != "" && !c.priorities[name] {
			c.subject = subject{"CompositePodGroup", group}
			at := s.places["CompositePodGroup"][i]
			c.addFault(at, at.priorityClass, "spec.priorityClassName", "%q: must be a PriorityClass of the input", name)
		}
	}
	// Sort the kinds, so that the order of the faults is fixed.
	for _, kind := range []string{"DaemonSet", "Deployment", "Job", "ReplicaSet", "ReplicationController", "StatefulSet"} {
		for i, object := range s.OfKind(kind) {
			if object.GetUID() == "" {
				c.subject = subject{kind, object}
				c.checkClasses(s.places[kind][i], &workload.Of(object).Template.Spec, "spec.template.spec.")
			}
		}
	}
}

// checkGroup checks the references of a pod group: its priority class and its template. A group
// need not refer to a Workload.
func (c *checker) checkGroup(at place, g *schedulingv1beta1.PodGroup) {
	if name := g.Spec.PriorityClassName; name != "" && !c.priorities[name] {
		c.addFault(at, at.priorityClass, "spec.priorityClassName", "%q: must be a PriorityClass of the input", name)
	}
	ref := g.Spec.WorkloadRef
	// Only groups created from a Workload refer to one.
	if ref == nil {
		return
	}

	for _, w := range c.workloads {
		if w.Namespace != g.Namespace || w.Name != ref.WorkloadName {
			continue
		}
		if !hasTemplate(w.Spec.PodGroupTemplates, w.Spec.CompositePodGroupTemplates, ref.TemplateName) {
			c.addFault(at, at.line, "spec.workloadRef.templateName", "%q: must be a template of Workload %s", ref.TemplateName, w.Name)
		}
		return
	}

	c.addFault(at, at.line, "spec.workloadRef.workloadName", "%q: must be a Workload of the input", ref.WorkloadName)
}

// hasTemplate reports whether a template of that name is in list, or nested in one of the
// composites.
func hasTemplate(list []schedulingv1beta1.PodGroupTemplate, composites []schedulingv1beta1.CompositePodGroupTemplate, name string) bool {
	return slices.ContainsFunc(list, func(t schedulingv1beta1.PodGroupTemplate) bool { return t.Name == name }) ||
		slices.ContainsFunc(composites, func(t schedulingv1beta1.CompositePodGroupTemplate) bool {
			return hasTemplate(t.PodGroupTemplates, t.CompositePodGroupTemplates, name)
		})
}

// noteElsewhere counts a pod on a node missing from the input. The output of kubectl get all, for
// example, contains no nodes. In strict mode the pod is a fault.
func (c *checker) noteElsewhere(at place, node string) {
	if c.strict {
		c.addFault(at, at.nodeName, "spec.nodeName",
			"%q: must be a node of the input (without --strict the pod is kept as bound elsewhere)", node)
		return
	}
	if c.set.Elsewhere == nil {
		c.set.Elsewhere = map[string]int{}
	}
	c.set.Elsewhere[node]++
}

// checkClasses checks the classes named by a pod or a template. The two system priority classes
// exist in every cluster. prefix is the path of the pod's spec, with a trailing dot.
func (c *checker) checkClasses(at place, spec *v1.PodSpec, prefix string) {
	if name := spec.PriorityClassName; name != "" && !c.priorities[name] {
		// The system classes need no object.
		if _, known := rules.SystemPriority(name); !known {
			c.addFault(at, at.priorityClass, prefix+"priorityClassName",
				"%q: must be a PriorityClass of the input, %s or %s", name, rules.SystemClusterCritical, rules.SystemNodeCritical)
		}
	}
	if name := spec.RuntimeClassName; name != nil && !c.runtimes[*name] {
		c.addFault(at, at.runtimeClass, prefix+"runtimeClassName", "%q: must be a RuntimeClass of the input", *name)
	}
}

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
