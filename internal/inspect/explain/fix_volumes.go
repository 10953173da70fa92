// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/world"
)

// This file proposes changes of volumes, claims and devices. No single command is right for every
// cluster, so most proposals describe the need, and the search tries them with a volume reachable
// from all nodes.

// provideVolumes proposes creating or binding the pod's claims or their volumes, regardless of the
// rejected nodes, because a missing claim keeps the pod off all nodes.
func (f *fixer) provideVolumes(string, []verdict) []*edit { return f.forClaims(f.fixMissing) }

// moveVolumes proposes moving data to a volume reachable from more nodes. It is a large change, and
// is proposed last.
func (f *fixer) moveVolumes(string, []verdict) []*edit { return f.forClaims(f.farAway) }

// forClaims proposes a change for each claim, and all changes combined: fixing one claim does not
// help if two are missing. propose returns nil for a claim that needs no change.
func (f *fixer) forClaims(propose func(v *v1.Volume, claim string) *edit) (edits []*edit) {
	for i := range f.object.Spec.Volumes {
		v := &f.object.Spec.Volumes[i]
		if name := claimName(f.object, v); name != "" {
			if e := propose(v, name); e != nil {
				edits = append(edits, e)
			}
		}
	}
	// Two volumes may share a claim.
	if edits = distinctEdits(edits); len(edits) > 1 {
		edits = append(edits, joinEdits(edits))
	}
	return edits
}

// freeClaim proposes deleting the pods that use a ReadWriteOncePod claim of the pod. Without such a
// claim, the conflict is about a disk, and freeClaim proposes deleting a pod that uses the disk on
// a node.
func (f *fixer) freeClaim(plugin string, nodes []verdict) []*edit {
	if edits := f.fixHolders(); len(edits) > 0 {
		return edits
	}
	return f.freeAttachment(plugin, nodes)
}

// freeAttachment proposes deleting a pod in order to detach its volume, because the number of
// attachments per node is limited.
func (f *fixer) freeAttachment(plugin string, nodes []verdict) []*edit {
	rejected := slices.DeleteFunc(slices.Clone(nodes), func(v verdict) bool { return !v.rejectedBy(plugin) })
	return f.oneGone(plugin, rejected, ", for its volume")
}

// claimName returns the claim of one of the pod's volumes; empty for a volume without a claim. The
// claim of an ephemeral volume is named after the pod.
func claimName(p *v1.Pod, v *v1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return p.Name + "-" + v.Name
	}
	return ""
}

// fixMissing proposes creating or binding a claim, or providing its volume. It returns nil if the
// claim is complete.
func (f *fixer) fixMissing(v *v1.Volume, name string) *edit {
	namespace := f.object.Namespace
	claim, there := f.c.Claims.Get(namespace, name)
	switch ref := "persistentvolumeclaim/" + namespace + "/" + name; {
	// The controller of ephemeral volumes refuses to use a claim of this name owned by another
	// object, and waits for its deletion.
	case there && v.Ephemeral != nil && ephemeral.VolumeIsForPod(f.object, claim) != nil:
		// Once the other claim is deleted, the controller creates the pod's own.
		own := &v1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: name, UID: "new-claim",
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(f.object, v1.SchemeGroupVersion.WithKind("Pod"))},
			},
			Spec: v.Ephemeral.VolumeClaimTemplate.Spec,
		}
		e := bindEdit("DeleteClaim", ref, fmt.Sprintf("delete the claim %s, which has the name of the claim of the pod's volume %s, "+
			"but does not belong to the pod", name, v.Name), 60, own)
		e.Command = "kubectl delete pvc -n " + namespace + " " + name
		return e
	case !there:
		return bindEdit("CreateClaim", ref, fmt.Sprintf("create the claim %s, bound to a volume that every node can reach", name), 15,
			&v1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "new-claim"},
				Spec:       v1.PersistentVolumeClaimSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}},
			})
	// A claim being deleted is never bound.
	case claim.DeletionTimestamp != nil:
		again := claim.DeepCopy()
		again.UID = "new-claim"
		return bindEdit("CreateClaim", ref, fmt.Sprintf("create the claim %s again when its deletion is complete, bound to a volume "+
			"that every node can reach", name), 20, again)
	// The claim waits for a volume, and so does the pod.
	case claim.Spec.VolumeName == "":
		size := claim.Spec.Resources.Requests[v1.ResourceStorage]
		text := fmt.Sprintf("bind the claim %s: a volume of %s that the nodes can reach is missing", name, sizeText(size))
		// A nonexistent class is the most likely reason for a missing volume.
		if class := claim.Spec.StorageClassName; class != nil && *class != "" {
			if _, there := f.c.StorageClasses.Get("", *class); !there {
				text = fmt.Sprintf("create the storageclass %s, or a volume of it of %s, for the claim %s", *class, sizeText(size), name)
			}
		}
		return bindEdit("BindClaim", ref, text, 15, claim)
	}

	if _, there := f.c.Volumes.Get("", claim.Spec.VolumeName); !there {
		return bindEdit("CreateVolume", "persistentvolume/"+claim.Spec.VolumeName,
			fmt.Sprintf("create the volume %s, which the claim %s is bound to", claim.Spec.VolumeName, name), 20, claim)
	}
	return nil
}

// farAway proposes moving the data of a claim to another volume. It returns nil if the claim is
// unbound. The search determines whether that helps.
func (f *fixer) farAway(_ *v1.Volume, name string) *edit {
	claim, there := f.c.Claims.Get(f.object.Namespace, name)
	if !there || claim.Spec.VolumeName == "" {
		return nil
	}
	volume, there := f.c.Volumes.Get("", claim.Spec.VolumeName)
	if !there {
		return nil
	}
	return bindEdit("MoveVolume", "persistentvolume/"+volume.Name,
		fmt.Sprintf("move the data of the claim %s to a volume that more nodes can reach than %s", name, volume.Name), 70, claim)
}

// sizeText describes the required size of a volume.
func sizeText(q resource.Quantity) string {
	if q.IsZero() {
		return "any size"
	}
	return q.String()
}

// bindEdit returns a change of a claim or its volume. To try it, the claim is bound to a volume
// reachable from all nodes.
func bindEdit(kind, object, text string, size int, claim *v1.PersistentVolumeClaim) *edit {
	return &edit{Change: Change{Kind: kind, Object: object, Text: text}, size: size, set: bindClaim(claim)}
}

// bindClaim binds the claim to a volume reachable from all nodes: a network volume without
// affinity.
func bindClaim(claim *v1.PersistentVolumeClaim) func(w *world.World) {
	return func(w *world.World) {
		now, name := claim.DeepCopy(), "a new volume for "+claim.Namespace+"/"+claim.Name // not a valid volume name, so it cannot collide
		now.Spec.VolumeName, now.Status.Phase, now.DeletionTimestamp = name, v1.ClaimBound, nil
		metav1.SetMetaDataAnnotation(&now.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
		w.Put(now)
		w.Put(&v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: v1.PersistentVolumeSpec{
				Capacity: now.Spec.Resources.Requests, AccessModes: now.Spec.AccessModes,
				PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "new", Path: "/"}},
				ClaimRef:               &v1.ObjectReference{Namespace: now.Namespace, Name: now.Name, UID: now.UID},
			},
			Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
		})
	}
}

// fixHolders proposes deleting the pods that use a ReadWriteOncePod claim. It returns nil without
// such a claim, or if one of the pods is not removable (see isRemovable).
func (f *fixer) fixHolders() (edits []*edit) {
	// mine holds the names of the pod's ReadWriteOncePod claims.
	mine := map[string]bool{}
	for i := range f.object.Spec.Volumes {
		name := claimName(f.object, &f.object.Spec.Volumes[i])
		claim, ok := f.c.Claims.Get(f.object.Namespace, name)
		if ok && slices.Contains(claim.Spec.AccessModes, v1.ReadWriteOncePod) {
			mine[name] = true
		}
	}
	if len(mine) == 0 {
		return nil
	}
	var pods []*cluster.Pod
	for _, other := range f.w.Each() {
		if other.Pod == nil || other.Pod.Node == nil || other.Object.Namespace != f.object.Namespace {
			continue
		}
		if slices.ContainsFunc(other.Object.Spec.Volumes, func(v v1.Volume) bool { return mine[claimName(other.Object, &v)] }) {
			pods = append(pods, other.Pod)
		}
	}
	for _, p := range pods {
		if !f.isRemovable(p) {
			return nil
		}
		edits = append(edits, f.deletePods("DeletePod",
			fmt.Sprintf("delete pod %s, which uses the claim that only one pod may use", f.nameOf(p)), []*cluster.Pod{p}))
	}
	if len(edits) > 1 { // each uses a different claim
		edits = append(edits, joinEdits(edits))
	}
	return edits
}

// fixDevices proposes deleting a pod in order to free its devices for the pending pod. It considers
// only claims used by a single pod, because other claims stay allocated.
func (f *fixer) fixDevices(string, []verdict) (edits []*edit) {
	const tried = 16
	var claims []*resourcev1.ResourceClaim
	for _, claim := range f.c.ResourceClaims.All() {
		// A claim shared by several pods stays allocated until all of them have left.
		if claim.Status.Allocation != nil && len(claim.Status.ReservedFor) == 1 {
			claims = append(claims, claim)
		}
	}

	for _, claim := range claims[:min(tried, len(claims))] {
		p := f.c.Pod(claim.Status.ReservedFor[0].UID)
		// The claim's holder is not on a node, or is not removable.
		if p == nil || p.Node == nil || p.UID() == f.pod.UID() || !f.isRemovable(p) {
			continue
		}
		e := f.deletePods("FreeDevice", fmt.Sprintf("delete pod %s from %s, which holds devices (claim %s)",
			f.nameOf(p), p.NodeName, claim.Name), []*cluster.Pod{p})
		// Deleting the pod is not enough here: the edit must also deallocate its claim, as the
		// claim controller does in a cluster.
		e.delete = nil
		e.set = func(w *world.World) {
			removePods(w, []*cluster.Pod{p})
			free := claim.DeepCopy()
			free.Status.Allocation, free.Status.ReservedFor = nil, nil
			w.Put(free)
		}
		edits = append(edits, e)
	}

	return edits
}
