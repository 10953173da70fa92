// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// podClaims holds the claims of a pod, and everything known about them independently of the node.
// It is read once per pod decided and is read-only afterwards, so that nodes can be judged in
// parallel. decideOn assigns volumes to the claims on a node, for the filter, the score and the
// reservation, so that all three agree.
//
// Upstream keeps an assume cache of claims and volumes in addition to the informers; here the
// reservation changes the cluster's objects themselves (see [PodVolumes.Assume]).
type podClaims struct {
	c     *cluster.Cluster
	bound []*boundClaim
	// unbound are the claims that receive their volume together with the node.
	unbound []*unboundClaim
}

// boundClaim is a claim with a volume. It only restricts the nodes.
type boundClaim struct {
	volume *v1.PersistentVolume // nil if it does not exist
	reach  reach
	// plugin is the in-tree plugin of the volume, or "". Other nodes can reach such a volume if CSI
	// migration moves it to a CSI driver.
	plugin     string
	translated reach
	failure    error // error of the translation
}

// unboundClaim is a claim waiting for its pod to be placed. On each node it gets the smallest
// suitable volume, or one is provisioned there.
type unboundClaim struct {
	*v1.PersistentVolumeClaim
	// candidates are the existing volumes suitable for the claim. failure is the error of
	// determining them.
	candidates *candidates
	failure    error
	provision  provision
}

// volumeDecision assigns volumes to the unbound claims on a node: each claim is in one of the
// lists.
type volumeDecision struct {
	matches   []volumeMatch
	provision []*unboundClaim
}

// volumeMatch is an existing volume for a claim. The volume may already name the claim.
type volumeMatch struct {
	claim  *v1.PersistentVolumeClaim
	volume *v1.PersistentVolume
}

// readClaims reads the claims of a pod, or returns nil for a pod without claims. A rejection
// applies to the pod as a whole: no node compensates for a missing claim, or for a claim waiting to
// be bound by its volume plugin.
func readClaims(c *cluster.Cluster, p *cluster.Pod) (*podClaims, *Rejection, error) {
	list, rejection := usableClaims(c, p)
	if rejection != nil || len(list) == 0 {
		return nil, rejection, nil
	}

	claims, immediate := &podClaims{c: c}, false
	var waiting []*v1.PersistentVolumeClaim
	for _, claim := range list {
		if fullyBound(claim) {
			claims.bound = append(claims.bound, readBound(c, claim))
			continue
		}
		waits, err := waitsForConsumer(c, claim)
		switch {
		case err != nil:
			return nil, nil, err
		// A claim that names a volume without being bound to it is left to the volume controller.
		case waits && claim.Spec.VolumeName == "":
			waiting = append(waiting, claim)
		default:
			immediate = true
		}
	}

	if immediate {
		return nil, &Rejection{Code: CodeImmediateUnbound,
			Reasons: []string{"pod has unbound immediate PersistentVolumeClaims"}, Unresolvable: true}, nil
	}
	return claims, claims.readUnbound(waiting), nil
}

// usableClaims returns the claims of the pod's volumes, one per volume, or the rejection for an
// unusable claim. The messages are upstream's.
func usableClaims(c *cluster.Cluster, p *cluster.Pod) (list []*v1.PersistentVolumeClaim, _ *Rejection) {
	reject := func(code, format string, args ...any) *Rejection {
		return &Rejection{Code: code, Reasons: []string{fmt.Sprintf(format, args...)}, Unresolvable: true}
	}
	for i := range p.Spec().Volumes {
		name, isEphemeral, ok := claimOf(p, &p.Spec().Volumes[i])
		if !ok {
			continue
		}
		claim, ok := c.Claims.Get(p.Namespace(), name)
		switch {
		case !ok && isEphemeral:
			return nil, reject(CodeClaimNotFound, "waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
		case !ok:
			return nil, reject(CodeClaimNotFound, "%s", claimNotFound(name))
		case claim.Status.Phase == v1.ClaimLost:
			return nil, reject(CodeClaimLost, "persistentvolumeclaim %q bound to non-existent persistentvolume %q",
				name, claim.Spec.VolumeName)
		// The volume of a deleted claim may be released while the pod runs.
		case claim.DeletionTimestamp != nil:
			return nil, reject(CodeClaimTerminating, "persistentvolumeclaim %q is being deleted", name)
		}
		if isEphemeral {
			if err := madeFor(p, claim); err != nil {
				return nil, reject(CodeClaimNotOwned, "%v", err)
			}
		}
		list = append(list, claim)
	}

	return list, nil
}

// waitsForConsumer reports whether a claim receives its volume together with the node. A claim of a
// missing class does not wait: it can only be bound to an existing volume, by the volume
// controller.
func waitsForConsumer(c *cluster.Cluster, claim *v1.PersistentVolumeClaim) (bool, error) {
	name := claimClass(claim)
	class, ok := c.StorageClasses.Get("", name)
	if !ok {
		return false, nil
	}
	if class.VolumeBindingMode == nil {
		return false, fmt.Errorf("VolumeBindingMode not set for StorageClass %q", name)
	}
	return *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer, nil
}

// readBound determines the nodes that can use the volume of a bound claim.
func readBound(c *cluster.Cluster, claim *v1.PersistentVolumeClaim) *boundClaim {
	volume, ok := c.Volumes.Get("", claim.Spec.VolumeName)
	if !ok {
		return &boundClaim{}
	}

	b := &boundClaim{volume: volume, reach: reachOf(volume)}
	if !translator.IsPVMigratable(volume) {
		return b
	}

	plugin, err := translator.GetInTreePluginNameFromSpec(volume, nil)
	// On every node, the volume is served by its in-tree plugin.
	if err != nil || !isMigrated(plugin) {
		return b
	}

	b.plugin = plugin
	if volume, err = translator.TranslateInTreePVToCSI(klog.Logger{}, volume); err != nil {
		b.failure = fmt.Errorf("could not translate pv: %w", err)
	} else {
		b.translated = reachOf(volume)
	}
	return b
}

// mostVolumesHeld bounds the existing volumes compared with the claims of a pod in an attempt, each
// claim with all volumes of its class. mostVolumesSkipped bounds the volumes skipped on all nodes
// because an earlier claim of the pod takes them. Work up to either bound takes about a tenth of a
// second and delays all other pods; an attempt reads the claims up to three times.
const mostVolumesHeld, mostVolumesSkipped = 1 << 18, 1 << 26

// tooManyClaims is specific to Berth: upstream scans any number of volumes.
var tooManyClaims = &Rejection{Code: CodeManyClaims,
	Reasons: []string{"pod has too many unbound claims to hold each against all volumes of its class"}, Unresolvable: true}

// readUnbound adds the claims in the order of service: claims with a selected node first, then the
// smallest first. The order matters because an earlier claim may take the volume of a later claim:
// a small claim served first takes a small volume, and leaves the large volumes.
func (claims *podClaims) readUnbound(waiting []*v1.PersistentVolumeClaim) *Rejection {
	if len(waiting) == 0 {
		return nil
	}
	volumes := byClass(claims.c.Volumes.All(), waiting)
	held, skipped := 0, 0
	for i, claim := range waiting {
		of := len(volumes[claimClass(claim)])
		held, skipped = held+of, skipped+min(i, of)*claims.c.Len()
	}

	if held > mostVolumesHeld || skipped > mostVolumesSkipped {
		return tooManyClaims
	}
	for _, claim := range waiting {
		u := &unboundClaim{PersistentVolumeClaim: claim}
		// A volume for a claim with a selected node is already being provisioned, so the claim
		// takes no existing one.
		if _, hasNode := u.selectedNode(); !hasNode {
			u.candidates, u.failure = findCandidates(claims.c, claim, volumes[claimClass(claim)])
		}
		u.provision = readProvision(claims.c, claim)
		claims.unbound = append(claims.unbound, u)
	}

	slices.SortStableFunc(claims.unbound, inTurn)
	return nil
}

// inTurn compares two claims for readUnbound. Claims of equal size stay in the order of the pod's
// volumes.
func inTurn(a, b *unboundClaim) int {
	_, aHasNode := a.selectedNode()
	_, bHasNode := b.selectedNode()
	if aHasNode || bHasNode {
		return rules.FalseFirst(!aHasNode, !bHasNode)
	}
	x, y := a.Spec.Resources.Requests[v1.ResourceStorage], b.Spec.Resources.Requests[v1.ResourceStorage]
	return x.Cmp(y)
}

// selectedNode returns the node selected for the claim's volume, by an earlier attempt or by
// another scheduler. The pod is confined to the selected node while the claim has the annotation.
func (u *unboundClaim) selectedNode() (name string, ok bool) {
	name, ok = u.Annotations[annSelectedNode]
	return name, ok
}

// decideOn assigns volumes to the claims on a node, or returns all reasons to reject the node, in
// upstream's order. decision may be nil for a caller interested only in the verdict. Otherwise
// decideOn fills it in; it is meaningless in case of a rejection.
func (claims *podClaims) decideOn(n *cluster.Node, decision *volumeDecision) *Rejection {
	within, exist, err := claims.boundOn(n)
	if err != nil {
		return &Rejection{Err: err}
	}

	found, enough, err := claims.unboundOn(n, decision)
	if err != nil {
		return &Rejection{Err: err}
	}
	if within && found && enough && exist {
		return nil
	}

	// Departing victims free no volumes: their volumes stay bound to the claims.
	r := &Rejection{Unresolvable: true}
	for _, fault := range [...]struct {
		ok           bool
		code, reason string
	}{
		{within, CodeVolumeNodeAffinity, "node(s) didn't match PersistentVolume's node affinity"},
		{found, CodeNoVolumeToBind, "node(s) didn't find available persistent volumes to bind"},
		{enough, CodeNotEnoughStorage, "node(s) did not have enough free storage"},
		{exist, CodeVolumeMissing, "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"},
	} {
		if fault.ok {
			continue
		}
		r.Code = cmp.Or(r.Code, fault.code)
		r.Reasons = append(r.Reasons, fault.reason)
	}

	return r
}

// boundOn checks the volumes of the bound claims. within is false if a volume is out of the node's
// reach, and exist is false if a volume is missing. Like upstream, boundOn stops at the first such
// volume, so at most one of the two results is false.
func (claims *podClaims) boundOn(n *cluster.Node) (within, exist bool, err error) {
	for _, b := range claims.bound {
		if b.volume == nil {
			return true, false, nil
		}
		if within, err := b.usableOn(claims.c, n); !within || err != nil {
			return false, true, err
		}
	}
	return true, true, nil
}

// usableOn reports whether the volume can be used on the node: by the labels of its in-tree plugin,
// or by the labels of its CSI driver if CSI migration is enabled on the node.
func (b *boundClaim) usableOn(c *cluster.Cluster, n *cluster.Node) (bool, error) {
	if b.plugin == "" || !migratedOn(c, n, b.plugin) {
		return b.reach.hasNode(n), nil
	}
	return b.translated.hasNode(n), b.failure
}

// migratedOn reports whether CSI migration of an in-tree plugin is enabled on the node itself, as
// recorded by its kubelet in an annotation of the CSINode. A node without a CSINode has not
// migrated any plugin.
func migratedOn(c *cluster.Cluster, n *cluster.Node, plugin string) bool {
	csiNode, ok := c.CSINodes.Get("", n.Name)
	return ok && slices.Contains(strings.Split(csiNode.Annotations[v1.MigratedPluginsAnnotationKey], ","), plugin)
}

// unboundOn finds existing volumes for the claims, and checks that the remaining claims can be
// provisioned. It stops at the first claim without a volume: found is false if there is no way to
// get a volume, enough is false if only free storage is lacking.
func (claims *podClaims) unboundOn(n *cluster.Node, decision *volumeDecision) (found, enough bool, err error) {
	for _, u := range claims.unbound {
		if name, ok := u.selectedNode(); ok && name != n.Name {
			return false, true, nil
		}
	}
	for _, u := range claims.unbound {
		if u.failure != nil {
			return false, true, u.failure
		}
	}
	taken := map[string]takenVolumes{} // by class
	for i, u := range claims.unbound {
		class := claimClass(u.PersistentVolumeClaim)
		if v := u.candidates.volumeOn(n, taken[class]); v != nil {
			// Most pods have one claim, and need no record of taken volumes. The record is by class
			// because a claim can only take volumes of its class.
			if taken[class] == nil && i < len(claims.unbound)-1 {
				taken[class] = make(takenVolumes, u.candidates.class)
			}
			taken[class].markTaken(v)
			if decision != nil {
				decision.matches = append(decision.matches, volumeMatch{u.PersistentVolumeClaim, v.volume})
			}
			continue
		}
		if possible, enough := u.provision.canProvision(n); !possible || !enough {
			return possible, enough, nil
		}
		if decision != nil {
			decision.provision = append(decision.provision, u)
		}
	}
	return true, true, nil
}
