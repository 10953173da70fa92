// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// snapshot is the state of the cluster at the beginning of a pod's turn. It never changes, and can
// be read by any goroutine.
//
// The cost of a snapshot is proportional to the changes since the last: the NodeInfos of unchanged
// nodes are shared. The slice infos is copied after any change, at eight bytes a node; the lists
// used by few plugins are computed on first use.
type snapshot struct {
	infos     []*nodeInfo              // by index in the cluster; nil at unused indexes
	list      []fwk.NodeInfo           // infos without nil; plugins get it uncopied, and must not change it
	index     map[string]int32         // into infos, by node name
	nominated map[string][]fwk.PodInfo // pending pods by their nominated node

	affine, antiAffine func() []fwk.NodeInfo
	claims             func() sets.Set[string]
	placed             func() map[types.UID]*v1.Pod // the pods on nodes, for pod groups
}

// snapshots holds the last snapshot, and its position in the cluster's log. The Store's lock guards
// it.
type snapshots struct {
	last     *snapshot
	cluster  *cluster.Cluster // another cluster has another log, with incomparable positions
	position int              // position in the cluster's log
}

// takeSnapshot returns the current state of the cluster. Only the cluster's owner may call it.
// Without a change since the last call, it returns the same snapshot.
func (s *Store) takeSnapshot(c *cluster.Cluster) *snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &s.snapshots
	changes, known := c.Log.Since(b.position)
	if b.cluster != c || b.last == nil || !known {
		b.last = s.readAnew(c)
	} else if len(changes) > 0 || len(s.touched) > 0 {
		b.last = s.nextSnapshot(c, changes)
	}
	b.cluster, b.position = c, c.Log.Len()
	clear(s.touched)
	return b.last
}

// latestSnapshot returns the last snapshot taken, or an empty one before the first. Any goroutine
// may call it.
func (s *Store) latestSnapshot() *snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.snapshots.last == nil {
		empty := &snapshot{}
		empty.listNodes()
		return empty
	}
	return s.snapshots.last
}

// readAnew creates a snapshot from the whole cluster. It is used for the first snapshot of a
// cluster, and when the log no longer has all changes.
func (s *Store) readAnew(c *cluster.Cluster) *snapshot {
	next := &snapshot{infos: make([]*nodeInfo, len(c.Nodes))}
	for i, n := range c.Nodes {
		if n != nil {
			next.infos[i] = s.infoOf(c, n)
		}
	}
	next.listNodes()
	next.listNominated(s, c)
	return next
}

// nextSnapshot creates the next snapshot from the last one, the later changes in the cluster's log,
// and the changes of objects that do not affect decisions (touched).
func (s *Store) nextSnapshot(c *cluster.Cluster, changes []cluster.Change) *snapshot {
	last := s.snapshots.last
	next := &snapshot{infos: make([]*nodeInfo, len(c.Nodes)), list: last.list, index: last.index, nominated: last.nominated}
	copy(next.infos, last.infos)
	renewed, nominations := sets.New[int32](), false
	for i := range changes {
		if changes[i].Kind == cluster.Nomination {
			nominations = true
			continue
		}
		renewed.Insert(changes[i].Node)
	}

	for name := range s.touched {
		if n := c.Node(name); n != nil {
			renewed.Insert(n.Index)
		}
	}

	sameNodes := len(c.Nodes) == len(last.infos) // whether the map of names stays valid
	for i := range renewed {
		before := next.infos[i]
		next.infos[i] = nil
		if n := c.Nodes[i]; n != nil {
			next.infos[i] = s.infoOf(c, n)
		}
		sameNodes = sameNodes && before != nil && next.infos[i] != nil && before.node.Name == next.infos[i].node.Name
	}

	switch {
	case !sameNodes:
		next.listNodes()
	case renewed.Len() > 0:
		next.buildList()
	default:
		next.affine, next.antiAffine, next.claims, next.placed = last.affine, last.antiAffine, last.claims, last.placed
	}

	if nominations || len(last.nominated) > 0 {
		next.listNominated(s, c)
	}
	return next
}

// infoOf creates a node's NodeInfo; the lock is held. If the snapshot was taken without Need, the
// store lacks the node's object, and the NodeInfo has the cluster's data about it.
func (s *Store) infoOf(c *cluster.Cluster, n *cluster.Node) *nodeInfo {
	object := s.nodes[n.Name]
	if object == nil {
		object = n.Object()
	}
	info := emptyNodeInfo()
	info.SetNode(object)
	info.setImages(c)
	for _, p := range n.Pods {
		info.AddPodInfo(s.placedInfo(p, n.Name))
	}
	return info
}

// listNodes creates the map of names, and the lists of buildList.
func (s *snapshot) listNodes() {
	s.index = make(map[string]int32, len(s.infos))
	for i, info := range s.infos {
		if info != nil {
			s.index[info.node.Name] = int32(i)
		}
	}
	s.buildList()
}

// buildList creates the list of nodes, and the functions computing derived data on demand.
func (s *snapshot) buildList() {
	s.list = make([]fwk.NodeInfo, 0, len(s.index))
	for _, info := range s.infos {
		if info != nil {
			s.list = append(s.list, info)
		}
	}

	s.affine = sync.OnceValue(func() []fwk.NodeInfo {
		return slices.DeleteFunc(slices.Clone(s.list), func(n fwk.NodeInfo) bool { return len(n.GetPodsWithAffinity()) == 0 })
	})
	s.antiAffine = sync.OnceValue(func() []fwk.NodeInfo {
		return slices.DeleteFunc(slices.Clone(s.list),
			func(n fwk.NodeInfo) bool { return len(n.GetPodsWithRequiredAntiAffinity()) == 0 })
	})

	s.placed = sync.OnceValue(func() map[types.UID]*v1.Pod {
		pods := map[types.UID]*v1.Pod{}
		for _, info := range s.list {
			for _, p := range info.GetPods() {
				pods[p.GetPod().UID] = p.GetPod()
			}
		}
		return pods
	})

	s.claims = sync.OnceValue(func() sets.Set[string] {
		used := sets.New[string]()
		for _, info := range s.list {
			for claim := range info.GetPVCRefCounts() {
				used.Insert(claim)
			}
		}
		return used
	})
}

// listNominated records the pending pods by their nominated node. The store's lock is held.
func (s *snapshot) listNominated(store *Store, c *cluster.Cluster) {
	s.nominated = map[string][]fwk.PodInfo{}
	for _, n := range c.NominatedNodes() {
		for _, p := range n.Nominated {
			k := store.pods[p.UID()]
			if k == nil {
				k = &known{info: newPodInfo(p.Object())}
			}
			s.nominated[n.Name] = append(s.nominated[n.Name], k.info)
		}
	}
}

// NodeInfos lists the nodes.
func (s *snapshot) NodeInfos() fwk.NodeInfoLister {
	return nodeLister{func() *snapshot { return s }}
}

// sharedLister reads the latest snapshot at each call of its methods, and of the methods of the
// listers it returned, because plugins obtain these listers once and retain them.
type sharedLister struct{ store *Store }

var _ fwk.SharedLister = sharedLister{}

// NodeInfos and its siblings implement fwk.SharedLister.
func (l sharedLister) NodeInfos() fwk.NodeInfoLister           { return nodeLister{l.store.latestSnapshot} }
func (l sharedLister) StorageInfos() fwk.StorageInfoLister     { return storageLister(l) }
func (l sharedLister) PodGroupStates() fwk.PodGroupStateLister { return groupStates(l) }
func (l sharedLister) PodGroups() fwk.PodGroupLister           { return groupLister(l) }

// CompositePodGroupStates and CompositePodGroups implement fwk.SharedLister.
func (l sharedLister) CompositePodGroupStates() fwk.CompositePodGroupStateLister {
	return noCompositeStates{}
}
func (l sharedLister) CompositePodGroups() fwk.CompositePodGroupLister { return noCompositeGroups{} }

// nodeLister implements fwk.NodeInfoLister on one snapshot, or on the latest one at each call.
type nodeLister struct{ snapshot func() *snapshot }

// List lists all nodes. The list is the snapshot's own: as with upstream's list, plugins must not
// change it.
func (l nodeLister) List() ([]fwk.NodeInfo, error) { return l.snapshot().list, nil }

// HavePodsWithAffinityList and the method after it list the nodes having pods relevant to inter-pod
// affinity.
func (l nodeLister) HavePodsWithAffinityList() ([]fwk.NodeInfo, error) {
	return l.snapshot().affine(), nil
}

func (l nodeLister) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) {
	return l.snapshot().antiAffine(), nil
}

// HavePodsWithRequiredNonHostScopedAntiAffinityList is empty, as in a kube-scheduler without the
// feature gate InterPodAffinityHostnameFastPath.
func (l nodeLister) HavePodsWithRequiredNonHostScopedAntiAffinityList() ([]fwk.NodeInfo, error) {
	return nil, nil
}

// Get returns the node of that name. The error is upstream's.
func (l nodeLister) Get(name string) (fwk.NodeInfo, error) {
	s := l.snapshot()
	if i, ok := s.index[name]; ok {
		return s.infos[i], nil
	}
	return nil, fmt.Errorf("nodeinfo not found for node name %q", name)
}

// storageLister implements fwk.StorageInfoLister on the latest snapshot.
type storageLister struct{ store *Store }

// IsPVCUsedByPods reports whether a pod on any node uses the claim, named namespace/name.
func (l storageLister) IsPVCUsedByPods(key string) bool {
	return l.store.latestSnapshot().claims().Has(key)
}
