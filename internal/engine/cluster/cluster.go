package cluster

import (
	"fmt"
	"maps"
	"math"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Cluster is the state that decisions are made on. It has one owner: nothing here may be called
// from two goroutines at once.
//
// Invariants, which hold except within Suppose and Visit: a placed pod is in pods, and either among
// the Pods of its node or, where no node of that name is known, in strays. A nominated pod is in
// nominated, and either among the Nominated of its node or in absent. Placing a pod ends its
// nomination. The sums of a node, and its Room, are sums over its Pods. Every change to a node or
// its pods is in Log. [Cluster.Recount] restores the invariants after a panic.
type Cluster struct {
	// Nodes by index; nil where a node was removed and its index is free.
	Nodes []*Node
	// Rooms has each node's free room, by the same index.
	Rooms []Room
	Objects
	Log Log

	nodes       map[string]*Node
	free        []int32
	pods        map[types.UID]*Pod            // placed pods, on known nodes or not
	strays      map[string]map[types.UID]*Pod // placed pods whose node is not known, by its name
	nominated   map[types.UID]*Pod
	absent      map[string][]*Pod  // nominated pods whose node is not known, by its name
	supposing   int                // how deeply calls of Suppose are nested
	away        map[types.UID]*Pod // pods that Suppose has taken from their nodes
	classes     map[digest]*PodClass
	nextClass   int32
	classesKept int // how many were left when classes were last dropped

	labels      interned[LabelSet]
	taints      interned[TaintSet]
	images      interned[ImageSet]
	features    interned[FeatureSet]
	sizes       interned[Size]
	imageStates map[string]*ImageState

	// ImagesVersion grows whenever the size of an image, or the share of nodes that have it, may
	// have changed.
	ImagesVersion uint64
}

// ImageState is an image as known in the whole cluster.
type ImageState struct {
	Size  int64 // as the first node reported it that had the image
	Nodes int   // how many have it
}

// New returns an empty cluster.
func New() *Cluster {
	return &Cluster{
		nodes: map[string]*Node{}, pods: map[types.UID]*Pod{}, strays: map[string]map[types.UID]*Pod{}, nominated: map[types.UID]*Pod{}, absent: map[string][]*Pod{},
		classes: map[digest]*PodClass{}, labels: newInterned[LabelSet](), taints: newInterned[TaintSet](),
		images: newInterned[ImageSet](), features: newInterned[FeatureSet](), sizes: newInterned[Size](), imageStates: map[string]*ImageState{},
	}
}

func (c *Cluster) log(change Change) { c.Log.add(change, len(c.Nodes)) }

// Node returns the node of that name, or nil.
func (c *Cluster) Node(name string) *Node { return c.nodes[name] }

// Len returns how many nodes there are.
func (c *Cluster) Len() int { return len(c.nodes) }

// SortedNodes returns all nodes by name.
func (c *Cluster) SortedNodes() []*Node {
	return slices.SortedFunc(maps.Values(c.nodes), func(a, b *Node) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
}

// Image returns what is known of an image by its name, or nil.
func (c *Cluster) Image(name string) *ImageState { return c.imageStates[name] }

// NamespaceLabels returns the labels of a namespace; none if it is not known.
func (c *Cluster) NamespaceLabels(name string) labels.Set {
	if ns, ok := c.Namespaces.Get("", name); ok {
		return ns.Labels
	}
	return nil
}

// SetNode adds the node, or brings what is known of it up to date.
func (c *Cluster) SetNode(object *v1.Node) *Node {
	n, known := c.nodes[object.Name]
	if !known {
		n = c.addNode(object.Name)
	}
	before := *n
	n.Labels = c.internLabels(object.Labels)
	n.Hostname, n.HasHostname = object.Labels[v1.LabelHostname], hasKey(object.Labels, v1.LabelHostname)
	n.Taints = c.internTaints(&object.Spec)
	n.Images = c.internImages(object.Status.Images)
	n.Features = c.internFeatures(object.Status.DeclaredFeatures)
	n.Size = c.internSize(object.Status.Allocatable)
	if known && n.same(&before) {
		return n
	}
	c.dropParts()
	if n.Images != before.Images {
		c.countImages(before.Images, -1)
		c.countImages(n.Images, 1)
	}
	room := &c.Rooms[n.Index]
	room.CPU, room.Memory, room.MaxPods = n.Size.MilliCPU, n.Size.Memory, int32(min(n.Size.Pods, 1<<30))
	room.PerCPU, room.PerMemory = float32(1/float64(room.CPU)), float32(1/float64(room.Memory))
	c.log(Change{Node: n.Index, Kind: NodeChanged})
	if !known {
		for _, p := range c.strays[n.Name] {
			c.attach(p, n)
		}
		delete(c.strays, n.Name)
		c.expect(n)
	}
	return n
}

// same reports whether the node is unchanged, apart from its pods.
func (n *Node) same(o *Node) bool {
	return n.Labels == o.Labels && n.Hostname == o.Hostname && n.HasHostname == o.HasHostname && n.Taints == o.Taints &&
		n.Images == o.Images && n.Features == o.Features && n.Size == o.Size
}

func hasKey(m map[string]string, key string) bool { _, ok := m[key]; return ok }

func (c *Cluster) addNode(name string) *Node {
	n := &Node{Name: name}
	if last := len(c.free) - 1; last >= 0 {
		n.Index, c.free = c.free[last], c.free[:last]
		c.Nodes[n.Index], c.Rooms[n.Index] = n, Room{}
	} else {
		n.Index = int32(len(c.Nodes))
		c.Nodes, c.Rooms = append(c.Nodes, n), append(c.Rooms, Room{})
	}
	c.nodes[name] = n
	return n
}

// RemoveNode forgets a node. Pods placed on it or nominated to it are kept until they are removed
// themselves, or until the node comes back.
func (c *Cluster) RemoveNode(name string) {
	n, ok := c.nodes[name]
	if !ok {
		return
	}
	for len(n.Pods) > 0 {
		p := n.Pods[len(n.Pods)-1]
		c.detach(p)
		c.stray(p)
	}
	if len(n.Nominated) > 0 {
		c.absent[name], n.Nominated = n.Nominated, nil
	}
	c.countImages(n.Images, -1)
	delete(c.nodes, name)
	c.Nodes[n.Index], c.Rooms[n.Index] = nil, Room{}
	c.free = append(c.free, n.Index)
	c.log(Change{Node: n.Index, Kind: NodeChanged})
}

func (c *Cluster) countImages(set *ImageSet, sign int) {
	if len(c.imageStates) > 0 || set != nil && len(set.Images) > 0 {
		c.ImagesVersion++
	}
	if set == nil {
		return
	}
	for i := range set.Images {
		seen := map[string]bool{}
		for _, name := range set.Images[i].Names {
			if seen[name] {
				continue
			}
			seen[name] = true
			state, ok := c.imageStates[name]
			if !ok {
				state = &ImageState{Size: set.Images[i].SizeBytes}
				c.imageStates[name] = state
			}
			if state.Nodes += sign; state.Nodes <= 0 {
				delete(c.imageStates, name)
			}
		}
	}
}

// SetPod records a pod as the API has it. A pod with a node is counted on that node. A pod without
// one is not counted, and forgotten if it was. A terminal pod is forgotten, and the returned pod is
// nil.
func (c *Cluster) SetPod(object *v1.Pod) *Pod {
	if rules.IsTerminal(object) {
		c.RemovePod(object.UID)
		return nil
	}
	if object.Spec.NodeName == "" {
		c.RemovePod(object.UID)
		return c.Pending(object)
	}
	p := c.Pending(object)
	p.NodeName = object.Spec.NodeName
	if old, ok := c.pods[object.UID]; ok {
		if old.Class == p.Class && old.NodeName == p.NodeName && old.Terminating == p.Terminating {
			if !old.Started.Equal(p.Started) || old.Preempted != p.Preempted {
				old.Started, old.Preempted = p.Started, p.Preempted
				if old.Node != nil {
					c.log(Change{Node: old.Node.Index, Kind: PodChanged})
				}
			}
			old.Created, old.Generation = p.Created, p.Generation
			return old
		}
		c.RemovePod(object.UID)
	}
	c.place(p)
	return p
}

// Pending converts a pod without counting it anywhere.
func (c *Cluster) Pending(object *v1.Pod) *Pod {
	p := &Pod{
		Class: c.class(object), Name: object.Name, UID: object.UID, Nominated: object.Status.NominatedNodeName,
		Created: object.CreationTimestamp.Time, Terminating: object.DeletionTimestamp != nil, Preempted: preempted(object),
		Generation: object.Generation,
	}
	if object.Status.StartTime != nil {
		p.Started = object.Status.StartTime.Time
	}
	return p
}

// Place counts a pod on a node. The pod must not have a node yet.
func (c *Cluster) Place(p *Pod, n *Node) {
	p.NodeName = n.Name
	c.place(p)
}

func (c *Cluster) place(p *Pod) {
	if _, ok := c.pods[p.UID]; ok {
		panic(fmt.Sprintf("pod %s/%s (%s) is placed twice", p.Namespace(), p.Name, p.UID))
	}
	c.Unnominate(p.UID)
	c.pods[p.UID] = p
	if p.Class.pods++; p.Class.pods == 1 {
		c.classes[p.Class.key] = p.Class // it may have been dropped
	}
	if n, ok := c.nodes[p.NodeName]; ok {
		c.attach(p, n)
	} else {
		c.stray(p)
	}
}

// Pod returns the placed pod with this UID, whether or not its node is known, or nil.
func (c *Cluster) Pod(uid types.UID) *Pod { return c.pods[uid] }

// Pods returns the number of placed pods, whether or not their nodes are known.
func (c *Cluster) Pods() int { return len(c.pods) }

// RemovePod forgets a pod, placed or nominated.
func (c *Cluster) RemovePod(uid types.UID) {
	c.Unnominate(uid)
	p, ok := c.pods[uid]
	if !ok {
		return
	}
	c.thoughtAway(p)
	delete(c.pods, uid)
	p.Class.pods--
	if p.Node != nil {
		c.detach(p)
		return
	}
	delete(c.strays[p.NodeName], uid)
	if len(c.strays[p.NodeName]) == 0 {
		delete(c.strays, p.NodeName)
	}
}

func (c *Cluster) stray(p *Pod) {
	if c.strays[p.NodeName] == nil {
		c.strays[p.NodeName] = map[types.UID]*Pod{}
	}
	c.strays[p.NodeName][p.UID] = p
}

func (c *Cluster) attach(p *Pod, n *Node) {
	p.Node, p.place = n, int32(len(n.Pods))
	n.Pods = append(n.Pods, p)
	c.count(n, p, 1)
	c.log(Change{Node: n.Index, Kind: PodAdded, Class: p.Class, Terminating: p.Terminating})
}

func (c *Cluster) detach(p *Pod) {
	n := p.Node
	last := len(n.Pods) - 1
	n.Pods[p.place] = n.Pods[last]
	n.Pods[p.place].place = p.place
	n.Pods[last] = nil
	n.Pods = n.Pods[:last]
	p.Node = nil
	c.count(n, p, -1)
	c.log(Change{Node: n.Index, Kind: PodRemoved, Class: p.Class, Terminating: p.Terminating})
}

// count adds a pod to the node's sums, or subtracts it. The pod is already among the node's pods,
// or no longer.
func (c *Cluster) count(n *Node, p *Pod, sign int32) {
	class, room := p.Class, &c.Rooms[n.Index]
	switch {
	case sign > 0:
		n.Requested.add(&class.Requests)
		room.addNonZero(class)
	case !n.Requested.take(&class.Requests):
		n.addUp()
		fallthrough
	case !room.takeNonZero(class):
		room.NonZeroCPU, room.NonZeroMemory = 0, 0
		for _, p := range n.Pods {
			room.addNonZero(p.Class)
		}
	}
	room.RequestedCPU, room.RequestedMemory = n.Requested.MilliCPU, n.Requested.Memory
	room.Pods = int32(len(n.Pods))
	if class.HasAffinity() {
		n.Affine += sign
	}
	if len(class.RequiredAntiAffinity) > 0 {
		n.AntiAffine += sign
	}
}

func (r *Room) addNonZero(class *PodClass) {
	r.NonZeroCPU = rules.Sum(r.NonZeroCPU, class.NonZeroCPU)
	r.NonZeroMemory = rules.Sum(r.NonZeroMemory, class.NonZeroMemory)
}

// takeNonZero returns false if a sum may have overflowed; see Resources.take.
func (r *Room) takeNonZero(class *PodClass) bool {
	if r.NonZeroCPU == math.MaxInt64 || r.NonZeroMemory == math.MaxInt64 {
		return false
	}
	r.NonZeroCPU -= class.NonZeroCPU
	r.NonZeroMemory -= class.NonZeroMemory
	return true
}

// Visit counts a copy of a pending pod on a node, as if the pod had been placed there, and returns
// that copy, which Leave takes away again. The pod itself, and all else that is known of it, stays
// as it is.
func (c *Cluster) Visit(p *Pod, n *Node) *Pod {
	guest := *p
	guest.NodeName = n.Name
	c.attach(&guest, n)
	return &guest
}

// Leave ends a visit.
func (c *Cluster) Leave(guest *Pod) { c.detach(guest) }

func (c *Cluster) class(pod *v1.Pod) *PodClass {
	key := classDigest(pod)
	if class, ok := c.classes[key]; ok {
		return class
	}
	class := newPodClass(pod, key)
	class.ID = c.nextClass
	c.nextClass++
	c.dropClasses()
	c.classes[key] = class
	return class
}

// dropClasses forgets classes without pods once there may be many. A class that is still referenced
// elsewhere stays valid, and is known again as soon as a pod of it is placed.
func (c *Cluster) dropClasses() {
	if len(c.classes) < worthDropping(c.classesKept) {
		return
	}
	maps.DeleteFunc(c.classes, func(_ digest, class *PodClass) bool { return class.pods == 0 })
	c.classesKept = len(c.classes)
}

// worthDropping is the number of entries from which a search for unused ones pays, given how many
// the last search left.
func worthDropping(kept int) int {
	const few = 128
	return kept + kept/8 + few
}
