// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// reach is the set of nodes that can use a volume. The zero value is empty.
type reach struct {
	everywhere bool
	terms      nodeTerms
	// places are labels such that every node in reach has one of them. It is nil if the terms imply
	// no such labels.
	places []place
}

// place is a label of nodes.
type place struct{ key, value string }

// reachOf reads the node affinity of a volume. A volume without one can be used everywhere.
func reachOf(volume *v1.PersistentVolume) reach {
	if volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil {
		return reach{everywhere: true}
	}
	required := volume.Spec.NodeAffinity.Required
	terms := readNodeTerms(required)
	for i := range terms {
		terms[i].fields = nil // a volume selects nodes only by labels
	}
	return reach{terms: terms, places: placesOf(required.NodeSelectorTerms)}
}

// hasNode reports whether the node can use the volume.
func (r *reach) hasNode(n *cluster.Node) bool { return r.everywhere || r.terms.match(n) }

// placesOf lists the labels required by the terms, if every term requires some. For each term it
// uses the requirement with the fewest values, preferably on the host name. A local disk belongs to
// one node, and other volumes belong to a zone, so other nodes need not examine the volume.
//
//	hostname In n1                    ->  hostname=n1
//	zone In a,b, rack In r1           ->  rack=r1
//	zone In a; zone NotIn b           ->  nil: the second term lists nothing
func placesOf(terms []v1.NodeSelectorTerm) (places []place) {
	for i := range terms {
		var least *v1.NodeSelectorRequirement
		for k := range terms[i].MatchExpressions {
			e := &terms[i].MatchExpressions[k]
			if e.Operator == v1.NodeSelectorOpIn && (least == nil || len(e.Values) < len(least.Values) || e.Key == v1.LabelHostname) {
				least = e
			}
		}
		if least == nil {
			return nil
		}
		for _, value := range least.Values {
			if at := (place{least.Key, value}); !slices.Contains(places, at) {
				places = append(places, at)
			}
		}
	}

	return places
}

// candidate is a possible volume for a claim, on the nodes in reach. The candidates of a class are
// numbered by size.
type candidate struct {
	volume *v1.PersistentVolume
	size   resource.Quantity
	reach  *reach
	number int
}

// byClass reads the volumes of the claims' classes, ordered from the smallest to the largest. The
// sort is stable and the input is sorted by name, so that volumes of equal size are taken in the
// order of their names.
func byClass(volumes []*v1.PersistentVolume, claims []*v1.PersistentVolumeClaim) map[string][]candidate {
	all := map[string][]candidate{}
	for _, claim := range claims {
		all[claimClass(claim)] = nil
	}

	for _, volume := range volumes {
		if of, asked := all[volumeClass(volume)]; asked {
			r := reachOf(volume)
			all[volumeClass(volume)] = append(of, candidate{volume: volume, size: volume.Spec.Capacity[v1.ResourceStorage], reach: &r})
		}
	}

	for _, of := range all {
		slices.SortStableFunc(of, bySize)
		for i := range of {
			of[i].number = i
		}
	}
	return all
}

// candidates are the volumes for one claim, found once for all nodes.
type candidates struct {
	claim *v1.PersistentVolumeClaim
	class int // number of volumes of the claim's class
	// meant are volumes that already name the claim. The claim takes the first of these volumes; on
	// nodes that cannot reach it, the claim takes no volume.
	meant []candidate
	// byPlace and others are free volumes that fit, the smallest first. Volumes in byPlace are
	// limited to nodes with the label; keys are the keys of these labels.
	byPlace map[place][]candidate
	keys    []string
	others  []candidate
}

// findCandidates selects among the volumes of the claim's class, which are sorted by size: a binary
// search skips volumes below the requested size. It fails if the claim's selector is invalid.
func findCandidates(c *cluster.Cluster, claim *v1.PersistentVolumeClaim, volumes []candidate) (*candidates, error) {
	selector, err := c.VolumesFor(claim)
	if err != nil {
		return nil, fmt.Errorf("error creating internal label selector for claim: %s/%s: %w", claim.Namespace, claim.Name, err)
	}

	found := &candidates{claim: claim, class: len(volumes), byPlace: map[place][]candidate{}}
	wanted := claim.Spec.Resources.Requests[v1.ResourceStorage]
	first, _ := slices.BinarySearchFunc(volumes, wanted, func(v candidate, wanted resource.Quantity) int { return v.size.Cmp(wanted) })
	for _, v := range volumes[first:] {
		switch volume := v.volume; {
		case !canHold(volume, claim):
		// Labels and access modes do not matter: the volume was pre-bound to this claim on purpose.
		case boundTo(volume, claim):
			found.meant = append(found.meant, v)
		case volume.Spec.ClaimRef == nil && volume.Status.Phase == v1.VolumeAvailable &&
			selector.Matches(labels.Set(volume.Labels)) && offersModes(volume, claim):
			found.addVolume(v)
		}
	}

	slices.SortFunc(found.meant, func(a, b candidate) int { return cmp.Compare(a.volume.Name, b.volume.Name) })
	return found, nil
}

// addVolume adds a free volume. It must be called in ascending order of size. A volume reachable
// from several places is listed under each.
func (cs *candidates) addVolume(v candidate) {
	if v.reach.places == nil {
		cs.others = append(cs.others, v)
	}
	for _, at := range v.reach.places {
		if !slices.Contains(cs.keys, at.key) {
			cs.keys = append(cs.keys, at.key)
		}
		cs.byPlace[at] = append(cs.byPlace[at], v)
	}
}

// bySize orders by capacity only; the caller's sort must be stable.
func bySize(a, b candidate) int { return a.size.Cmp(b.size) }

// takenVolumes marks the volumes of a class, by number, taken by other claims of the pod. A nil
// value is empty and ignores markTaken: it serves the last claim, whose volume needs no mark.
type takenVolumes []bool

// isTaken reports whether another claim takes the volume.
func (t takenVolumes) isTaken(v *candidate) bool { return t != nil && t[v.number] }

// markTaken records that a claim takes the volume.
func (t takenVolumes) markTaken(v *candidate) {
	if t != nil {
		t[v.number] = true
	}
}

// volumeOn returns the volume for the claim on a node, or nil: a volume that names the claim, or
// else the smallest free volume, the first by name if several have that size. A nil cs is empty.
// taken are the volumes taken by the pod's earlier claims on this node.
//
//	claim of 5Gi; free on the node: a of 10Gi, b of 5Gi, c of 5Gi   ->  b
//	the same, and d on another node already names the claim         ->  none: d is meant for it
func (cs *candidates) volumeOn(n *cluster.Node, taken takenVolumes) *candidate {
	if cs == nil {
		return nil
	}
	for i := range cs.meant {
		m := &cs.meant[i]
		if taken.isTaken(m) {
			continue
		}
		if !m.reach.hasNode(n) {
			return nil
		}
		return m
	}

	best := firstOn(n, cs.others, taken, nil)
	for _, key := range cs.keys {
		if value, has := n.Lookup(key); has {
			best = firstOn(n, cs.byPlace[place{key, value}], taken, best)
		}
	}
	return best
}

// firstOn returns the first volume of a list available to the node, unless best precedes it. Lists
// are sorted by number, so the first volume is the smallest. best may be nil.
func firstOn(n *cluster.Node, list []candidate, taken takenVolumes, best *candidate) *candidate {
	for i := range list {
		c := &list[i]
		if best != nil && best.number <= c.number {
			break
		}
		if !taken.isTaken(c) && c.reach.hasNode(n) {
			return c
		}
	}
	return best
}

// canHold reports whether a sufficiently large volume suits the claim, bound or not. Class, phase,
// labels and access modes matter only for volumes that have yet to name the claim.
func canHold(volume *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	return ptr.Deref(volume.Spec.VolumeMode, v1.PersistentVolumeFilesystem) == ptr.Deref(claim.Spec.VolumeMode,
		v1.PersistentVolumeFilesystem) &&
		ptr.Deref(volume.Spec.VolumeAttributesClassName, "") == ptr.Deref(claim.Spec.VolumeAttributesClassName, "") &&
		volume.DeletionTimestamp == nil
}

// boundTo reports whether the volume names the claim, including a volume pre-bound by hand without
// the claim's UID.
func boundTo(volume *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	ref := volume.Spec.ClaimRef
	return ref != nil && ref.Name == claim.Name && ref.Namespace == claim.Namespace && (ref.UID == "" || ref.UID == claim.UID)
}

// offersModes reports whether the volume has all access modes of the claim.
func offersModes(volume *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	return !slices.ContainsFunc(claim.Spec.AccessModes, func(mode v1.PersistentVolumeAccessMode) bool {
		return !slices.Contains(volume.Spec.AccessModes, mode)
	})
}

// bindVolume returns a copy of the volume that names the claim, or the volume itself if it already
// names it.
func bindVolume(volume *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) *v1.PersistentVolume {
	if ref := volume.Spec.ClaimRef; boundTo(volume, claim) && ref.UID == claim.UID {
		return volume
	}
	bound := volume.DeepCopy()
	bound.Spec.ClaimRef = &v1.ObjectReference{
		Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
		ResourceVersion: claim.ResourceVersion,
	}
	// A volume that named the claim before was bound by a user, and does not get the controller's
	// annotation.
	if !boundTo(volume, claim) && !metav1.HasAnnotation(bound.ObjectMeta, annBoundByController) {
		metav1.SetMetaDataAnnotation(&bound.ObjectMeta, annBoundByController, "yes")
	}
	return bound
}
