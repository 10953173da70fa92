package plugins

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// podClaims are the claims of a pod, with all that is known of them independently of the node. They
// are read once per pod that is decided, and then only read, so that nodes can be judged in
// parallel. What the claims get on a node is decided by decideOn, the same for the filter, the
// score and the reservation, so that all three agree.
//
// Upstream keeps an assume cache of claims and volumes beside the informers; here the reservation
// changes the cluster's objects themselves (see [PodVolumes.Assume]).
type podClaims struct {
	c     *cluster.Cluster
	bound []*boundClaim
	// unbound are the claims whose volume is chosen together with the node.
	unbound []*unboundClaim
}

// boundClaim is a claim that has its volume. It only restricts the nodes.
type boundClaim struct {
	volume *v1.PersistentVolume // nil if it does not exist
	reach  reach
	// plugin is the in-tree plugin of the volume; "" if it has none. Where CSI migration leaves
	// such a volume to a CSI driver, other nodes can reach it.
	plugin     string
	translated reach
	failure    error // of the translation
}

// unboundClaim is a claim that waits for its pod to be placed. On each node it gets the smallest
// volume that suits it, or one is provisioned there.
type unboundClaim struct {
	*v1.PersistentVolumeClaim
	// candidates are the existing volumes that suit the claim. failure is why they are unknown.
	candidates *candidates
	failure    error
	provision  provision
}

// volumeDecision is what the unbound claims get on a node: each is in one of the lists.
type volumeDecision struct {
	matches   []volumeMatch
	provision []*unboundClaim
}

// volumeMatch is an existing volume for a claim. The volume may name the claim already.
type volumeMatch struct {
	claim  *v1.PersistentVolumeClaim
	volume *v1.PersistentVolume
}

// readClaims reads the claims of a pod; nil if it has none. A rejection is of the pod as a whole:
// no node makes up for a claim that is missing, or that its volume plugin has still to bind.
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
		// A claim that names a volume and is not bound to it is the volume controller's to finish.
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

// usableClaims returns the claims of the pod's volumes, one per volume, or why one of them cannot
// be used. The messages are upstream's.
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
		// Its volume may be released under the pod.
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

// waitsForConsumer reports whether a claim's volume is chosen together with the node. A claim whose
// class does not exist does not wait: only a volume that is there already can be bound to it, and
// the volume controller does that.
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

// readBound reads where the volume of a bound claim can be used.
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
	// The volume stays with its in-tree plugin on every node.
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

// mostVolumesHeld bounds how many existing volumes the claims of a pod are held against in an
// attempt, each claim against all of its class; mostVolumesSkipped, how many are passed over on all
// nodes because an earlier claim of the pod gets them. Either is about a tenth of a second, in
// which no other pod is decided: an attempt reads the claims up to three times.
const mostVolumesHeld, mostVolumesSkipped = 1 << 18, 1 << 26

// tooManyClaims is Berth's own: upstream goes through all volumes, however many.
var tooManyClaims = &Rejection{Code: CodeManyClaims,
	Reasons: []string{"pod has too many unbound claims to hold each against all volumes of its class"}, Unresolvable: true}

// readUnbound adds the claims in the order in which they are served: those with a selected node
// first, then the smallest first. The order matters because an earlier claim takes a volume from a
// later one: a small claim that is served first takes a small volume, and leaves the large ones.
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
		// A volume is on its way for a claim with a selected node, so it takes none that exists.
		if _, hasNode := u.selectedNode(); !hasNode {
			u.candidates, u.failure = findCandidates(claims.c, claim, volumes[claimClass(claim)])
		}
		u.provision = readProvision(claims.c, claim)
		claims.unbound = append(claims.unbound, u)
	}

	slices.SortStableFunc(claims.unbound, inTurn)
	return nil
}

// inTurn compares two claims for readUnbound. Claims of one size stay in the order of the pod's
// volumes.
func inTurn(a, b *unboundClaim) int {
	_, aHasNode := a.selectedNode()
	_, bHasNode := b.selectedNode()
	switch {
	case aHasNode && bHasNode:
		return 0
	case aHasNode:
		return -1
	case bHasNode:
		return 1
	}
	x, y := a.Spec.Resources.Requests[v1.ResourceStorage], b.Spec.Resources.Requests[v1.ResourceStorage]
	return x.Cmp(y)
}

// selectedNode returns the node that has been selected for the claim's volume, by an earlier
// attempt or by another scheduler. The pod can go nowhere else as long as the claim has the
// annotation.
func (u *unboundClaim) selectedNode() (name string, ok bool) {
	name, ok = u.Annotations[annSelectedNode]
	return name, ok
}

// decideOn decides what the claims get on a node, or returns why the pod cannot go there: all
// reasons, in upstream's order. decision is nil if the caller only asks whether. Otherwise it is
// filled in, and means nothing if there is a rejection.
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

	// Victims that leave free no volume: they would stay bound to their claims.
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
		if r.Code == "" {
			r.Code = fault.code
		}
		r.Reasons = append(r.Reasons, fault.reason)
	}

	return r
}

// boundOn looks for the first volume that the node cannot reach (within), or that does not exist
// (exist). Volumes after it are not looked at, as upstream does not, so at most one of the two is
// false.
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

// usableOn reports whether the volume can be used on the node: by its in-tree labels, or by its
// driver's where CSI migration is on there.
func (b *boundClaim) usableOn(c *cluster.Cluster, n *cluster.Node) (bool, error) {
	if b.plugin == "" || !migratedOn(c, n, b.plugin) {
		return b.reach.hasNode(n), nil
	}
	return b.translated.hasNode(n), b.failure
}

// migratedOn reports whether CSI migration of an in-tree plugin is on at the node itself: its
// kubelet says so in an annotation of the CSINode. A node without a CSINode has not migrated
// anything.
func migratedOn(c *cluster.Cluster, n *cluster.Node, plugin string) bool {
	csiNode, ok := c.CSINodes.Get("", n.Name)
	if !ok {
		return false
	}
	for name := range strings.SplitSeq(csiNode.Annotations[v1.MigratedPluginsAnnotationKey], ",") {
		if name == plugin {
			return true
		}
	}
	return false
}

// unboundOn finds existing volumes for the claims, and checks whether the others can be
// provisioned. It stops at the first claim that gets nothing; found is false if there is no way to
// get a volume, enough is false if there is one but for lack of free storage.
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
			// Most pods have one claim, and need not note what is taken. Taken volumes are noted by
			// class because claims of other classes cannot get them.
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
