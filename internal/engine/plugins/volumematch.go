package plugins

import (
	"cmp"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// reach is the set of nodes that a volume can be used on.
type reach struct {
	everywhere bool
	terms      nodeTerms
	// hosts are the only host names that can be in it; nil: any.
	hosts []string
}

func reachOf(volume *v1.PersistentVolume) reach {
	if volume.Spec.NodeAffinity == nil || volume.Spec.NodeAffinity.Required == nil {
		return reach{everywhere: true}
	}
	required := volume.Spec.NodeAffinity.Required
	terms := readNodeTerms(required)
	for i := range terms {
		terms[i].fields = nil // a volume knows nodes by their labels alone
	}
	return reach{terms: terms, hosts: hostsOf(required.NodeSelectorTerms)}
}

func (r *reach) has(n *cluster.Node) bool { return r.everywhere || r.terms.match(n) }

// hostsOf lists the host names that the terms require, if every term requires some. Local disks are
// like that: each belongs to one node, so no other node needs to look at it.
func hostsOf(terms []v1.NodeSelectorTerm) (hosts []string) {
	for i := range terms {
		named := slices.IndexFunc(terms[i].MatchExpressions, func(e v1.NodeSelectorRequirement) bool {
			return e.Key == v1.LabelHostname && e.Operator == v1.NodeSelectorOpIn
		})
		if named < 0 {
			return nil
		}
		hosts = append(hosts, terms[i].MatchExpressions[named].Values...)
	}
	return hosts
}

// candidate is a volume that a claim could be bound to, on the nodes within reach.
type candidate struct {
	volume *v1.PersistentVolume
	reach  reach
}

// candidates are the volumes for one claim.
type candidates struct {
	claim *v1.PersistentVolumeClaim
	// meant are volumes that already name the claim. The first of them is taken, or none on nodes
	// out of its reach.
	meant []candidate
	// byHost and others are free volumes that fit, smallest first; those of byHost reach nodes of
	// that host name only.
	byHost map[string][]candidate
	others []candidate
}

// findCandidates picks from the volumes of the claim's class.
func findCandidates(c *cluster.Cluster, claim *v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume) (*candidates, error) {
	selector, err := c.VolumesFor(claim)
	if err != nil {
		return nil, fmt.Errorf("error creating internal label selector for claim: %s/%s: %v", claim.Namespace, claim.Name, err)
	}
	found := &candidates{claim: claim, byHost: map[string][]candidate{}}
	var free []candidate
	for _, volume := range volumes {
		switch {
		case !canHold(volume, claim):
		case boundTo(volume, claim):
			found.meant = append(found.meant, candidate{volume, reachOf(volume)})
		case volume.Spec.ClaimRef == nil && volume.Status.Phase == v1.VolumeAvailable && selector.Matches(labels.Set(volume.Labels)) && offersModes(volume, claim):
			free = append(free, candidate{volume, reachOf(volume)})
		}
	}
	slices.SortStableFunc(free, bySize)
	for _, f := range free {
		if f.reach.hosts == nil {
			found.others = append(found.others, f)
			continue
		}
		for _, host := range slices.Compact(slices.Sorted(slices.Values(f.reach.hosts))) {
			found.byHost[host] = append(found.byHost[host], f)
		}
	}
	return found, nil
}

func bySize(a, b candidate) int {
	x, y := a.volume.Spec.Capacity[v1.ResourceStorage], b.volume.Spec.Capacity[v1.ResourceStorage]
	return x.Cmp(y)
}

// on returns the volume for the claim on a node, or nil: the one that is meant for it, else the
// smallest of the free ones; by name among equals. taken are those that other claims of the pod
// get.
func (cs *candidates) on(n *cluster.Node, taken map[string]bool) *v1.PersistentVolume {
	for _, m := range cs.meant {
		if taken[m.volume.Name] {
			continue
		}
		if !m.reach.has(n) {
			return nil
		}
		return m.volume
	}
	var best *candidate
	for _, list := range [2][]candidate{cs.byHost[n.Hostname], cs.others} {
		for i := range list {
			c := &list[i]
			if best != nil && cmp.Or(bySize(*best, *c), cmp.Compare(best.volume.Name, c.volume.Name)) <= 0 {
				break
			}
			if !taken[c.volume.Name] && c.reach.has(n) {
				best = c
				break
			}
		}
	}
	if best == nil {
		return nil
	}
	return best.volume
}

// canHold reports whether the volume is one for the claim, bound or not. Class, phase, labels and
// access modes count only for volumes that do not name the claim yet.
func canHold(volume *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	size, wanted := volume.Spec.Capacity[v1.ResourceStorage], claim.Spec.Resources.Requests[v1.ResourceStorage]
	return size.Cmp(wanted) >= 0 &&
		ptr.Deref(volume.Spec.VolumeMode, v1.PersistentVolumeFilesystem) == ptr.Deref(claim.Spec.VolumeMode, v1.PersistentVolumeFilesystem) &&
		ptr.Deref(volume.Spec.VolumeAttributesClassName, "") == ptr.Deref(claim.Spec.VolumeAttributesClassName, "") &&
		volume.DeletionTimestamp == nil
}

// boundTo reports whether the volume names the claim, be it by hand and without its UID.
func boundTo(volume *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	ref := volume.Spec.ClaimRef
	return ref != nil && ref.Name == claim.Name && ref.Namespace == claim.Namespace && (ref.UID == "" || ref.UID == claim.UID)
}

func offersModes(volume *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	for _, mode := range claim.Spec.AccessModes {
		if !slices.Contains(volume.Spec.AccessModes, mode) {
			return false
		}
	}
	return true
}

// bind returns a copy of the volume that names the claim, or the volume itself if it does already.
func bind(volume *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) *v1.PersistentVolume {
	ref := volume.Spec.ClaimRef
	if boundTo(volume, claim) && ref.UID == claim.UID {
		return volume
	}
	bound := volume.DeepCopy()
	bound.Spec.ClaimRef = &v1.ObjectReference{
		Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
	}
	// A volume that named the claim before was bound by a user, and stays the user's.
	if !boundTo(volume, claim) && !metav1.HasAnnotation(bound.ObjectMeta, annBoundByController) {
		metav1.SetMetaDataAnnotation(&bound.ObjectMeta, annBoundByController, "yes")
	}
	return bound
}
