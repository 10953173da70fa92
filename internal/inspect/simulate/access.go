// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world"
)

// Read access for other packages: a world's pods, nodes, decisions and departures. Of the methods
// in this file, only Settle and UntilTurn change the world, by trying pods. Objects are returned
// without a copy and must not be modified.

// Found is a pod and its state in a world.
type Found struct {
	// Object is the pod stored in, or destined for, the API server. It must not be modified.
	Object *v1.Pod
	// Pod is the engine's representation; nil once the pod has ended or no longer waits for a node.
	// Each change of the pod replaces it, so callers must not retain it.
	Pod *cluster.Pod
	// Refused is the reason the API server would refuse to create the pod; empty if it would not.
	Refused string
	// Message explains why the pod found no node, if it was tried in this world. For a member of a
	// waiting pod group, it explains why the group waits.
	Message string
	// Group is the pod's pod group, if any.
	Group string
}

// Cluster returns the cluster used for decisions. Callers may change it to try something, and must
// revert the change before any other call.
func (w *World) Cluster() *cluster.Cluster { return w.c }

// Trial returns the world for trials. Callers must revert their changes before they return.
func (w *World) Trial() *world.World { return w.scheduler.api }

// Now returns the world's current time.
func (w *World) Now() time.Time { return w.clock.time() }

// Elapsed returns the time passed since the world began.
func (w *World) Elapsed() time.Duration { return w.clock.now }

// Find returns a pod by name.
func (w *World) Find(namespace, name string) (Found, bool) {
	p := w.pods.named[Name{namespace, name}]
	if p == nil {
		return Found{}, false
	}
	return w.scheduler.found(p), true
}

// found returns the exported view of a pod.
func (s *scheduler) found(p *pod) Found {
	f := Found{Object: p.object, Pod: p.Pod, Refused: p.refused, Message: p.refusal}
	if s.groups != nil {
		f.Group = groups.NameOf(p.object)
	}
	return f
}

// Each lists all pods, including ended ones, by namespace and name.
func (w *World) Each() []Found {
	return answer.Mapped(w.pods.byName(), w.scheduler.found)
}

// PodsOf lists the pods of a workload such as deployment/web by name, excluding pods being deleted.
// An unknown workload is an error.
func (w *World) PodsOf(ref, namespace string) ([]Found, error) {
	l, err := w.workloads.findNamed(ref, namespace)
	if err != nil {
		return nil, err
	}
	list := answer.Mapped(w.controllers.podsOf(l), w.scheduler.found)
	slices.SortFunc(list, func(a, b Found) int { return cmp.Compare(a.Object.Name, b.Object.Name) })
	return list, nil
}

// Compare orders by namespace, then by name.
func (n Name) Compare(o Name) int {
	return cmp.Or(cmp.Compare(n.Namespace, o.Namespace), cmp.Compare(n.Name, o.Name))
}

// Node returns a node by name, or nil.
func (w *World) Node(name string) *v1.Node {
	if m := w.nodes.named[name]; m != nil {
		return m.object
	}
	return nil
}

// HoldsPods reports whether deleted pods stay on the node because its kubelet does not respond.
func (w *World) HoldsPods(node string) bool {
	m := w.nodes.named[node]
	return m != nil && m.holdsPods()
}

// Profile returns the profile for the scheduler name, or nil.
func (w *World) Profile(schedulerName string) *plugins.Profile {
	return w.scheduler.profiles[schedulerName]
}

// Decider returns the decider for pods of the scheduler name, or nil without a matching profile.
// Its decisions concern the world's cluster but do not change it.
func (w *World) Decider(schedulerName string) *decide.Decider {
	return w.scheduler.core.Decider(schedulerName)
}

// Gate returns the reason the pod may not be tried yet, or "" if it may.
func (w *World) Gate(p *cluster.Pod) string { return w.scheduler.gateReason(p) }

// MissingTemplate returns the name of a ResourceClaimTemplate that the pod needs for its claims and
// that does not exist; "" if there is none, or if the input may be incomplete.
func (w *World) MissingTemplate(p *v1.Pod) string {
	if !w.workloads.set.Whole {
		return ""
	}
	for i := range p.Spec.ResourceClaims {
		template := p.Spec.ResourceClaims[i].ResourceClaimTemplateName
		if template == nil || i < len(p.Status.ResourceClaimStatuses) {
			continue
		}
		if _, there := w.claims.templateNamed(p.Namespace, *template); !there {
			return *template
		}
	}
	return ""
}

// Queue lists the pending pods eligible for a try, in queue order, without gated pods. It includes
// pods in back-off, although pods behind them may be tried first.
func (w *World) Queue() []*cluster.Pod {
	ready := slices.DeleteFunc(slices.Collect(maps.Values(w.scheduler.pending)),
		func(p *pod) bool { return w.scheduler.gateReason(p.Pod) != "" })
	slices.SortFunc(ready, compareQueued)
	return answer.Mapped(ready, func(p *pod) *cluster.Pod { return p.Pod })
}

// UntilTurn tries the pods ahead of the named one in the queue and leaves the rest pending. If the
// named pod is not in the queue, it tries none.
func (w *World) UntilTurn(namespace, name string) {
	w.scheduler.untilTurn(w.pods.named[Name{namespace, name}])
}

// Stored reports whether the pod was read from an API server. A stored pod is used unchanged and
// does not go through admission again.
func Stored(p *v1.Pod) bool { return admission.Stored(p) && p.ResourceVersion != "" }

// Settle tries pending pods until nothing changes. Time does not advance.
func (w *World) Settle() { w.scheduler.trySettled() }

// Pods returns the decisions so far, in order.
func (w *World) Pods() []Pod { return w.report.said.Pods }

// Outlook lists the evictions that are due later.
func (w *World) Outlook() []Eviction {
	list := w.evictions.toCome()
	slices.SortFunc(list, Eviction.compare)
	return list
}

// Due returns the time at which a pod must leave its node because of taints.
func (w *World) Due(pod types.UID) eviction.Due { return w.evictions.dueOf(pod) }

// Departures lists the pods that left their nodes, in order. Their fates may still change as time
// passes.
func (w *World) Departures() []*Departure {
	for _, d := range w.controllers.waiting {
		if !w.workloads.isWanted(d.object) { // its StatefulSet was scaled down meanwhile
			d.Fate = Ends
		}
	}
	return w.controllers.departed
}

// Next returns the departed pod's successor: its name, and its node or the reason it is pending. ok
// is false if the pod has not been replaced.
func (d *Departure) Next() (name Name, node, message string, ok bool) {
	if d.next == nil {
		return Name{}, "", "", false
	}
	p := d.next
	return Name{p.object.Namespace, p.object.Name}, p.NodeName, cmp.Or(p.refused, p.refusal), true
}

// PriorityClasses returns the classes available to users, lowest first, without the system classes.
func (w *World) PriorityClasses() []*schedulingv1.PriorityClass {
	list := slices.DeleteFunc(slices.Collect(maps.Values(w.pods.catalog.PriorityClasses)), func(class *schedulingv1.PriorityClass) bool {
		_, system := rules.SystemPriority(class.Name)
		return system
	})
	slices.SortFunc(list, func(a, b *schedulingv1.PriorityClass) int {
		return cmp.Or(cmp.Compare(a.Value, b.Value), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// ChangeNode changes an existing node. alter receives a copy.
func (w *World) ChangeNode(name string, alter func(*v1.Node)) { w.nodes.changeNode(name, alter) }

// AddNode adds a node with the volume limits of csi, which may be nil.
func (w *World) AddNode(node *v1.Node, csi *storagev1.CSINode) {
	if csi != nil {
		w.scheduler.api.Put(csi)
	}
	w.nodes.applyNode(node)
}

// InNamespace lists the pods of a namespace by name, ended ones included.
func (w *World) InNamespace(namespace string) (list []Found) {
	return slices.DeleteFunc(w.Each(), func(f Found) bool { return f.Object.Namespace != namespace })
}

// CountPods returns the number of pods, ended ones included.
func (w *World) CountPods() int { return len(w.pods.named) }

// Exported view of a pod's owner: its controller and, above a ReplicaSet, the Deployment. A
// reference identifies an owner even if the object was not read.

// Owner is an object that creates pods, directly or through a controller.
type Owner struct {
	Kind, Name string
	// Object is nil if it was not read or its kind is not supported.
	Object metav1.Object
	// Template is the template of its pods; nil if Object is nil.
	Template *v1.PodTemplateSpec
}

// Ref returns the owner's reference, Kind/name.
func (o *Owner) Ref() string { return o.Kind + "/" + o.Name }

// Workload returns the owner's kubectl name, such as deployment/web.
func (o *Owner) Workload() string { return strings.ToLower(o.Kind) + "/" + o.Name }

// ControllerOf returns the controller of the pod, or nil. Its Object may be nil.
func (w *World) ControllerOf(p *v1.Pod) *Owner {
	return w.workloads.ownerBy(p.Namespace, metav1.GetControllerOfNoCopy(p))
}

// OwnerOf returns the owner by which users identify a pod: its controller or, if that is a
// ReplicaSet, the ReplicaSet's owner. It returns nil for a pod without a controller.
func (w *World) OwnerOf(p *v1.Pod) *Owner {
	owner := w.ControllerOf(p)
	if owner == nil || owner.Kind != "ReplicaSet" {
		return owner
	}
	if owner.Object != nil {
		return cmp.Or(w.ControlledBy(p.Namespace, owner), owner)
	}
	// The ReplicaSet was not read. Its name consists of the Deployment's name and the hash in the
	// pod's label, so it still identifies the Deployment.
	hash := p.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	if name, ok := strings.CutSuffix(owner.Name, "-"+hash); ok && hash != "" { // the Deployment controller's naming scheme
		owner = &Owner{Kind: "Deployment", Name: name}
		if l := w.workloads.table().Named(rules.Deployment, p.Namespace, name); l != nil {
			owner.Object, owner.Template = l.Object, l.Template
		}
	}
	return owner
}

// ControlledBy returns the controller of an owner, which manages the owner's template, or nil.
func (w *World) ControlledBy(namespace string, o *Owner) *Owner {
	if o.Object == nil {
		return nil
	}
	return w.workloads.ownerBy(namespace, metav1.GetControllerOfNoCopy(o.Object))
}

// ownerBy returns the owner identified by a reference in the namespace; nil without a reference.
func (w *workloads) ownerBy(namespace string, ref *metav1.OwnerReference) *Owner {
	if ref == nil {
		return nil
	}
	owner := &Owner{Kind: ref.Kind, Name: ref.Name}
	if l := w.table().OwnedBy(rules.OwnerBy(namespace, ref)); l != nil {
		owner.Object, owner.Template = l.Object, l.Template
	}
	return owner
}
