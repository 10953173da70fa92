// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package claimcontrollers simulates the controllers of volumes and device claims for a scheduling
// core in virtual time. The core's writes to these objects succeed immediately, and the core
// receives their effects as events, as in a cluster.
package claimcontrollers

import (
	"cmp"
	"fmt"
	"hash/fnv"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Controllers react to the actions of a core, based on the core's own cluster. Their methods pass
// each write to the core before they return, and run on the core's goroutine.
type Controllers struct {
	Cluster *cluster.Cluster
	// Feed passes an event to the core, and carries out the resulting actions. It may call CarryOut
	// again.
	Feed func(cycle.Event)
	// Named, if set, is called with the name of the claim for a pod's extended resources.
	Named func(pod types.UID, status *v1.PodExtendedResourceClaimStatus)
	// Stalled holds the storage classes without a working provisioner.
	Stalled map[string]bool
	// Now returns the virtual time.
	Now func() metav1.Time
}

// CarryOut carries out an action on volumes or claims, and acknowledges it. It returns false for
// any other action, which the caller must carry out.
func (c *Controllers) CarryOut(action cycle.Action) bool {
	switch a := action.(type) {
	case cycle.WriteVolumes: // the core waits for the response before it binds the pod
		c.Bind(a.Volumes, c.Cluster.Node(a.Attempt.Node))
		c.answer(a.Ticket, cycle.Outcome{})
	case cycle.WriteClaims:
		c.writeClaims(a)
	case cycle.ReleaseClaim:
		changed, gone := plugins.Released(a.Claim, a.Holder)
		c.change(changed, gone)
		if a.Ticket != 0 {
			c.answer(a.Ticket, cycle.Outcome{})
		}
	case cycle.DeallocateClaim:
		c.change(a.Claim, a.Delete)
		c.answer(a.Ticket, cycle.Outcome{})
	default:
		return false
	}

	return true
}

// Gone releases the devices of a removed pod, like the resource claim controller. Claims.Release
// handles the claims of its ephemeral volumes.
func (c *Controllers) Gone(p *cluster.Pod) {
	changed, gone := plugins.ClaimsWithout(c.Cluster, p)
	for _, claim := range changed {
		c.change(claim, false)
	}
	for _, claim := range gone {
		c.change(claim, true)
	}
}

// change shows the core a changed or deleted (gone) claim.
func (c *Controllers) change(claim *resourcev1.ResourceClaim, gone bool) {
	if gone {
		c.Feed(cycle.Gone{Kind: cycle.ResourceClaims, Object: claim})
		return
	}
	c.show(cycle.ResourceClaims, claim.DeepCopy())
}

// show passes a written object, owned by the caller, to the core. It removes the resourceVersion,
// because a core considers an object with a known version as merely relisted.
func (c *Controllers) show(kind cycle.Kind, object metav1.Object) {
	object.SetResourceVersion("")
	c.Feed(cycle.Seen{Kind: kind, Object: object})
}

// answer acknowledges an action of the core.
func (c *Controllers) answer(ticket cycle.Ticket, o cycle.Outcome) {
	c.Feed(cycle.Answered{Ticket: ticket, Outcome: o})
}

// Bind simulates the provisioners and the volume binding controller for a pod's volumes. It binds
// chosen volumes to their claims, and provisions volumes for the other claims, unless their class
// is stalled. node is the pod's future node, or nil.
func (c *Controllers) Bind(volumes plugins.PodVolumes, node *cluster.Node) {
	for _, volume := range volumes.Volumes {
		c.show(cycle.Volumes, volume.DeepCopy())
		// The core has chosen the claim.
		ref := volume.Spec.ClaimRef
		if claim, ok := c.Cluster.Claims.Get(ref.Namespace, ref.Name); ok {
			c.bindClaim(claim, volume.Name)
		}
	}
	for _, claim := range volumes.Claims {
		if c.Stalled[ptr.Deref(claim.Spec.StorageClassName, "")] {
			c.show(cycle.Claims, claim.DeepCopy()) // with the selected node
			continue
		}
		volume := c.provision(claim, node)
		c.show(cycle.Volumes, volume)
		c.bindClaim(claim, volume.Name)
	}
}

// bindClaim binds a claim to a volume, and adds the annotation that schedulers require to trust the
// binding.
func (c *Controllers) bindClaim(claim *v1.PersistentVolumeClaim, volume string) {
	claim = claim.DeepCopy()
	claim.Spec.VolumeName, claim.Status.Phase = volume, v1.ClaimBound
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
	c.show(cycle.Claims, claim)
}

// provision creates the volume for a claim within reach of the selected node, according to the
// driver's topology. Without a class the volume is reachable from every node.
func (c *Controllers) provision(claim *v1.PersistentVolumeClaim, node *cluster.Node) *v1.PersistentVolume {
	uid := cmp.Or(claim.UID, types.UID(claim.Namespace+"-"+claim.Name))

	volume := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(uid), UID: "volume/" + uid, CreationTimestamp: c.Now()},
		Spec: v1.PersistentVolumeSpec{
			Capacity: claim.Spec.Resources.Requests, AccessModes: claim.Spec.AccessModes, VolumeMode: claim.Spec.VolumeMode,
			ClaimRef: &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace,
				Name: claim.Name, UID: claim.UID},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
	}

	if claim.Spec.StorageClassName == nil {
		return volume
	}
	volume.Spec.StorageClassName = *claim.Spec.StorageClassName
	if class, ok := c.Cluster.StorageClasses.Get("", volume.Spec.StorageClassName); ok {
		volume.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: class.Provisioner, VolumeHandle: volume.Name}
		volume.Spec.NodeAffinity = c.reach(node, class.Provisioner)
	}

	return volume
}

// reach returns the nodes that can use a volume created by a driver for a node: all nodes with the
// same values of the driver's topology keys. nil means all nodes: there is no node, or the driver
// has no topology or is unknown on the node.
func (c *Controllers) reach(node *cluster.Node, driver string) *v1.VolumeNodeAffinity {
	// Without a node, the volume is not bound to any topology.
	if node == nil {
		return nil
	}
	csi, ok := c.Cluster.CSINodes.Get("", node.Name)
	if !ok {
		return nil
	}

	var same []v1.NodeSelectorRequirement
	for _, d := range csi.Spec.Drivers {
		if d.Name != driver {
			continue
		}
		for _, key := range d.TopologyKeys {
			if value, there := node.Lookup(key); there {
				same = append(same, v1.NodeSelectorRequirement{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}})
			}
		}
	}

	if len(same) == 0 {
		return nil
	}
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: same}}}}
}

// writeClaims simulates the API server and the device drivers for a pod's claims: each claim is
// written, and its devices are ready immediately.
func (c *Controllers) writeClaims(a cycle.WriteClaims) {
	o := cycle.Outcome{Written: make([]bool, len(a.Claims.Claims))}
	for i := range a.Claims.Claims {
		reserved := &a.Claims.Claims[i]
		// Do not modify the core's object.
		claim := reserved.Claim.DeepCopy()
		if reserved.Before == nil { // created for extended resources: the API server sets its name and UID
			c.makeClaim(a, claim)
		}
		if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
			claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
		}
		c.prepareDevices(claim)
		o.Claims, o.Written[i] = append(o.Claims, claim), true
		c.show(cycle.ResourceClaims, claim)
	}
	c.answer(a.Ticket, o)
}

// makeClaim gives the core's provisional claim for extended resources a name and a UID, like the
// API server. The name is derived from the ticket, so it is the same in every run.
func (c *Controllers) makeClaim(a cycle.WriteClaims, claim *resourcev1.ResourceClaim) {
	standIn, pod := cluster.Name{Namespace: claim.Namespace, Name: claim.Name}, a.Attempt.Pod
	claim.Name, claim.UID = fmt.Sprintf("%s-extended-resources-%d", pod.Name, a.Ticket), pod.UID+"/extended-resources"
	made := claim.DeepCopy()
	made.Status = resourcev1.ResourceClaimStatus{}
	c.Feed(cycle.ClaimMade{Ticket: a.Ticket, StandIn: standIn, Claim: made})
	if c.Named != nil {
		c.Named(pod.UID, &v1.PodExtendedResourceClaimStatus{RequestMappings: a.Claims.Mappings, ResourceClaimName: claim.Name})
	}
}

// prepareDevices makes the devices of a claim ready: all binding conditions requested by the
// allocation become true.
func (c *Controllers) prepareDevices(claim *resourcev1.ResourceClaim) {
	if claim.Status.Allocation == nil {
		return
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		if len(r.BindingConditions) == 0 {
			continue
		}
		status := resourcev1.AllocatedDeviceStatus{Driver: r.Driver, Pool: r.Pool, Device: r.Device}
		if r.ShareID != nil {
			status.ShareID = new(string(*r.ShareID))
		}

		for _, condition := range r.BindingConditions {
			status.Conditions = append(status.Conditions, metav1.Condition{
				Type: condition, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: c.Now(),
			})
		}
		claim.Status.Devices = append(claim.Status.Devices, status)
	}
}

// Name generates the name of a pod. Like the API server, it appends five letters of the API
// server's alphabet to base, but the same seed always gives the same letters. It avoids names
// already taken.
func Name(namespace, base string, seed any, taken func(name string) bool) string {
	const alphabet, suffix = "bcdfghjklmnpqrstvwxz2456789", 5
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s#%v", namespace, base, seed)
	for {
		name := []byte(base)
		for sum := h.Sum64(); len(name) < len(base)+suffix; sum /= uint64(len(alphabet)) {
			name = append(name, alphabet[sum%uint64(len(alphabet))])
		}
		if !taken(string(name)) {
			return string(name)
		}
		h.Write([]byte{'+'}) // otherwise some of thousands of pods would have the same name
	}
}

// BaseOf returns the beginning of the names of a controller's pods: the generateName of an existing
// pod, or the controller's name and a dash.
func BaseOf(p *v1.Pod, owner *metav1.OwnerReference) string {
	return cmp.Or(p.GenerateName, owner.Name+"-")
}

// longestGrace bounds grace periods. Some grace periods have more seconds than a Duration holds,
// and would become negative by overflow.
const longestGrace = 10 * 365 * 24 * time.Hour

// GraceOf returns the time a pod takes to terminate. This is its whole grace period, 30 seconds by
// default, because an earlier end cannot be predicted.
func GraceOf(p *v1.Pod) time.Duration {
	seconds := ptr.Deref(p.Spec.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds)
	return time.Duration(min(seconds, int64(longestGrace/time.Second))) * time.Second
}
