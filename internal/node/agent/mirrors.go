package agent

import (
	"context"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// mirrors are the mirror pods of static pods in the API.
type mirrors struct {
	client kubernetes.Interface
	// node is the node's object, which owns them.
	node func() *v1.Node

	mu    sync.Mutex
	known map[types.NamespacedName]*v1.Pod
}

func newMirrors(client kubernetes.Interface, node func() *v1.Node) *mirrors {
	return &mirrors{client: client, node: node, known: map[types.NamespacedName]*v1.Pod{}}
}

func (m *mirrors) seen(mirror *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known[nameOf(mirror)] = mirror
}

// gone records that the API no longer has a mirror; another one may have its name by now.
func (m *mirrors) gone(mirror *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if have := m.known[nameOf(mirror)]; have != nil && have.UID == mirror.UID {
		delete(m.known, nameOf(mirror))
	}
}

// named is the mirror with the name of a static pod, perhaps of an earlier version of it; nil if
// there is none.
func (m *mirrors) named(pod *v1.Pod) *v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known[nameOf(pod)]
}

// of is a static pod's mirror; nil if there is none for this version of the pod.
func (m *mirrors) of(pod *v1.Pod) *v1.Pod {
	mirror := m.named(pod)
	if mirror == nil || mirror.DeletionTimestamp != nil || mirror.Annotations[v1.MirrorPodAnnotationKey] != string(pod.UID) {
		return nil
	}
	return mirror
}

func (m *mirrors) all() []*v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*v1.Pod, 0, len(m.known))
	for _, mirror := range m.known {
		out = append(out, mirror)
	}
	slices.SortFunc(out, func(x, y *v1.Pod) int { return strings.Compare(x.Name, y.Name) })
	return out
}

// create has the API show a static pod, or removes the mirror of an earlier version of it: the next
// one is created once the watch shows that this one is gone.
func (m *mirrors) create(ctx context.Context, pod *v1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if old := m.named(pod); old != nil {
		m.remove(ctx, old)
		return nil
	}
	mirror := pod.DeepCopy()
	mirror.UID, mirror.ResourceVersion = "", ""
	delete(mirror.Annotations, annotationFile)
	mirror.Annotations[v1.MirrorPodAnnotationKey] = string(pod.UID)
	if node := m.node(); node.UID != "" {
		controller := true
		mirror.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &controller}}
	}
	_, err := m.client.CoreV1().Pods(pod.Namespace).Create(ctx, mirror, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // the watch will show it
	}
	return err
}

func (m *mirrors) remove(ctx context.Context, mirror *v1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if err := deletePod(ctx, m.client, mirror); err != nil {
		klog.V(2).InfoS("Cannot remove the mirror of a static pod; it is tried again", "pod", klog.KObj(mirror), "err", err)
	}
}
