package live

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/controller/eventlog"
	"github.com/berth-k8s/berth/controller/feed"
	"github.com/berth-k8s/berth/eviction"
)

// Name is the component's, as in kube-controller-manager's --controllers.
const Name = "taint-eviction-controller"

// longestSleep bounds the wait for a deadline: should the wall clock be set
// forward meanwhile, nothing is later than this by it.
const longestSleep = 10 * time.Second

// Evictor takes pods off tainted nodes.
type Evictor struct {
	requests *requests
	events   *eventlog.Log
	core     *eviction.Core
	seen     chan eviction.Event
	answers  chan eviction.Answered

	podsListed, nodesListed atomic.Bool
	told                    eviction.Stats // what the metrics know
}

// New returns an evictor. The client should not be limited on its own side:
// options bound what is in flight. events is where pods' events go.
func New(client kubernetes.Interface, events *eventlog.Log, options eviction.Options) *Evictor {
	return &Evictor{
		requests: newRequests(client.CoreV1().RESTClient()),
		events:   events,
		core:     eviction.New(options),
		seen:     make(chan eviction.Event, 1024),
		answers:  make(chan eviction.Answered, 64),
	}
}

// Synced reports whether all pods and nodes have been seen.
func (e *Evictor) Synced() bool { return e.podsListed.Load() && e.nodesListed.Load() }

// Run evicts until the context ends, and returns when no request is under way
// any more. What it knows is built from the API; an Evictor runs once.
func (e *Evictor) Run(ctx context.Context) {
	klog.FromContext(ctx).Info("Starting", "controller", Name)
	var watches, asked sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		watches.Wait()
		asked.Wait()
		klog.FromContext(ctx).Info("Stopped", "controller", Name)
	}()
	watches.Go(func() { feed.Run(ctx, e.podSource(), e.podSink(ctx)) })
	watches.Go(func() { feed.Run(ctx, e.nodeSource(), e.nodeSink(ctx)) })

	timer := time.NewTimer(0)
	tell := time.NewTicker(time.Second)
	defer timer.Stop()
	defer tell.Stop()
	for {
		var event eviction.Event
		select {
		case <-ctx.Done():
			return
		case event = <-e.answers:
		default:
			select { // answers first: they free what is in flight
			case <-ctx.Done():
				return
			case event = <-e.answers:
			case event = <-e.seen:
			case <-timer.C:
				event = eviction.Tick{}
			case <-tell.C:
				e.tellMetrics()
				continue
			}
		}
		for _, action := range e.core.Step(time.Now(), event) {
			e.carryOut(ctx, &asked, action)
		}
		sleep := longestSleep
		if at, ok := e.core.Wake(); ok {
			sleep = min(sleep, max(0, time.Until(at)))
		}
		timer.Reset(sleep)
	}
}

func (e *Evictor) carryOut(ctx context.Context, asked *sync.WaitGroup, action eviction.Action) {
	if event, ok := action.(eviction.Record); ok {
		klog.FromContext(ctx).V(2).Info(event.Message(), "pod", klog.KRef(event.Name.Namespace, event.Name.Name), "uid", event.UID)
		e.events.Add(v1.ObjectReference{
			Kind: "Pod", APIVersion: "v1", Namespace: event.Name.Namespace, Name: event.Name.Name, UID: event.UID,
		}, v1.EventTypeNormal, "TaintManagerEviction", event.Message())
		return
	}
	asked.Go(func() {
		answer := e.requests.carryOut(ctx, action)
		select {
		case e.answers <- answer:
		case <-ctx.Done():
		}
	})
}

func (e *Evictor) tell(ctx context.Context, event eviction.Event) {
	select {
	case e.seen <- event:
	case <-ctx.Done():
	}
}

func (e *Evictor) podSource() feed.Source {
	client := e.requests.client
	return feed.Source{
		Name:     "pods",
		Selector: "spec.nodeName!=", // the others are nobody's to evict
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			pods := &v1.PodList{}
			return pods, client.Get().Resource("pods").VersionedParams(&o, metav1.ParameterCodec).MaxRetries(0).Do(ctx).Into(pods)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			return client.Get().Resource("pods").VersionedParams(&o, metav1.ParameterCodec).MaxRetries(0).Watch(ctx)
		},
	}
}

func (e *Evictor) podSink(ctx context.Context) feed.Sink {
	var known tolerations
	return feed.Sink{
		Listing: func() { e.tell(ctx, eviction.PodsListing{}) },
		Listed:  func() { e.tell(ctx, eviction.PodsListed{}); e.podsListed.Store(true) },
		Seen: func(o runtime.Object) {
			pod := eviction.PodOf(o.(*v1.Pod))
			pod.Tolerations = known.shared(pod.Tolerations)
			e.tell(ctx, eviction.PodSeen{Pod: pod})
		},
		Gone: func(o runtime.Object) {
			pod := eviction.PodOf(o.(*v1.Pod))
			e.tell(ctx, eviction.PodGone{Name: pod.Name, UID: pod.UID})
		},
	}
}

func (e *Evictor) nodeSource() feed.Source {
	client := e.requests.client
	return feed.Source{
		Name: "nodes",
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			nodes := &v1.NodeList{}
			return nodes, client.Get().Resource("nodes").VersionedParams(&o, metav1.ParameterCodec).MaxRetries(0).Do(ctx).Into(nodes)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			return client.Get().Resource("nodes").VersionedParams(&o, metav1.ParameterCodec).MaxRetries(0).Watch(ctx)
		},
	}
}

func (e *Evictor) nodeSink(ctx context.Context) feed.Sink {
	return feed.Sink{
		Listing: func() { e.tell(ctx, eviction.NodesListing{}) },
		Listed:  func() { e.tell(ctx, eviction.NodesListed{}); e.nodesListed.Store(true) },
		Seen:    func(o runtime.Object) { e.tell(ctx, eviction.NodeSeen{Node: eviction.NodeOf(o.(*v1.Node))}) },
		Gone:    func(o runtime.Object) { e.tell(ctx, eviction.NodeGone{Name: o.(*v1.Node).Name}) },
	}
}
