// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"fmt"
	"maps"
	"strings"
	"unique"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Pod is the stored part of a pod. It is immutable: each new state is a new Pod.
type Pod struct {
	eviction  eviction.Pod
	status    string // status in one word; see podStatus
	ended     bool
	owner     string // Kind/name of the pod's controller
	workload  string // Kind/name of the workload; for a Deployment's ReplicaSet, the Deployment
	scheduler string
	group     string // name of the pod's PodGroup
	priority  int32
	created   int64

	cpu, memory                 int64 // requests, including overhead
	overheadCPU, overheadMemory int64
	others                      map[v1.ResourceName]resource.Quantity // requests other than CPU and memory; nil if there are none

	reason, message string // reason and message of the condition PodScheduled, unless it is true
	nominated       string
	claims          []string // names of the ResourceClaims of a pending pod
	claimFault      string   // reason that a claim of the pod has no name yet
	going           int64    // end of the grace period; 0: the pod is not being deleted
	cause           string   // reason of the condition DisruptionTarget
	began           int64    // time at which the deletion was requested; 0: it was not

	held *held // nil unless the guard holds the pod's eviction

	list uint32 // number of the last list that contained the pod
}

// held is an eviction held by the guard.
type held struct {
	until  int64
	status string
}

// heldOf returns the pod's held eviction, or nil.
func heldOf(object *v1.Pod) *held {
	since, status, ok := evictionguard.HeldSince(object)
	if !ok {
		return nil
	}
	return &held{until: since.Add(evictionguard.DefaultDeadline).UnixMilli(), status: cmp.Or(status, "waiting for the guard")}
}

// PodOf extracts the stored part of an object. It keeps few fields, and interns most texts, which
// are shared by many pods.
func PodOf(object *v1.Pod) *Pod {
	p := &Pod{
		eviction: eviction.PodOf(object), status: internString(podStatus(object)), ended: rules.IsTerminal(object),
		scheduler: internString(object.Spec.SchedulerName), priority: rules.Priority(object), created: object.CreationTimestamp.UnixMilli(),
		nominated: internString(object.Status.NominatedNodeName), held: heldOf(object),
	}
	// Intern the names; otherwise each pod would keep a separate copy.
	p.eviction.Name.Namespace, p.eviction.Node = internString(object.Namespace), internString(object.Spec.NodeName)
	p.eviction.ResourceVersion = "" // unused: the dashboard never writes
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		p.owner = internString(owner.Kind + "/" + owner.Name)
		p.workload = internString(workloadOf(owner, object.Labels))
	}
	if in := object.Spec.SchedulingGroup; in != nil && in.PodGroupName != nil {
		p.group = internString(*in.PodGroupName)
	}
	p.takeRequests(object)
	for i := range object.Status.Conditions {
		switch c := &object.Status.Conditions[i]; {
		case c.Type == v1.PodScheduled && c.Status != v1.ConditionTrue:
			p.reason, p.message = internString(c.Reason), internString(c.Message)
		case c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue:
			p.cause = internString(c.Reason)
		}
	}
	// Only a pending pod can wait for its claims.
	if p.isWaiting() {
		p.takeClaims(object)
	}
	if object.DeletionTimestamp != nil {
		p.going = object.DeletionTimestamp.UnixMilli()
		p.began = p.going - 1000*ptr.Deref(object.DeletionGracePeriodSeconds, 0)
	}
	return p
}

// workloadOf returns a pod's workload by its controller. A ReplicaSet with its template's hash as
// the suffix of its name belongs to a Deployment.
//
//	ReplicaSet web-5d78c9869d, pod-template-hash 5d78c9869d   Deployment/web
//	StatefulSet db                                            StatefulSet/db
func workloadOf(owner *metav1.OwnerReference, labels map[string]string) string {
	hash := labels[appsv1.DefaultDeploymentUniqueLabelKey]
	if name, ok := strings.CutSuffix(owner.Name, "-"+hash); ok && owner.Kind == "ReplicaSet" && hash != "" {
		return "Deployment/" + name
	}
	return owner.Kind + "/" + owner.Name
}

// internString interns a string: pods have few different namespaces, nodes, owners and messages.
func internString(s string) string { return unique.Make(s).Value() }

// takeRequests records the pod's requests. For a pod on a node these are the kubelet's allocated
// resources.
func (p *Pod) takeRequests(object *v1.Pod) {
	requests := rules.Requests(object)
	if object.Spec.NodeName != "" {
		requests = rules.RequestsPlaced(object)
	}

	for name, quantity := range requests {
		switch name {
		case v1.ResourceCPU:
			p.cpu = quantity.MilliValue()
		case v1.ResourceMemory:
			p.memory = quantity.Value()
		default:
			if p.others == nil {
				p.others = map[v1.ResourceName]resource.Quantity{}
			}
			p.others[name] = quantity
		}
	}

	p.overheadCPU, p.overheadMemory = object.Spec.Overhead.Cpu().MilliValue(), object.Spec.Overhead.Memory().Value()
}

// podStatus returns the state of a pod in a word. It is shorter than kubectl's: it ignores init
// containers and exit codes.
func podStatus(p *v1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "Terminating"
	}
	for i := range p.Status.ContainerStatuses {
		if waiting := p.Status.ContainerStatuses[i].State.Waiting; waiting != nil && waiting.Reason != "" {
			return waiting.Reason
		}
	}
	return cmp.Or(p.Status.Reason, string(p.Status.Phase))
}

// groupName returns the name of the pod's PodGroup. The pod must have one.
func (p *Pod) groupName() types.NamespacedName {
	return types.NamespacedName{Namespace: p.eviction.Name.Namespace, Name: p.group}
}

func (p *Pod) uid() types.UID { return p.eviction.UID }

// isWaiting reports whether the pod is in the queue.
func (p *Pod) isWaiting() bool { return p.eviction.Node == "" && !p.ended && p.going == 0 }

// takesRoom reports whether the pod counts against the room on its node.
func (p *Pod) takesRoom() bool { return p.eviction.Node != "" && !p.ended }

// waitingRow returns the pod's row in the queue, without the cluster's additions.
func (p *Pod) waitingRow() Waiting {
	return Waiting{
		UID: string(p.uid()), Namespace: p.eviction.Name.Namespace, Name: p.eviction.Name.Name, Priority: p.priority, Created: p.created,
		Reason: p.reason, Message: p.message, Nominated: p.nominated, Workload: p.workload, Scheduler: p.scheduler,
		CPU: p.cpu, Memory: p.memory,
	}
}

// This file determines why a pending pod has not been tried: no scheduler of that name is served,
// or one of the pod's ResourceClaims does not exist.

// Serve replaces the names of the schedulers served by Berth. An empty list means that the names
// are unknown; then no pod counts as unserved.
func (c *Cluster) Serve(schedulers []string) {
	served := sets.New(schedulers...)
	// Serve is called every few seconds, but the names rarely change.
	if maps.Equal(served, c.served) {
		return
	}
	c.served = served
	touchAll(c.dirtyPods, c.queue)
}

// whyUntried explains why no scheduler tries a pending pod without a condition PodScheduled; "" if
// a scheduler is still expected to try it. A pod with a missing claim is kept out of the queue and
// does not get the condition.
func (c *Cluster) whyUntried(p *Pod) string {
	if len(c.served) > 0 && !c.served.Has(p.scheduler) {
		return fmt.Sprintf("it is for the scheduler %q, which Berth does not serve here", p.scheduler)
	}
	if p.claimFault != "" {
		return p.claimFault
	}
	for _, name := range p.claims {
		claim := types.NamespacedName{Namespace: p.eviction.Name.Namespace, Name: name}
		if _, exists := c.claims[claim]; c.claimed && !exists {
			return fmt.Sprintf("could not find ResourceClaim %q", claim)
		}
	}
	return ""
}

// takeClaims records the ResourceClaims referenced by a pending pod, or the reason that their names
// are unknown. The pod's status has the name of a claim made from a template once the claim exists.
func (p *Pod) takeClaims(object *v1.Pod) {
	for i := range object.Spec.ResourceClaims {
		switch name, _, err := resourceclaim.Name(object, &object.Spec.ResourceClaims[i]); {
		case err != nil:
			p.claimFault = internString(err.Error())
		case name != nil:
			p.claims = append(p.claims, *name)
		}
	}
}

// ClaimsListing begins a list of ResourceClaims. Claims not observed before the next ClaimsListed
// have been deleted.
func (c *Cluster) ClaimsListing() { c.claimList++ }

// ClaimsListed ends a list of ResourceClaims. Before the first list, no claim counts as missing.
// There is no list if the cluster does not serve the kind or the user has no permission to read it.
func (c *Cluster) ClaimsListed() {
	c.claimed = true
	maps.DeleteFunc(c.claims, func(_ types.NamespacedName, list uint32) bool { return list != c.claimList })
	c.touchClaiming()
}

// ClaimSeen applies a ResourceClaim.
func (c *Cluster) ClaimSeen(name types.NamespacedName) {
	if _, known := c.claims[name]; !known && c.claimed {
		c.touchClaiming()
	}
	c.claims[name] = c.claimList
}

// ClaimGone removes a ResourceClaim.
func (c *Cluster) ClaimGone(name types.NamespacedName) {
	delete(c.claims, name)
	c.touchClaiming()
}

// touchClaiming marks the rows of pending pods with claims as dirty.
func (c *Cluster) touchClaiming() {
	for uid := range c.queue {
		if p := c.pods[uid]; p != nil && len(p.claims) > 0 {
			c.dirtyPods[uid] = true
		}
	}
}
