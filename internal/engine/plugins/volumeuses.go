// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// volumeUses counts the volumes used by the pods of each node, and the volumes attached to it. A
// node is counted on demand, and counted again only after a change of its pods or of the objects
// behind the count. Upstream counts again at every attempt, on every node.
//
// The deciding goroutine calls followCluster before nodes are judged. Several goroutines then judge
// nodes concurrently: their shared state is atomic, or guarded by mutex.
type volumeUses struct {
	c *cluster.Cluster
	// The versions of the tables followed so far.
	claims, volumes, classes, attachments, csiNodes uint64

	attached map[string]map[string]*storagev1.VolumeAttachment // by node and name
	nodeOf   map[string]string                                 // nodes of the attachments, by name

	nodes []atomic.Pointer[volumeUse]     // by the nodes' numbers
	known []atomic.Pointer[csiNodeOfNode] // by the nodes' numbers; for one version of the table

	mutex sync.Mutex
	// from holds, for each claim, or volume (without a namespace), the numbers of the nodes counted
	// from it. An entry stays while a pod on one of these nodes uses the object; see isUsed.
	from map[cluster.Name]map[int32]bool
}

// volumeUse holds the volumes used by one node's pods, and the sources of the count. It is
// immutable once stored: a recount makes another volumeUse.
type volumeUse struct {
	// name and pods are compared with the node: the node's number may have been reused for another
	// node, and the node's pods may have changed.
	name string
	pods []*cluster.Pod

	present attachedSet    // volumes used by pods
	count   map[string]int // by driver, including attached but unused volumes
	err     *Rejection
}

// csiNodeOfNode is the CSINode of the named node.
type csiNodeOfNode struct {
	name    string
	csiNode *storagev1.CSINode // nil if it does not exist
}

// followCluster drops outdated entries. It follows changes of claims, volumes and attachments one
// by one; if the tables have dropped the list of changes, or storage classes have changed, it
// counts all nodes again.
func (u *volumeUses) followCluster(c *cluster.Cluster) {
	claims, ok1 := c.Claims.Since(u.claims)
	volumes, ok2 := c.Volumes.Since(u.volumes)
	attachments, ok3 := c.VolumeAttachments.Since(u.attachments)
	switch {
	case u.c != c || !ok1 || !ok2 || !ok3 || u.classes != c.StorageClasses.Version || len(u.nodes) < len(c.Nodes):
		u.beginAnew(c)
	default:
		for _, name := range claims {
			u.forgetObject(name)
		}
		for _, name := range volumes {
			u.forgetObject(name)
		}
		for _, name := range attachments {
			u.readAttachment(name.Name)
		}
	}

	// Changes of individual CSINodes are not followed: looking one up is cheap.
	if u.csiNodes != c.CSINodes.Version {
		u.known = make([]atomic.Pointer[csiNodeOfNode], len(u.nodes))
	}
	u.claims, u.volumes, u.classes = c.Claims.Version, c.Volumes.Version, c.StorageClasses.Version
	u.attachments, u.csiNodes = c.VolumeAttachments.Version, c.CSINodes.Version
}

// beginAnew drops all entries. It allocates an eighth more slots than nodes, for nodes added later.
func (u *volumeUses) beginAnew(c *cluster.Cluster) {
	from := map[cluster.Name]map[int32]bool{}
	if u.c == c {
		from = u.from
		maps.DeleteFunc(from, func(object cluster.Name, _ map[int32]bool) bool { return !u.isUsed(object) })
	}

	size := len(c.Nodes) + len(c.Nodes)/8
	*u = volumeUses{
		c: c, attached: map[string]map[string]*storagev1.VolumeAttachment{}, nodeOf: map[string]string{},
		nodes: make([]atomic.Pointer[volumeUse], size), known: make([]atomic.Pointer[csiNodeOfNode], size),
		from: from,
	}
	for a := range c.VolumeAttachments.Each {
		u.readAttachment(a.Name)
	}
}

// forgetObject drops the counts of the nodes counted from an object.
func (u *volumeUses) forgetObject(object cluster.Name) {
	for node := range u.from[object] {
		u.nodes[node].Store(nil)
	}
	if !u.isUsed(object) {
		delete(u.from, object)
	}
}

// isUsed reports whether a pod uses the claim or volume on a node counted from it. A node that was
// never counted has not caused a rejection, so uses of the object on it do not matter.
func (u *volumeUses) isUsed(object cluster.Name) bool {
	for node := range u.from[object] {
		n := u.c.Nodes[node]
		if n != nil && slices.ContainsFunc(n.Pods, func(p *cluster.Pod) bool { return slices.Contains(u.sourcesOf(p), object) }) {
			return true
		}
	}
	return false
}

// sourcesOf lists the sources of the count of a pod's volumes: its claims, including missing ones,
// and the volumes they name.
func (u *volumeUses) sourcesOf(p *cluster.Pod) (sources []cluster.Name) {
	for i := range p.Spec().Volumes {
		name, _, ok := claimOf(p, &p.Spec().Volumes[i])
		if !ok {
			continue
		}
		sources = append(sources, cluster.Name{Namespace: p.Namespace(), Name: name})
		if claim, ok := u.c.Claims.Get(p.Namespace(), name); ok && claim.Spec.VolumeName != "" {
			sources = append(sources, cluster.Name{Name: claim.Spec.VolumeName})
		}
	}
	return sources
}

// readAttachment reads the current state of an attachment. Attachments name their node, so the
// count of a node without pods is dropped as well.
func (u *volumeUses) readAttachment(name string) {
	if node, ok := u.nodeOf[name]; ok {
		delete(u.attached[node], name)
		delete(u.nodeOf, name)
		u.forgetNode(node)
	}
	a, ok := u.c.VolumeAttachments.Get("", name)
	if !ok {
		return
	}
	node := a.Spec.NodeName
	rules.Inner(u.attached, node)[name], u.nodeOf[name] = a, node
	u.forgetNode(node)
}

// forgetNode drops the count of a node, if the node exists. It also drops the node's set of
// attachments if the set is empty.
func (u *volumeUses) forgetNode(name string) {
	if n := u.c.Node(name); n != nil {
		u.nodes[n.Index].Store(nil)
	}
	if len(u.attached[name]) == 0 {
		delete(u.attached, name)
	}
}

// csiNode returns the node's CSINode, or nil. It caches the lookup by name under the node's number,
// because every node and pod needs it.
func (u *volumeUses) csiNode(n *cluster.Node) *storagev1.CSINode {
	if int(n.Index) < len(u.known) {
		if k := u.known[n.Index].Load(); k != nil && k.name == n.Name {
			return k.csiNode
		}
	}
	csiNode, ok := u.c.CSINodes.Get("", n.Name)
	if !ok {
		csiNode = nil
	}
	if int(n.Index) < len(u.known) {
		u.known[n.Index].Store(&csiNodeOfNode{n.Name, csiNode})
	}
	return csiNode
}

// useOn returns the volumes used on a node. The node may be a copy with other pods; such a result
// is not cached. Only the existence of the node's CSINode matters.
func (u *volumeUses) useOn(n *cluster.Node, csiNode *storagev1.CSINode) *volumeUse {
	place := (*atomic.Pointer[volumeUse])(nil)
	if int(n.Index) < len(u.nodes) {
		place = &u.nodes[n.Index]
		if use := place.Load(); use != nil && use.name == n.Name && slices.Equal(use.pods, n.Pods) {
			return use
		}
	}
	use := u.countNode(n, csiNode)
	if place != nil && u.c.Nodes[n.Index] == n {
		u.noteSources(n, use)
		place.Store(use)
	}
	return use
}

// countNode visits all pods of the node. A volume used by several pods counts once.
func (u *volumeUses) countNode(n *cluster.Node, csiNode *storagev1.CSINode) *volumeUse {
	use := &volumeUse{name: n.Name, present: attachedSet{}, count: map[string]int{}}
	for _, p := range n.Pods {
		if err := use.present.addPod(u.c, csiNode, p, false); err != nil {
			use.err = &Rejection{Err: err}
			return use
		}
	}

	for a := range use.present {
		use.count[a.driver]++
	}
	beside := attachedSet{}
	beside.addAttachments(u.c, u.attached[n.Name])
	for a := range beside {
		if !use.present[a] {
			use.count[a.driver]++
		}
	}

	return use
}

// noteSources records the sources of the node's count, including claims that do not exist yet,
// since their creation changes the count. It must be called before the result is stored, so that no
// change in between is missed.
func (u *volumeUses) noteSources(n *cluster.Node, use *volumeUse) {
	use.pods = slices.Clone(n.Pods)
	u.mutex.Lock()
	defer u.mutex.Unlock()
	for _, p := range n.Pods {
		for _, source := range u.sourcesOf(p) {
			u.noteOne(n, source)
		}
	}

	for _, a := range u.attached[n.Name] {
		if volume := a.Spec.Source.PersistentVolumeName; volume != nil {
			u.noteOne(n, cluster.Name{Name: *volume})
		}
	}
}

// noteOne records one source. The caller holds mutex.
func (u *volumeUses) noteOne(n *cluster.Node, object cluster.Name) {
	rules.Inner(u.from, object)[n.Index] = true
}
