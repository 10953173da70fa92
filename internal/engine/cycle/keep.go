package cycle

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// kept is what is kept of a pod while it waits. Pods of a class share what the class stands for:
// ten thousand replicas would be two thirds of the scheduler's memory otherwise. Plugins from
// outside may look at anything, and are shown the pod as it is.
func (c *Core) kept(pod *v1.Pod, class *cluster.PodClass) *v1.Pod {
	if c.whole {
		return pod
	}
	m, spec := &pod.ObjectMeta, *class.Spec
	spec.NodeName, spec.Volumes, spec.ResourceClaims = "", pod.Spec.Volumes, pod.Spec.ResourceClaims
	if !sameNames(spec.Containers, pod.Spec.Containers) || !sameNames(spec.InitContainers, pod.Spec.InitContainers) {
		spec.Containers, spec.InitContainers = pod.Spec.Containers, pod.Spec.InitContainers
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: class.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
			CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
			Labels: class.Labels, Annotations: m.Annotations, OwnerReferences: m.OwnerReferences,
		},
		Spec: spec, Status: pod.Status,
	}
}

// sameNames tells whether the containers are called the same: the one thing of them that Berth
// writes and that a class does not stand for.
func sameNames(a, b []v1.Container) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Name != b[i].Name {
			return false
		}
	}
	return true
}

// keepWhole says whether pods are to be kept as they are. Those that wait already are taken from
// where objects are kept.
func (c *Core) keepWhole(whole bool) {
	if whole && !c.whole && c.options.Objects != nil {
		for item := range c.queue.Each {
			c.restore(item)
		}
	}
	c.whole = whole
}

func (c *Core) restore(item *queue.Item) {
	if pod := c.options.Objects.Shown(item.Pod.UID); pod != nil {
		item.Pod = pod
	}
}

// looksAtPods tells whether somebody from outside does.
func (p *profile) looksAtPods() bool {
	return len(p.Extensions)+len(p.Outside)+len(p.Extenders) > 0
}
