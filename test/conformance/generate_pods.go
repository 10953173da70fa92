// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// podGenerator draws running, nominated and pending pods, and their budgets.
type podGenerator struct {
	*dice
	w       *World
	terms   *termGenerator
	devices *deviceGenerator
	storage *storageGenerator

	apps  []app
	taken map[string]bool // host ports and claims used by placed pods
}

// app holds the labels, namespace and owner shared by several pods of this world.
type app struct {
	name      string
	namespace string
	labels    map[string]string
	owner     *metav1.OwnerReference
}

// makeApps draws what several pods have in common: labels, a namespace, a controller, a service.
func (g *podGenerator) makeApps() {
	for i := range g.drawBetween(2, 5) {
		a := app{name: fmt.Sprintf("app-%d", i), namespace: pickOne(g, "default", "default", "team-a", "team-b")}
		a.labels = map[string]string{"app": pickOne(g, "web", "db", "cache", "")}
		if g.withChance(0.5) {
			a.labels["tier"] = pickOne(g, "front", "back")
		}

		if g.withChance(0.3) {
			a.labels["rev"] = pickOne(g, "1", "2")
		}
		meta := metav1.ObjectMeta{Namespace: a.namespace, Name: a.name}
		selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": a.labels["app"]}}

		switch g.IntN(5) {
		case 0:
			g.w.addObject(&appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: g.orOther(selector)}})
			a.owner = newOwner("apps/v1", "ReplicaSet", a.name)
		case 1:
			g.w.addObject(&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: g.orOther(selector)}})
			a.owner = newOwner("apps/v1", "StatefulSet", a.name)
		case 2:
			g.w.addObject(&v1.ReplicationController{ObjectMeta: meta, Spec: v1.ReplicationControllerSpec{Selector: a.labels}})
			a.owner = newOwner("v1", "ReplicationController", a.name)
		case 3:
			a.owner = newOwner("apps/v1", pickOne(g, "ReplicaSet", "DaemonSet", "Job"), "gone")
		}

		if g.withChance(0.5) {
			g.w.addObject(&v1.Service{ObjectMeta: meta,
				Spec: v1.ServiceSpec{Selector: pickOne(g, a.labels, map[string]string{"app": "web"}, nil)}})
		}
		g.apps = append(g.apps, a)
	}
}

func (g *podGenerator) orOther(s *metav1.LabelSelector) *metav1.LabelSelector {
	if g.withChance(0.2) {
		return g.terms.drawSelector()
	}
	return s
}

func newOwner(apiVersion, kind, name string) *metav1.OwnerReference {
	return &metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID("uid-" + name), Controller: ptr.To(true)}
}

func (g *podGenerator) addPlaced() {
	count := g.drawFew(200)
	if g.hasLeaning("full") {
		count = min(200, 10*len(g.w.Nodes))
	}
	for range count {
		pod := g.drawPod("run")
		pod.Spec.NodeName = pickOne(g, g.w.Nodes...).Name
		if g.withChance(0.01) {
			pod.Spec.NodeName = "unknown-node"
		}
		g.dropTakenPorts(pod)
		g.dropTakenClaims(pod)
		g.drawStatus(pod)
		g.w.Placed = append(g.w.Placed, pod)
	}
}

// packNodes fills all nodes with pods of a few priorities and start times, so that a pending pod
// must preempt and has many choices. Start times within a node are unique, because otherwise
// upstream would choose the victims at random.
func (g *podGenerator) packNodes() {
	for _, node := range g.w.Nodes {
		g.putAmount(node.Status.Allocatable, v1.ResourceCPU, "4")
		g.putAmount(node.Status.Allocatable, v1.ResourceMemory, "64Gi")
		g.putAmount(node.Status.Allocatable, v1.ResourcePods, "110")
		began := g.Perm(12)
		for free, i := 4000, 0; free > 0 && i < len(began); i++ {
			a, name := pickOne(g, g.apps...), g.nextName("run")
			takes := min(free, pickOne(g, 500, 500, 1000, 1500, 2000))
			free -= takes
			pod := &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: name, UID: types.UID(name),
					Labels: maps.Clone(a.labels), CreationTimestamp: g.nextTime()},
				Spec: v1.PodSpec{
					NodeName: node.Name, SchedulerName: v1.DefaultSchedulerName,
					Priority: ptr.To(pickOne(g, int32(0), 0, 0, 10, 10, 100, 100, 2000)),
					Containers: []v1.Container{{Name: "main", Image: imageNames[0],
						Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
							v1.ResourceCPU: *resource.NewMilliQuantity(int64(takes), resource.DecimalSI)}}}},
				},
				Status: v1.PodStatus{Phase: v1.PodRunning,
					StartTime: ptr.To(metav1.NewTime(epoch.Add(time.Duration(began[i]) * time.Hour)))},
			}

			if g.withChance(0.03) {
				deleted := g.nextTime()
				pod.DeletionTimestamp = &deleted
			}
			g.w.Placed = append(g.w.Placed, pod)
		}
	}
}

// dropTakenPorts removes ports of the pod that another pod on its node uses, because such pods
// cannot both run. Besides, upstream keeps the ports of a node as a set, and would consider the
// port free as soon as one of the pods leaves.
func (g *podGenerator) dropTakenPorts(pod *v1.Pod) {
	for _, containers := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			containers[i].Ports = slices.DeleteFunc(containers[i].Ports, func(p v1.ContainerPort) bool {
				id := fmt.Sprint(pod.Spec.NodeName, p.HostPort, cmp.Or(p.HostIP, "0.0.0.0"), cmp.Or(p.Protocol, v1.ProtocolTCP))
				taken := g.taken[id]
				g.taken[id] = true
				return taken
			})
		}
	}
}

// dropTakenClaims removes volumes from the pod if another pod already uses their claims and the
// claims permit only one pod.
func (g *podGenerator) dropTakenClaims(pod *v1.Pod) {
	pod.Spec.Volumes = slices.DeleteFunc(pod.Spec.Volumes, func(v v1.Volume) bool {
		if v.PersistentVolumeClaim == nil {
			return false
		}
		id := "claim " + pod.Namespace + "/" + v.PersistentVolumeClaim.ClaimName
		taken := g.taken[id]
		g.taken[id] = true
		return taken && g.storage.single[id]
	})
}

func (g *podGenerator) drawStatus(pod *v1.Pod) {
	pod.Status.Phase = v1.PodRunning
	if g.withChance(0.97) {
		started := g.nextTime()
		pod.Status.StartTime = &started
	} else {
		pod.Status.Phase = v1.PodPending
	}

	if g.withChance(0.06) {
		deleted := g.nextTime()
		pod.DeletionTimestamp = &deleted
		if g.withChance(0.5) {
			pod.Status.Conditions = append(pod.Status.Conditions, v1.PodCondition{
				Type: v1.DisruptionTarget, Status: v1.ConditionTrue,
				Reason: pickOne(g, v1.PodReasonPreemptionByScheduler, "DeletionByTaintManager"),
			})
		}
	}

	if g.hasLeaning("resized") {
		g.drawResize(pod)
	}
}

func (g *podGenerator) addNominated() {
	for range g.drawFew(6) {
		if !g.hasLeaning("nominated") {
			continue
		}
		pod := g.drawPod("nominated")
		pod.Spec.Priority = ptr.To(pickOne(g, priorities[3:]...))
		pod.Status.NominatedNodeName = pickOne(g, g.w.Nodes...).Name
		g.w.Nominated = append(g.w.Nominated, pod)
	}
}

func (g *podGenerator) addPending() {
	for range g.drawBetween(2, 6) {
		pod := g.drawPod("wait")
		if g.withChance(0.07) && !asksForHuge(pod) { // the sum of two huge requests on a node would overflow
			pod.Status.NominatedNodeName = pickOne(g, pickOne(g, g.w.Nodes...).Name, "unknown-node")
		}
		if g.withChance(0.03) { // a scheduler would not try such a pod, but the results are comparable
			pod.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "example.com/quota"}, {Name: "example.com/approval"}}
		}
		g.w.Pending = append(g.w.Pending, pod)
	}
	if g.w.Sequence = g.withChance(0.5); !g.w.Sequence {
		return
	}
	for range g.drawBetween(0, 8) { // replicas
		pod := pickOne(g, g.w.Pending...).DeepCopy()
		pod.Name = g.nextName("wait")
		pod.UID = types.UID("uid-" + pod.Name)
		if _, unique := pod.Labels["pod"]; unique {
			pod.Labels["pod"] = pod.Name
		}
		pod.Status.NominatedNodeName = ""
		g.w.Pending = append(g.w.Pending, pod)
	}
}

// priorities lists the drawn priorities. There are only a few, so that many pods have the same
// priority and differ only in age.
var priorities = []int32{math.MinInt32, -10, 0, 0, 100, 1000, 1000, 1000000000, 2000001000}

// drawPod draws a pod of one of the apps.
func (g *podGenerator) drawPod(kind string) *v1.Pod {
	a := pickOne(g, g.apps...)
	name := g.nextName(kind)
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: a.namespace, Name: name, UID: types.UID("uid-" + name), Labels: maps.Clone(a.labels), CreationTimestamp: g.nextTime(),
	}}
	if a.owner != nil && g.withChance(0.8) {
		pod.OwnerReferences = []metav1.OwnerReference{*a.owner}
	}
	if g.withChance(0.1) {
		pod.Labels = pickOne(g, nil, map[string]string{"tier": "front"}, map[string]string{"app": "web", "rev": "2"})
	}
	if g.hasLeaning("unique") {
		if pod.Labels == nil {
			pod.Labels = map[string]string{}
		}
		pod.Labels["pod"] = name
	}
	pod.Spec.SchedulerName = v1.DefaultSchedulerName
	if g.withChance(0.9) {
		pod.Spec.Priority = ptr.To(pickOne(g, priorities...))
	}
	if kind != "run" && g.withChance(0.5) {
		pod.Spec.Priority = ptr.To(int32(1000)) // above the priority of most running pods, so that the pod can preempt
	}
	if g.withChance(0.1) {
		pod.Spec.PreemptionPolicy = ptr.To(pickOne(g, v1.PreemptNever, v1.PreemptLowerPriority))
	}
	if g.withChance(0.1) {
		pod.Spec.HostNetwork = true
		pod.Spec.HostUsers = pickOne(g, nil, ptr.To(true), ptr.To(false))
	}
	g.drawContainers(pod)
	if kind == "wait" && g.hasLeaning("huge") {
		g.hugeRequest(pod)
	}
	g.drawTolerations(pod)
	g.terms.drawAffinity(pod)
	g.terms.drawSpread(pod)
	g.storage.podVolumes(pod)
	g.devices.podClaims(pod)
	return pod
}

func (g *podGenerator) drawTolerations(pod *v1.Pod) {
	for (g.hasLeaning("taints") || g.withChance(0.1)) && len(pod.Spec.Tolerations) < 5 {
		t := v1.Toleration{Key: pickOne(g, taintKeys...), Operator: pickOne(g, "", v1.TolerationOpEqual, v1.TolerationOpExists)}
		if t.Operator != v1.TolerationOpExists {
			t.Value = pickOne(g, taintValues...)
		} else if g.withChance(0.15) {
			t.Key = pickOne(g, "", v1.TaintNodeUnschedulable)
		}
		t.Effect = pickOne(g, append([]v1.TaintEffect{""}, taintEffects...)...)
		if g.withChance(0.1) { // the API server accepts these operators if a feature gate is on
			t.Key, t.Operator, t.Value = "level", pickOne(g, v1.TolerationOpGt, v1.TolerationOpLt), pickOne(g, "4", "7", "5", "many")
		}
		if t.Effect == v1.TaintEffectNoExecute && g.withChance(0.3) {
			t.TolerationSeconds = ptr.To(int64(g.drawBetween(-1, 300)))
		}
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, t)
	}
}

func (g *podGenerator) addBudgets() {
	count := g.drawFew(5)
	if g.withChance(0.2) {
		count = g.drawBetween(3, 8)
	}

	for range count {
		budget := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: pickOne(g, "default", "default", "team-a"), Name: g.nextName("budget")},
			Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: g.terms.drawSelector()},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: int32(pickOne(g, 0, 0, 1, 2, 10))},
		}
		if g.withChance(0.1) {
			budget.Spec.Selector = nil
		}
		for _, pod := range drawSome(g, 0.05, g.w.Placed...) {
			if pod.Namespace != budget.Namespace {
				continue
			}
			if budget.Status.DisruptedPods == nil {
				budget.Status.DisruptedPods = map[string]metav1.Time{}
			}
			budget.Status.DisruptedPods[pod.Name] = g.nextTime()
		}
		g.w.addObject(budget)
	}
}
