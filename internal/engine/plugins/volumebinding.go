package plugins

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// VolumeBinding keeps pods on nodes that can reach the volumes of their claims, and decides
// together with the node which volumes the claims that waited for it get: one that exists, or one
// to be made there. It prefers nodes with much free storage.
//
// The filter asks only whether; the choice is made again when a node has been chosen (PodVolumes),
// assumed in the cluster (Assume), written by the live scheduler, and waited for (Bound).
type VolumeBinding struct {
	// Timeout is how long the live scheduler waits for volumes to be bound.
	Timeout time.Duration

	shape shape // of the score; nil: none
}

// Codes of VolumeBinding.
const (
	// Of a node: decideOn lists them in this order.
	CodeVolumeNodeAffinity = "VolumeNodeAffinity"
	CodeNoVolumeToBind     = "NoVolumeToBind"
	CodeNotEnoughStorage   = "NotEnoughStorage"
	CodeVolumeMissing      = "BoundVolumeMissing"
	// Of the pod, before any node is looked at.
	CodeImmediateUnbound = "ImmediateClaimUnbound"
	CodeClaimLost        = "ClaimLost"
	CodeClaimTerminating = "ClaimTerminating"
	CodeClaimNotOwned    = "ClaimNotOwned"
	CodeManyClaims       = "TooManyUnboundClaims"
)

// NewVolumeBinding makes the plugin; nil arguments mean the defaults.
func NewVolumeBinding(args *config.VolumeBindingArgs) (*VolumeBinding, error) {
	set := config.VolumeBindingArgs{}
	if args != nil {
		set = *args
	}
	SetArgsDefaults(&set)
	if err := ValidateArgs(nil, &set); err != nil {
		return nil, err
	}
	return &VolumeBinding{Timeout: time.Duration(*set.BindTimeoutSeconds) * time.Second, shape: newShape(set.Shape)}, nil
}

// Name implements [Filter], [Scorer] and [Reserver].
func (v *VolumeBinding) Name() string { return "VolumeBinding" }

// Reads implements [Filter].
func (v *VolumeBinding) Reads() Part { return Labels | Identity | Objects }

// Applies implements [Selective]: pods without claims are not asked about, which are most.
func (v *VolumeBinding) Applies(_ *cluster.Cluster, p *cluster.Pod) bool {
	return slices.ContainsFunc(p.Spec().Volumes, func(v v1.Volume) bool { _, _, claims := claimOf(p, &v); return claims })
}

// Filter implements [Filter]. A pod that waits for a volume controller is rejected as a whole, not
// node by node.
func (v *VolumeBinding) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	claims, rejection, err := readClaims(c, p)
	switch {
	case err != nil:
		return Judge{Err: err}
	case rejection != nil:
		return Judge{All: rejection}
	case claims == nil:
		return Judge{}
	}
	return Judge{Node: func(n *cluster.Node) *Rejection { return claims.decideOn(n, nil) }}
}

// PodVolumes are the volumes and claims that change when a pod goes to a node, as they must be
// written before the pod is bound. If both lists are empty there is nothing to write and nothing to
// wait for. The objects are copies, except for volumes that need no change.
type PodVolumes struct {
	// Volumes name the claim that they are for; some may have done so before.
	Volumes []*v1.PersistentVolume
	// Claims name the node that their volume is to be made for.
	Claims []*v1.PersistentVolumeClaim
	// Timeout is how long volumes may take to be bound.
	Timeout time.Duration
}

// VolumeReserver is a [Reserver] of volumes: its choice is written to the API before the pod is
// bound, and then waited for.
type VolumeReserver interface {
	Reserver
	PodVolumes(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node) (PodVolumes, error)
}

// PodVolumes decides what volumes a pod gets on a node: the same as the filter found possible, as
// long as the cluster has not changed since. An error means that the pod cannot go there after all.
func (v *VolumeBinding) PodVolumes(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node) (PodVolumes, error) {
	claims, rejection, err := readClaims(c, p)
	// No claims: nothing to write.
	if err != nil || claims == nil && rejection == nil {
		return PodVolumes{}, err
	}

	// Decided anew rather than kept from the filter: other pods may have been placed in between.
	var decided volumeDecision
	if rejection == nil {
		rejection = claims.decideOn(n, &decided)
	}

	switch {
	case rejection == nil:
	case rejection.Err != nil:
		return PodVolumes{}, rejection.Err
	default:
		return PodVolumes{}, fmt.Errorf("node %s has no volumes for pod %s/%s: %s", n.Name, p.Namespace(), p.Name,
			strings.Join(rejection.Reasons, ", "))
	}

	changed := PodVolumes{Timeout: v.Timeout}
	for _, m := range decided.matches {
		changed.Volumes = append(changed.Volumes, bindVolume(m.volume, m.claim))
	}

	for _, u := range decided.provision {
		claim := u.DeepCopy()
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annSelectedNode, n.Name)
		changed.Claims = append(changed.Claims, claim)
	}
	return changed, nil
}

// Assume makes the changes in the cluster's objects, as if they had been written, so that the next
// pod does not get the same volume. undo leaves alone the objects that have changed since: what the
// API sends is newer.
func (v PodVolumes) Assume(c *cluster.Cluster) (undo func()) {
	var undos []func()
	for _, volume := range v.Volumes {
		undos = append(undos, replaceObject(&c.Volumes, volume))
	}
	for _, claim := range v.Claims {
		undos = append(undos, replaceObject(&c.Claims, claim))
	}
	return func() {
		for _, undo := range slices.Backward(undos) {
			undo()
		}
	}
}

// replaceObject puts an object in place of the one with its name. undo puts the former one back,
// unless somebody else has replaced the object meanwhile.
func replaceObject[T interface {
	comparable
	metav1.Object
}](table *cluster.Table[T], object T) (undo func()) {
	before, existed := table.Get(object.GetNamespace(), object.GetName())
	table.Set(object)
	return func() {
		if now, _ := table.Get(object.GetNamespace(), object.GetName()); now != object {
			return
		}
		if existed {
			table.Set(before)
		} else {
			table.Delete(object.GetNamespace(), object.GetName())
		}
	}
}

// Bound reports whether volumes and claims are bound to each other by now, and the pod can be bound
// to the node. An error says that they never will be: the pod must be scheduled again. It is asked
// again after each change of volumes and claims, and looks at the cluster's objects only.
func (v PodVolumes) Bound(c *cluster.Cluster, n *cluster.Node) (bool, error) {
	for _, written := range v.Volumes {
		volume, ok := c.Volumes.Get("", written.Name)
		switch {
		case !ok:
			return false, fmt.Errorf("failed to check binding: %s", volumeNotFound(written.Name))
		// Somebody took the volume back: the volume controller, or a user.
		case volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID == "":
			return false, fmt.Errorf("ClaimRef got reset for pv %q", volume.Name)
		}
		ref := written.Spec.ClaimRef
		claim, ok := c.Claims.Get(ref.Namespace, ref.Name)
		if !ok {
			return false, fmt.Errorf("failed to check binding: %s", claimNotFound(ref.Name))
		}
		if bound, err := boundOn(c, claim, n); !bound || err != nil {
			return false, err
		}
	}
	for _, written := range v.Claims {
		claim, ok := c.Claims.Get(written.Namespace, written.Name)
		switch {
		case !ok:
			return false, fmt.Errorf("failed to check provisioning pvc: %s", claimNotFound(written.Name))
		case claim.Annotations[annSelectedNode] != n.Name: // the provisioner asks for another node
			return false, fmt.Errorf("provisioning failed for PVC %q", claim.Name)
		}
		if bound, err := boundOn(c, claim, n); !bound || err != nil {
			return false, err
		}
	}
	return true, nil
}

// boundOn reports whether a claim has its volume. One that the node cannot reach is an error: a
// provisioner may have ignored the selected node.
func boundOn(c *cluster.Cluster, claim *v1.PersistentVolumeClaim, n *cluster.Node) (bool, error) {
	b := readBound(c, claim)
	if b.volume == nil {
		return false, nil
	}
	within, err := b.usableOn(c, n)
	if err != nil {
		return false, err
	}
	if !within {
		return false, fmt.Errorf("pv %q node affinity doesn't match node %q: no matching NodeSelectorTerms", b.volume.Name, n.Name)
	}
	return fullyBound(claim), nil
}

// Reserve implements [Reserver] for callers that write nothing; those that write the volumes to the
// API ask for PodVolumes.
func (v *VolumeBinding) Reserve(c *cluster.Cluster, p *cluster.Pod, n *cluster.Node) (undo func(), err error) {
	volumes, err := v.PodVolumes(c, p, n)
	if err != nil {
		return nil, err
	}
	return volumes.Assume(c), nil
}

// Interests implements Requeuer. Of CSINodes only migration matters, of CSIDrivers that one no
// longer tracks capacity: then every node has room.
func (*VolumeBinding) Interests(in Setting) []queue.Interest {
	keys := &volumeKeys{c: in.Cluster}
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeLabel, Hint: in.nodeNowServes, PerPod: true,
			Narrowing: byVolumeKeys(keys.hasKey)},
		{Resource: queue.Claim, Action: queue.All, Hint: ofClaim, PerPod: true, Narrowing: in.byClaims()},
		{Resource: queue.Volume, Action: queue.All, Hint: in.ofVolume, PerPod: true, Narrowing: in.byClaims()},

		{Resource: queue.StorageClass, Action: queue.Add | queue.Update, Hint: in.ofStorageClass, PerPod: true},
		{Resource: queue.CSINode, Action: queue.All, Hint: func(_ *queue.Item, e *queue.Event) bool {
			was, isOld := e.Old.(*storagev1.CSINode)
			is, isNew := e.New.(*storagev1.CSINode)
			return !isOld || !isNew || was.Annotations[v1.MigratedPluginsAnnotationKey] != is.Annotations[v1.MigratedPluginsAnnotationKey]
		}},

		{Resource: queue.CSIDriver, Action: queue.All, Hint: func(_ *queue.Item, e *queue.Event) bool {
			was, isOld := e.Old.(*storagev1.CSIDriver)
			is, isNew := e.New.(*storagev1.CSIDriver)
			// A driver that begins to track capacity only ever rejects more.
			tracks := func(d *storagev1.CSIDriver) bool { return d.Spec.StorageCapacity != nil && *d.Spec.StorageCapacity }
			return isOld && tracks(was) && !(isNew && tracks(is))
		}},

		{Resource: queue.CSIStorageCapacity, Action: queue.Add | queue.Update, Hint: in.ofCapacity, PerPod: true,
			Narrowing: everyoneUnless(noMoreStorage)},
	}
}

// Wakes implements Waker.
func (*VolumeBinding) Wakes() []string {
	return []string{"a claim, volume, storage class or storage capacity is added or changes", "a node is added or changes its labels"}
}

// Fixes implements Fixer.
func (*VolumeBinding) Fixes() []Fix { return []Fix{ProvideVolumes, MoveVolumes} }

// Detail implements Detailer: the claims that have no volume and do not wait for the pod, and what
// they lack. It is the same for all nodes.
func (*VolumeBinding) Detail(c *cluster.Cluster, p *cluster.Pod) func(*cluster.Node) string {
	var list []string
	claims, _ := usableClaims(c, p)
	for _, claim := range claims {
		if waits, err := waitsForConsumer(c, claim); err == nil && !fullyBound(claim) && (!waits || claim.Spec.VolumeName != "") {
			list = append(list, fmt.Sprintf("persistentvolumeclaim %q: %s", claim.Name, whyUnbound(c, claim)))
		}
	}
	text := strings.Join(list, "; ")
	return func(*cluster.Node) string { return text }
}

// whyUnbound says why a claim that does not wait for its pod has no volume: the remedy depends on
// whether a volume, a class or a provisioner is missing.
func whyUnbound(c *cluster.Cluster, claim *v1.PersistentVolumeClaim) string {
	name := claimClass(claim)
	class, ok := c.StorageClasses.Get("", name)
	size := claim.Spec.Resources.Requests.Storage().String()
	switch volume, there := c.Volumes.Get("", claim.Spec.VolumeName); {
	case claim.Spec.VolumeName != "" && !there:
		return fmt.Sprintf("persistentvolume %q not found", claim.Spec.VolumeName)
	case there:
		return fmt.Sprintf("is not bound to persistentvolume %q yet", volume.Name)
	case name == "":
		return fmt.Sprintf("has no storageclass, and no volume of %s is free", size)
	case !ok:
		return fmt.Sprintf("storageclass %q not found", name)
	case class.Provisioner == noProvisioner:
		return fmt.Sprintf("no volume of storageclass %q and %s is free", name, size)
	}
	return fmt.Sprintf("%s has not made a volume of storageclass %q yet", class.Provisioner, name)
}
