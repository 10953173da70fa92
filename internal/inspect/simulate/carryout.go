package simulate

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

// carryOut does what the core asks for, as an API server and the controllers of volumes and claims would: at once, and without fail.
func (w *World) carryOut(action cycle.Action) {
	switch a := action.(type) {
	case cycle.Bind:
		w.bind(a)
	case cycle.Remove:
		w.preempt(a)
	case cycle.WriteStatus:
		if p := w.pending[a.Pod.UID]; p != nil && a.Nominate != nil {
			p.Nominated = *a.Nominate
		}
		if a.Ticket != 0 {
			w.answer(a.Ticket, cycle.Outcome{})
		}
	case cycle.WriteVolumes:
		w.bindVolumes(a)
	case cycle.WriteClaims:
		w.writeClaims(a)
	case cycle.ReleaseClaim:
		if changed, gone := plugins.Released(a.Claim, a.Pod); gone {
			w.showGone(cycle.ResourceClaims, changed)
		} else {
			w.show(cycle.ResourceClaims, changed)
		}
	case cycle.GiveBackClaim:
		if a.Delete {
			w.showGone(cycle.ResourceClaims, a.Claim)
		} else {
			w.show(cycle.ResourceClaims, a.Claim)
		}
		w.answer(a.Ticket, cycle.Outcome{})
	case cycle.Preflight:
		w.answer(a.Ticket, cycle.Outcome{})
	case cycle.PreBind:
		w.answer(a.Ticket, cycle.Outcome{})
	case cycle.Panicked:
		if w.failed == nil {
			w.failed = fmt.Errorf("the decision of pod %s/%s panicked: %s\n%s", a.Pod.Namespace, a.Pod.Name, a.Value, a.Stack)
		}
	}
}

func (w *World) answer(ticket cycle.Ticket, o cycle.Outcome) {
	w.feed(cycle.Answered{Ticket: ticket, Outcome: o})
}

// bind gives a pod its node.
func (w *World) bind(a cycle.Bind) {
	p := w.pending[a.Attempt.Pod.UID]
	w.answer(a.Ticket, cycle.Outcome{})
	if p == nil {
		return
	}
	object := p.object
	if object == nil {
		object = a.Attempt.Pod
	}
	bound := *object
	bound.Spec.NodeName, bound.Status.NominatedNodeName = a.Attempt.Node, ""
	if p.object != nil {
		p.object = &bound
	}
	w.show(cycle.Pods, &bound)
	w.landed(p)
}

// preempt deletes a victim. It ends at the end of its grace period where time passes, and else at once.
func (w *World) preempt(a cycle.Remove) {
	w.answer(a.Ticket, cycle.Outcome{})
	detail := ""
	if p := w.pending[a.For]; p != nil {
		detail = p.Namespace() + "/" + p.Name
	}
	switch victim, p := w.placed[a.Victim.UID], w.c.Pod(a.Victim.UID); {
	case p == nil:
	case victim != nil && w.lasting:
		w.dismiss(victim, ByPreemption, detail)
	default:
		if victim == nil || !victim.unready {
			w.budgetsLeft(p) // it counts as terminating already
		}
		w.remove(p)
	}
}

// bindVolumes does what provisioners and the controller that binds volumes to claims do.
func (w *World) bindVolumes(a cycle.WriteVolumes) {
	node := w.c.Node(a.Attempt.Node)
	for _, volume := range a.Volumes.Volumes {
		w.show(cycle.Volumes, volume)
		ref := volume.Spec.ClaimRef
		if claim, ok := w.c.Claims.Get(ref.Namespace, ref.Name); ok {
			w.bindClaim(claim, volume.Name)
		}
	}
	for _, claim := range a.Volumes.Claims {
		volume := w.provision(claim, node)
		w.show(cycle.Volumes, volume)
		w.bindClaim(claim, volume.Name)
	}
	w.answer(a.Ticket, cycle.Outcome{})
}

func (w *World) bindClaim(claim *v1.PersistentVolumeClaim, volume string) {
	claim = claim.DeepCopy()
	claim.Spec.VolumeName, claim.Status.Phase = volume, v1.ClaimBound
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
	w.show(cycle.Claims, claim)
}

// provision makes the volume for a claim, where the node that was selected can reach it: in its part of the driver's topology.
func (w *World) provision(claim *v1.PersistentVolumeClaim, node *cluster.Node) *v1.PersistentVolume {
	uid := claim.UID
	if uid == "" {
		uid = types.UID(claim.Namespace + "-" + claim.Name)
	}
	volume := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(uid), UID: "volume/" + uid, CreationTimestamp: metav1.NewTime(w.clock())},
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
	class, ok := w.c.StorageClasses.Get("", volume.Spec.StorageClassName)
	if !ok {
		return volume
	}
	volume.Spec.CSI = &v1.CSIPersistentVolumeSource{Driver: class.Provisioner, VolumeHandle: volume.Name}
	if m := w.machines[node.Name]; m != nil {
		volume.Spec.NodeAffinity = w.reach(m.object, class.Provisioner)
	}
	return volume
}

// reach is where a volume can be used that a driver makes for a node: on the nodes that agree with it in the keys of the driver.
func (w *World) reach(node *v1.Node, driver string) *v1.VolumeNodeAffinity {
	csi, ok := w.c.CSINodes.Get("", node.Name)
	if !ok {
		return nil
	}
	var same []v1.NodeSelectorRequirement
	for _, d := range csi.Spec.Drivers {
		if d.Name != driver {
			continue
		}
		for _, key := range d.TopologyKeys {
			if value, there := node.Labels[key]; there {
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
func (w *World) writeClaims(a cycle.WriteClaims) {
	o := cycle.Outcome{Written: make([]bool, len(a.Claims.Claims))}
	for i := range a.Claims.Claims {
		reserved := &a.Claims.Claims[i]
		claim := reserved.Claim.DeepCopy()
		if reserved.Before == nil { // made for extended resources: its name and UID are the API server's
			standIn := cluster.Name{Namespace: claim.Namespace, Name: claim.Name}
			pod := a.Attempt.Pod
			claim.Name, claim.UID = fmt.Sprintf("%s-extended-resources-%d", pod.Name, a.Ticket), pod.UID+"/extended-resources"
			made := claim.DeepCopy()
			made.Status = resourcev1.ResourceClaimStatus{}
			w.feed(cycle.ClaimMade{Ticket: a.Ticket, StandIn: standIn, Claim: made})
			w.nameClaim(pod.UID, claim.Name, a.Claims.Mappings)
		}
		if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
			claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
		}
		w.prepareDevices(claim)
		o.Claims, o.Written[i] = append(o.Claims, claim), true
		w.show(cycle.ResourceClaims, claim)
	}
	w.answer(a.Ticket, o)
}

// nameClaim notes in the pod's status which claim has its extended resources.
func (w *World) nameClaim(uid types.UID, name string, mappings []v1.ContainerExtendedResourceRequest) {
	p := w.pending[uid]
	if p == nil || p.object == nil {
		return
	}
	object := *p.object
	object.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{RequestMappings: mappings, ResourceClaimName: name}
	p.object = &object
}

// prepareDevices lets a claim's devices become ready where they have to before the pod is bound.
func (w *World) prepareDevices(claim *resourcev1.ResourceClaim) {
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
				Type: condition, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: metav1.NewTime(w.clock()),
			})
		}
		claim.Status.Devices = append(claim.Status.Devices, status)
	}
}
