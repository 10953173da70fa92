package plugins

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// volumeUses counts the volumes that the pods of each node use, and those that are attached to it.
// A node is counted when its count is needed, and again only if its pods, or objects that it was
// counted from, have changed. Upstream counts anew at every attempt, on every node.
//
// followCluster is called before nodes are judged, by the goroutine that decides. Nodes are then
// judged by several goroutines at once: what these share is atomic, or under mutex.
type volumeUses struct {
	c *cluster.Cluster
	// The versions of the tables that all is up to date with.
	claims, volumes, classes, attachments, csiNodes uint64

	attached map[string]map[string]*storagev1.VolumeAttachment // by node and name
	nodeOf   map[string]string                                 // of the attachments, by name

	nodes []atomic.Pointer[volumeUse]     // by the nodes' numbers
	known []atomic.Pointer[csiNodeOfNode] // the same; of one version of the table

	mutex sync.Mutex
	// from has the numbers of the nodes that were counted from a claim, or from a volume, which has
	// no namespace. It keeps them while a pod on one of them uses the object; see isUsed.
	from map[cluster.Name]map[int32]bool
}

// volumeUse is what one node's pods use, and what it was counted from. It is not changed once it is
// stored: a recount makes another one.
type volumeUse struct {
	// name and pods are compared with the node: its number may have passed to another one, and its
	// pods may have changed.
	name string
	pods []*cluster.Pod

	present attachedSet    // what pods use
	count   map[string]int // by driver, including what is attached and not used
	err     *Rejection
}

// csiNodeOfNode is the CSINode of the node of that name.
type csiNodeOfNode struct {
	name    string
	csiNode *storagev1.CSINode // nil if it has none
}

// followCluster forgets what is no longer true. Changes of claims, volumes and attachments are
// followed one by one; where the tables no longer know what changed, or where storage classes did,
// everything is counted anew.
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

	// Which nodes' CSINodes changed is not followed: looking one up is cheap.
	if u.csiNodes != c.CSINodes.Version {
		u.known = make([]atomic.Pointer[csiNodeOfNode], len(u.nodes))
	}
	u.claims, u.volumes, u.classes = c.Claims.Version, c.Volumes.Version, c.StorageClasses.Version
	u.attachments, u.csiNodes = c.VolumeAttachments.Version, c.CSINodes.Version
}

// beginAnew forgets everything. An eighth more places than nodes leave room for nodes that are
// added.
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

// forgetObject has the nodes recounted that were counted from an object.
func (u *volumeUses) forgetObject(object cluster.Name) {
	for node := range u.from[object] {
		u.nodes[node].Store(nil)
	}
	if !u.isUsed(object) {
		delete(u.from, object)
	}
}

// isUsed reports whether a pod uses the claim or volume on a node that was counted from it. What is
// used on nodes that were never counted has had no pod rejected.
func (u *volumeUses) isUsed(object cluster.Name) bool {
	for node := range u.from[object] {
		n := u.c.Nodes[node]
		if n != nil && slices.ContainsFunc(n.Pods, func(p *cluster.Pod) bool { return slices.Contains(u.sourcesOf(p), object) }) {
			return true
		}
	}
	return false
}

// sourcesOf lists what the volumes of a pod are counted from: its claims, also those that do not
// exist, and the volumes that these name.
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

// readAttachment takes in an attachment as it is now. Nodes are known to it by name only, so one
// without pods is forgotten, too.
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
	if u.attached[node] == nil {
		u.attached[node] = map[string]*storagev1.VolumeAttachment{}
	}
	u.attached[node][name], u.nodeOf[name] = a, node
	u.forgetNode(node)
}

// forgetNode has a node recounted. A node that does not exist (yet) has nothing to forget.
func (u *volumeUses) forgetNode(name string) {
	if n := u.c.Node(name); n != nil {
		u.nodes[n.Index].Store(nil)
	}
	if len(u.attached[name]) == 0 {
		delete(u.attached, name)
	}
}

// csiNode returns the node's CSINode; nil if it has none. The lookup by name is kept by the node's
// number, because it is made for every node and pod.
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

// useOn returns what is used on a node, which may be a copy with other pods: such an answer is not
// kept. Of its CSINode it matters only that it exists.
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

// countNode looks at all pods of the node. A volume that several pods use counts once.
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

// noteSources remembers what the node was counted from: also claims that do not exist yet, since
// their creation changes the count. Before the result is stored, so that no change in between is
// missed.
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

// noteOne notes one object. The caller holds mutex.
func (u *volumeUses) noteOne(n *cluster.Node, object cluster.Name) {
	if u.from[object] == nil {
		u.from[object] = map[int32]bool{}
	}
	u.from[object][n.Index] = true
}
