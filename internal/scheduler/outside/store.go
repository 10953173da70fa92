package outside

import (
	"context"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Store keeps the API objects of nodes and pods, which a cluster.Cluster does not, for plugins that
// need them, and makes the snapshots that plugins see. It keeps nothing before Need.
//
// It is updated in step with the cluster, on the goroutine that owns the cluster; snapshots are
// made there too. Need may be called from any goroutine.
type Store struct {
	mu    sync.Mutex
	on    bool
	shown bool // objects were shown before they were kept
	pods  map[types.UID]*known
	nodes map[string]*v1.Node
	// touched are nodes that differ from the last snapshot, in addition to those in the cluster's
	// log.
	touched map[string]bool

	snapshots snapshots
}

// known is a pod that the API has shown, waiting or placed.
type known struct {
	info *podInfo
	// assumed is the same pod on the node that it was given and that the API does not show yet; nil
	// until a plugin needs it.
	assumed *podInfo
}

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{pods: map[types.UID]*known{}, nodes: map[string]*v1.Node{}, touched: map[string]bool{}}
}

// Pod stores a pod that the API shows.
func (s *Store) Pod(pod *v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.on:
		s.shown = true
	case rules.IsTerminal(pod):
		delete(s.pods, pod.UID)
	default:
		s.pods[pod.UID] = &known{info: newPodInfo(pod)}
		s.touch(pod.Spec.NodeName)
	}
}

// Shown is a pod as it was shown last, if it is kept.
func (s *Store) Shown(uid types.UID) *v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.pods[uid]; k != nil {
		return k.info.pod
	}
	return nil
}

// PodGone forgets a pod.
func (s *Store) PodGone(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, uid)
}

// Node stores a node that the API shows.
func (s *Store) Node(node *v1.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.on {
		s.shown = true
		return
	}
	s.nodes[node.Name] = node
	s.touch(node.Name)
}

// NodeGone forgets a node.
func (s *Store) NodeGone(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, name)
}

func (s *Store) touch(node string) {
	if node != "" {
		s.touched[node] = true
	}
}

// Need makes the store keep objects from now on, and lists those that it was shown before. What it
// is shown in the meantime is newer than the list.
func (s *Store) Need(ctx context.Context, client kubernetes.Interface) error {
	s.mu.Lock()
	missed := s.shown && !s.on
	s.on = true
	s.mu.Unlock()
	if !missed || client == nil {
		return nil
	}
	fromCache := metav1.ListOptions{ResourceVersion: "0"}
	nodes, err := client.CoreV1().Nodes().List(ctx, fromCache)
	if err != nil {
		return fmt.Errorf("list the nodes for plugins: %w", err)
	}
	pods, err := client.CoreV1().Pods("").List(ctx, fromCache)
	if err != nil {
		return fmt.Errorf("list the pods for plugins: %w", err)
	}
	s.add(nodes.Items, pods.Items)
	return nil
}

func (s *Store) add(nodes []v1.Node, pods []v1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range nodes {
		if _, ok := s.nodes[nodes[i].Name]; !ok {
			s.nodes[nodes[i].Name] = &nodes[i]
			s.touch(nodes[i].Name)
		}
	}
	for i := range pods {
		if _, ok := s.pods[pods[i].UID]; !ok && !rules.IsTerminal(&pods[i]) {
			s.pods[pods[i].UID] = &known{info: newPodInfo(&pods[i])}
			s.touch(pods[i].Spec.NodeName)
		}
	}
}

// waiting returns a pending pod as the API shows it.
func (s *Store) waiting(p *cluster.Pod) *podInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.pods[p.UID]; k != nil {
		return k.info
	}
	return newPodInfo(p.Object())
}

// placed returns a pod as one of the node's; the lock is held.
func (s *Store) placed(p *cluster.Pod, node string) *podInfo {
	k := s.pods[p.UID]
	switch {
	case k == nil:
		pod := p.Object()
		pod.Spec.NodeName = node
		return newPodInfo(pod)
	case k.info.pod.Spec.NodeName == node:
		return k.info
	case k.assumed == nil || k.assumed.pod.Spec.NodeName != node:
		pod := *k.info.pod
		pod.Spec.NodeName = node
		k.assumed = newPodInfo(&pod)
	}
	return k.assumed
}
