// Package standin stands in for the controllers of volumes and device claims where a scheduling
// core runs in virtual time: what it asks to be written of them is written at once and without
// fail, and it is shown what a cluster would show it then.
package standin

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Controllers answer a core by what its own cluster shows.
type Controllers struct {
	Cluster *cluster.Cluster
	// Feed tells the core of an event.
	Feed func(cycle.Event)
	// Named, if set, is told which claim has a pod's extended resources.
	Named func(pod types.UID, status *v1.PodExtendedResourceClaimStatus)
	// Now is the time in the world.
	Now func() metav1.Time
}

// CarryOut does what the core asks for of volumes and claims, and says whether the action was of
// that kind.
func (c *Controllers) CarryOut(action cycle.Action) bool {
	switch a := action.(type) {
	case cycle.WriteVolumes:
		c.bindVolumes(a)
	case cycle.WriteClaims:
		c.writeClaims(a)
	case cycle.ReleaseClaim:
		changed, gone := plugins.Released(a.Claim, a.Pod)
		c.change(changed, gone)
	case cycle.GiveBackClaim:
		c.change(a.Claim, a.Delete)
		c.answer(a.Ticket, cycle.Outcome{})
	default:
		return false
	}
	return true
}

// Gone gives back the devices of a pod that is gone.
func (c *Controllers) Gone(p *cluster.Pod) {
	changed, gone := plugins.ClaimsWithout(c.Cluster, p)
	for _, claim := range changed {
		c.change(claim, false)
	}
	for _, claim := range gone {
		c.change(claim, true)
	}
}

func (c *Controllers) change(claim *resourcev1.ResourceClaim, gone bool) {
	if gone {
		c.Feed(cycle.Gone{Kind: cycle.ResourceClaims, Object: claim})
		return
	}
	c.show(cycle.ResourceClaims, claim)
}

func (c *Controllers) show(kind cycle.Kind, object metav1.Object) {
	c.Feed(cycle.Seen{Kind: kind, Object: object})
}

func (c *Controllers) answer(ticket cycle.Ticket, o cycle.Outcome) {
	c.Feed(cycle.Answered{Ticket: ticket, Outcome: o})
}

// bindVolumes does what provisioners and the controller that binds volumes to claims do.
func (c *Controllers) bindVolumes(a cycle.WriteVolumes) {
	node := c.Cluster.Node(a.Attempt.Node)
	for _, volume := range a.Volumes.Volumes {
		c.show(cycle.Volumes, volume)
		ref := volume.Spec.ClaimRef
		if claim, ok := c.Cluster.Claims.Get(ref.Namespace, ref.Name); ok {
			c.bindClaim(claim, volume.Name)
		}
	}
	for _, claim := range a.Volumes.Claims {
		volume := c.provision(claim, node)
		c.show(cycle.Volumes, volume)
		c.bindClaim(claim, volume.Name)
	}
	c.answer(a.Ticket, cycle.Outcome{})
}

func (c *Controllers) bindClaim(claim *v1.PersistentVolumeClaim, volume string) {
	claim = claim.DeepCopy()
	claim.Spec.VolumeName, claim.Status.Phase = volume, v1.ClaimBound
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
	c.show(cycle.Claims, claim)
}

// provision makes the volume for a claim, where the node that was selected can reach it: in its
// part of the driver's topology.
func (c *Controllers) provision(claim *v1.PersistentVolumeClaim, node *cluster.Node) *v1.PersistentVolume {
	uid := claim.UID
	if uid == "" {
		uid = types.UID(claim.Namespace + "-" + claim.Name)
	}
	volume := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(uid), UID: "volume/" + uid, CreationTimestamp: c.Now()},
		Spec: v1.PersistentVolumeSpec{
			Capacity: claim.Spec.Resources.Requests, AccessModes: claim.Spec.AccessModes, VolumeMode: claim.Spec.VolumeMode,
			ClaimRef: &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
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

// reach is where a volume can be used that a driver makes for a node: on the nodes that agree with
// it in the keys of the driver.
func (c *Controllers) reach(node *cluster.Node, driver string) *v1.VolumeNodeAffinity {
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

// writeClaims does what the API server and the drivers of devices do with a pod's claims.
func (c *Controllers) writeClaims(a cycle.WriteClaims) {
	o := cycle.Outcome{Written: make([]bool, len(a.Claims.Claims))}
	for i := range a.Claims.Claims {
		reserved := &a.Claims.Claims[i]
		claim := reserved.Claim.DeepCopy()
		if reserved.Before == nil { // made for extended resources: its name and UID are the API server's
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

// makeClaim gives what stood in for a claim a name and an identity.
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

// prepareDevices lets a claim's devices become ready where they have to before the pod is bound.
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
			id := string(*r.ShareID)
			status.ShareID = &id
		}
		for _, condition := range r.BindingConditions {
			status.Conditions = append(status.Conditions, metav1.Condition{
				Type: condition, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: c.Now(),
			})
		}
		claim.Status.Devices = append(claim.Status.Devices, status)
	}
}
