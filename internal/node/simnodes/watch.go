package simnodes

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-k8s/berth/internal/node/simnodes/kubelet"
)

// watchBackoff is short: after an outage of the API server every second that
// the nodes do not listen is one in which pods neither start nor end.
var watchBackoff = wait.Backoff{Duration: 200 * time.Millisecond, Factor: 1.5, Jitter: 0.5, Steps: 10, Cap: 2 * time.Second}

func watchNodes(ctx context.Context, group *errgroup.Group, client kubernetes.Interface, shape *kubelet.Shape, events chan<- event) {
	nodes := client.CoreV1().Nodes()
	run(ctx, group, client, "nodes", &v1.Node{}, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return nodes.Watch(ctx, o)
		},
	}, &feed[*v1.Node]{
		ctx: ctx, events: events,
		keep: func(n *v1.Node) bool { return shape.Names(n.Name) },
		seen: func(n *v1.Node) event {
			return func(f *kubelet.Fleet, now time.Time) { f.NodeSeen(n, now) }
		},
		gone: func(n *v1.Node) event {
			return func(f *kubelet.Fleet, now time.Time) { f.NodeGone(n, now) }
		},
		listed: func(list []*v1.Node, version string) event {
			return func(f *kubelet.Fleet, now time.Time) { f.NodesListed(list, version, now) }
		},
	})
}

// watchPods watches bound pods only: those that wait for a node are nobody's
// here, and there may be many.
func watchPods(ctx context.Context, group *errgroup.Group, client kubernetes.Interface, shape *kubelet.Shape, events chan<- event) {
	pods := client.CoreV1().Pods(metav1.NamespaceAll)
	bound := fields.OneTermNotEqualSelector("spec.nodeName", "").String()
	run(ctx, group, client, "pods", &v1.Pod{}, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = bound
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = bound
			return pods.Watch(ctx, o)
		},
	}, &feed[*v1.Pod]{
		ctx: ctx, events: events,
		keep: func(p *v1.Pod) bool { return shape.Names(p.Spec.NodeName) },
		slim: kubelet.Slim,
		seen: func(p *v1.Pod) event {
			return func(f *kubelet.Fleet, now time.Time) { f.PodSeen(p, now) }
		},
		gone: func(p *v1.Pod) event {
			return func(f *kubelet.Fleet, now time.Time) { f.PodGone(p.UID, now) }
		},
		listed: func(list []*v1.Pod, version string) event {
			return func(f *kubelet.Fleet, now time.Time) { f.PodsListed(list, version, now) }
		},
	})
}

func run(ctx context.Context, group *errgroup.Group, client kubernetes.Interface, name string, of runtime.Object, lw *cache.ListWatch, store cache.ReflectorStore) {
	reflector := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, client), of, store,
		cache.ReflectorOptions{Name: "simnodes/" + name, Backoff: &watchBackoff})
	group.Go(func() error {
		reflector.RunWithContext(ctx)
		return nil
	})
}

// feed is a reflector's store that keeps nothing: it hands everything on to
// the goroutine that owns the fleet, in order.
type feed[T runtime.Object] struct {
	ctx    context.Context
	events chan<- event
	keep   func(T) bool
	slim   func(T) T // may be nil
	seen   func(T) event
	gone   func(T) event
	listed func([]T, string) event
}

func (s *feed[T]) Add(obj any) error    { return s.one(obj, s.seen) }
func (s *feed[T]) Update(obj any) error { return s.one(obj, s.seen) }
func (s *feed[T]) Delete(obj any) error { return s.one(obj, s.gone) }
func (s *feed[T]) Resync() error        { return nil }

func (s *feed[T]) Replace(list []any, version string) error {
	kept := make([]T, 0, len(list))
	for _, obj := range list {
		if o, ok := obj.(T); ok && s.keep(o) {
			kept = append(kept, s.thin(o))
		}
	}
	s.send(s.listed(kept, version))
	return nil
}

func (s *feed[T]) one(obj any, as func(T) event) error {
	if o, ok := obj.(T); ok && s.keep(o) {
		s.send(as(s.thin(o)))
	}
	return nil
}

func (s *feed[T]) thin(o T) T {
	if s.slim != nil {
		return s.slim(o)
	}
	return o
}

func (s *feed[T]) send(e event) {
	select {
	case s.events <- e:
	case <-s.ctx.Done():
	}
}
