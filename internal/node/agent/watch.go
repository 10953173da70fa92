package agent

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// watchBackoff is short: after an outage of the API server every second that the node does not
// listen is one in which pods neither start nor end.
var watchBackoff = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 1.5, Jitter: 0.5, Steps: 10, Cap: 2 * time.Second}

// watchPods follows the pods that are bound to this node, until ctx ends.
func (a *Agent) watchPods(ctx context.Context) {
	pods, bound := a.client.CoreV1().Pods(metav1.NamespaceAll), fields.OneTermEqualSelector("spec.nodeName", a.config.NodeName).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = bound
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = bound
			return pods.Watch(ctx, o)
		},
	}
	store := &boundPods{ctx: ctx, agent: a, known: map[types.UID]*v1.Pod{}}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, a.client), &v1.Pod{}, store,
		cache.ReflectorOptions{Name: "agent/pods", Backoff: &watchBackoff}).RunWithContext(ctx)
}

// watchNode follows the node's own object: others set its taints, labels and resources.
func (a *Agent) watchNode(ctx context.Context) {
	nodes, self := a.client.CoreV1().Nodes(), fields.OneTermEqualSelector("metadata.name", a.config.NodeName).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = self
			return nodes.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = self
			return nodes.Watch(ctx, o)
		},
	}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, a.client), &v1.Node{}, &ownNode{a},
		cache.ReflectorOptions{Name: "agent/node", Backoff: &watchBackoff}).RunWithContext(ctx)
}

// ownNode is a reflector's store for one object.
type ownNode struct{ agent *Agent }

func (s *ownNode) Add(obj any) error    { return s.Update(obj) }
func (s *ownNode) Delete(obj any) error { s.agent.nodeGone(obj.(*v1.Node).ResourceVersion); return nil }
func (s *ownNode) Resync() error        { return nil }
func (s *ownNode) Update(obj any) error { s.agent.nodeSeen(obj.(*v1.Node)); return nil }
func (s *ownNode) Replace(list []any, version string) error {
	for _, obj := range list {
		s.agent.nodeSeen(obj.(*v1.Node))
	}
	if len(list) == 0 {
		s.agent.nodeGone(version) // or it has not registered yet, which it then does
	}
	return nil
}

// boundPods is a reflector's store that knows pods by UID: one that took another's name is not an
// update of it.
type boundPods struct {
	ctx   context.Context
	agent *Agent
	known map[types.UID]*v1.Pod
}

func (s *boundPods) Resync() error        { return nil }
func (s *boundPods) Add(obj any) error    { return s.Update(obj) }
func (s *boundPods) Update(obj any) error { s.seen(obj.(*v1.Pod)); return nil }
func (s *boundPods) Delete(obj any) error { s.gone(obj.(*v1.Pod)); return nil }

func (s *boundPods) seen(pod *v1.Pod) {
	s.known[pod.UID] = pod
	s.agent.podSeen(s.ctx, pod)
}

func (s *boundPods) gone(pod *v1.Pod) {
	delete(s.known, pod.UID)
	s.agent.podGone(pod)
}

func (s *boundPods) Replace(list []any, _ string) error {
	there := map[types.UID]bool{}
	for _, obj := range list {
		there[obj.(*v1.Pod).UID] = true
	}
	for uid, pod := range s.known {
		if !there[uid] {
			s.gone(pod)
		}
	}
	for _, obj := range list {
		s.seen(obj.(*v1.Pod))
	}
	s.agent.apiListed()
	return nil
}
