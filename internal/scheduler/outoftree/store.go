// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Store holds the API objects of nodes and pods, which a cluster.Cluster lacks, for plugins that
// need them, and creates the plugins' snapshots. It has no nodes and pods except between Need and
// Spare: the objects of a large cluster take hundreds of megabytes, which a scheduler without such
// plugins saves.
//
// It is updated in step with the cluster, on the goroutine owning the cluster; snapshots are
// created there as well. Need and Spare may be called from any goroutine.
type Store struct {
	listing sync.Mutex // held by Need

	mu     sync.Mutex
	needed int                  // number of plugin sets that need the objects, which are kept while needed > 0
	missed bool                 // the API has shown objects that were not kept
	pods   map[types.UID]*known // pending and placed, not terminated
	nodes  map[string]*v1.Node  // by name
	// byGroup holds the pods naming a pod group.
	byGroup map[cluster.Name]map[types.UID]bool
	// newest is the pod with the highest resourceVersion. When that pod is deleted, newest becomes
	// nil until another pod is shown. departed is the last deleted or terminated pod.
	newest, departed *v1.Pod
	// gone holds the pods and nodes deleted while missed objects are listed: the list may still
	// have them. It is nil while no list is running.
	gone map[any]bool
	// The next snapshot recreates the NodeInfo of the nodes in touched, and of the nodes in the
	// cluster's log.
	touched map[string]bool

	snapshots snapshots
	groups    groupStore
}

// known is a pod of the API, waiting or placed. When the API shows the pod again, a new known
// replaces the old one, including the data computed about the pod.
type known struct {
	info *podInfo
	// assumed is the pod with its assumed node, which the API does not show yet. It is nil until a
	// snapshot needs it.
	assumed *podInfo
}

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{
		pods: map[types.UID]*known{}, nodes: map[string]*v1.Node{}, touched: map[string]bool{},
		byGroup: map[cluster.Name]map[types.UID]bool{}, groups: groupStore{objects: map[cluster.Name]*groups.PodGroup{}},
	}
}

// Pod stores a pod of the API. A terminated pod is forgotten like a deleted one: its node no longer
// counts it.
func (s *Store) Pod(pod *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.needed == 0:
		s.missed = true
	case rules.IsTerminal(pod):
		s.forgetPod(pod.UID)
	default:
		s.keepPod(pod)
		if s.newest == nil || atLeast(pod.ResourceVersion, s.newest.ResourceVersion) {
			s.newest = pod
		}
	}
}

// keepPod stores a pod, replacing an older version of it, and records its group; the lock is held.
func (s *Store) keepPod(pod *v1.Pod) {
	s.pods[pod.UID] = &known{info: newPodInfo(pod)}
	s.touchNode(pod.Spec.NodeName)
	if name := groups.NameOf(pod); name != "" {
		rules.Inner(s.byGroup, cluster.Name{Namespace: pod.Namespace, Name: name})[pod.UID] = true
	}
}

// newestPods returns the fields newest and departed. Either may be nil.
func (s *Store) newestPods() (newest, departed *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest, s.departed
}

// forgetPod forgets a pod, whether or not it is known; the lock is held.
func (s *Store) forgetPod(uid types.UID) {
	if k := s.pods[uid]; k != nil {
		s.departed = k.info.pod
		of := cluster.Name{Namespace: k.info.pod.Namespace, Name: groups.NameOf(k.info.pod)}
		if delete(s.byGroup[of], uid); len(s.byGroup[of]) == 0 {
			delete(s.byGroup, of)
		}
		if s.newest != nil && s.newest.UID == uid {
			s.newest = nil
		}
	}
	delete(s.pods, uid)
	if s.gone != nil {
		s.gone[uid] = true
	}
}

// Shown returns the last version shown of a pod, if it is kept.
func (s *Store) Shown(uid types.UID) *v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.pods[uid]; k != nil {
		return k.info.pod
	}
	return nil
}

// PodGone forgets a pod deleted from the API.
func (s *Store) PodGone(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetPod(uid)
}

// Node stores a node of the API. No update is ignored, even if it changes only fields not used by
// decisions: a plugin may read annotations.
func (s *Store) Node(node *v1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.needed == 0 {
		s.missed = true
		return
	}
	s.nodes[node.Name] = node
	s.touchNode(node.Name)
}

// NodeGone forgets a node. The cluster's log makes the next snapshot omit it.
func (s *Store) NodeGone(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, name)
	if s.gone != nil {
		s.gone[name] = true
	}
}

// touchNode makes the next snapshot recreate the node's NodeInfo; an empty name is ignored. The
// lock is held.
func (s *Store) touchNode(node string) {
	if node != "" {
		s.touched[node] = true
	}
}

// Need makes the store keep objects until Spare is called, and lists the objects shown before.
// Objects shown during the list are newer and take precedence. Each successful call requires one
// call of Spare. With a nil client, Need lists nothing.
func (s *Store) Need(ctx context.Context, client kubernetes.Interface) error {
	s.listing.Lock()
	defer s.listing.Unlock()
	s.mu.Lock()
	s.needed++
	missed := s.missed && client != nil
	if missed {
		s.gone = map[any]bool{}
	}

	s.mu.Unlock()
	if !missed {
		return nil
	}

	err := s.listMissed(ctx, client)
	if err != nil {
		s.Spare()
	}
	return err
}

// listMissed adds the missed objects. The requests do not set resourceVersion to "0", because the
// API server's cache may be older than the objects shown before.
func (s *Store) listMissed(ctx context.Context, client kubernetes.Interface) error {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the nodes for plugins: %w", err)
	}
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the pods for plugins: %w", err)
	}
	s.addMissed(nodes.Items, pods.Items)
	return nil
}

// addMissed adds the objects of a list, except those shown or deleted while it was read.
func (s *Store) addMissed(nodes []v1.Node, pods []v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range nodes {
		if _, ok := s.nodes[nodes[i].Name]; !ok && !s.gone[nodes[i].Name] {
			s.nodes[nodes[i].Name] = &nodes[i]
			s.touchNode(nodes[i].Name)
		}
	}
	for i := range pods {
		if _, ok := s.pods[pods[i].UID]; !ok && !s.gone[pods[i].UID] && !rules.IsTerminal(&pods[i]) {
			s.keepPod(&pods[i])
		}
	}
	s.missed, s.gone = false, nil
}

// Spare undoes one call of Need. After the last call, the objects are forgotten, and recorded as
// missed for the next Need.
func (s *Store) Spare() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.needed--; s.needed > 0 {
		return
	}
	s.missed = s.missed || len(s.pods)+len(s.nodes) > 0
	s.pods, s.nodes, s.gone = map[types.UID]*known{}, map[string]*v1.Node{}, nil
	s.byGroup = map[cluster.Name]map[types.UID]bool{}
	s.touched, s.snapshots = map[string]bool{}, snapshots{}
	s.newest, s.departed = nil, nil
}

// waitingInfo returns a pending pod as shown by the API, or, if the store does not keep it, with
// the cluster's data.
func (s *Store) waitingInfo(p *cluster.Pod) *podInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.pods[p.UID()]; k != nil {
		return k.info
	}
	return newPodInfo(p.Object())
}

// placedInfo returns a pod of the node; the lock is held. The pod's spec names the node, even while
// the binding is in flight and the API does not show it yet, as in kube-scheduler's cache of
// assumed pods.
func (s *Store) placedInfo(p *cluster.Pod, node string) *podInfo {
	k := s.pods[p.UID()]
	switch {
	case k == nil:
		pod := p.Object()
		pod.Spec.NodeName = node
		return newPodInfo(pod)
	case k.info.pod.Spec.NodeName == node:
		return k.info
	case k.assumed == nil || k.assumed.pod.Spec.NodeName != node:
		pod := *k.info.pod // a shallow copy: only the node's name differs
		pod.Spec.NodeName = node
		k.assumed = newPodInfo(&pod)
	}
	return k.assumed
}
