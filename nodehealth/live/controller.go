package live

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/controller/eventlog"
	"github.com/berth-k8s/berth/controller/feed"
	"github.com/berth-k8s/berth/nodehealth"
)

// Name is the component's, as in kube-controller-manager's --controllers.
const Name = "node-lifecycle-controller"

// Controller turns the state of nodes into taints.
type Controller struct {
	client   kubernetes.Interface
	requests *requests
	events   *eventlog.Log // about nodes
	core     *nodehealth.Core
	seen     chan nodehealth.Event
	answers  chan nodehealth.Answered

	nodesListed, leasesListed atomic.Bool
	sight                     sight
	told                      map[string]int // evictions by zone, as the metrics know them
}

// New returns a controller. The client should not be limited on its own side:
// options bound what is in flight.
func New(client kubernetes.Interface, events *eventlog.Log, options nodehealth.Options) *Controller {
	return &Controller{
		client:   client,
		requests: &requests{client: client, events: events},
		events:   events,
		core:     nodehealth.New(options),
		seen:     make(chan nodehealth.Event, 1024),
		answers:  make(chan nodehealth.Answered, 64),
		told:     map[string]int{},
	}
}

// Synced reports whether all nodes and leases have been seen.
func (c *Controller) Synced() bool { return c.nodesListed.Load() && c.leasesListed.Load() }

// Run keeps taints up to date until the context ends, and returns when no write
// is under way any more. A Controller runs once.
func (c *Controller) Run(ctx context.Context) {
	log := klog.FromContext(ctx)
	log.Info("Starting", "controller", Name)
	var watches, asked sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		watches.Wait()
		asked.Wait()
		log.Info("Stopped", "controller", Name)
	}()
	watches.Go(func() { feed.Run(ctx, c.nodeSource(), c.nodeSink(ctx)) })
	watches.Go(func() { feed.Run(ctx, c.leaseSource(), c.leaseSink(ctx)) })

	timer := time.NewTimer(0)
	tell := time.NewTicker(time.Second)
	defer timer.Stop()
	defer tell.Stop()
	for {
		var event nodehealth.Event
		select {
		case <-ctx.Done():
			return
		case event = <-c.answers:
		case event = <-c.seen:
		case <-timer.C:
			event = nodehealth.Tick{}
		case <-tell.C:
			c.tellMetrics()
			continue
		}
		now := time.Now()
		for _, action := range c.core.Step(now, event) {
			c.carryOut(ctx, &asked, action)
		}
		timer.Reset(max(0, time.Until(c.core.Wake(now))))
	}
}

func (c *Controller) carryOut(ctx context.Context, asked *sync.WaitGroup, action nodehealth.Action) {
	log := klog.FromContext(ctx)
	switch a := action.(type) {
	case nodehealth.Record:
		log.V(2).Info(a.Message, "node", klog.KRef("", a.Node), "reason", a.Reason)
		c.events.Add(v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: a.Node, UID: a.UID}, v1.EventTypeNormal, a.Reason, a.Message)
	case nodehealth.ZoneChanged:
		log.Info("Zone is in another state", "zone", nodehealth.ZoneName(a.Zone), "from", a.From, "to", a.To, "nodesPerSecond", a.Rate)
	default:
		log.V(2).Info("Writing", "write", action)
		asked.Go(func() {
			answer := c.requests.carryOut(ctx, action)
			select {
			case c.answers <- answer:
			case <-ctx.Done():
			}
		})
	}
}

func (c *Controller) tell(ctx context.Context, event nodehealth.Event) {
	select {
	case c.seen <- event:
	case <-ctx.Done():
	}
}

func (c *Controller) nodeSource() feed.Source {
	nodes := c.client.CoreV1().Nodes()
	return feed.Source{
		Name:  "nodes",
		List:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) },
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return nodes.Watch(ctx, o) },
	}
}

func (c *Controller) nodeSink(ctx context.Context) feed.Sink {
	return feed.Sink{
		Listing: func() { c.tell(ctx, nodehealth.NodesListing{}) },
		Listed:  func() { c.tell(ctx, nodehealth.NodesListed{}); c.nodesListed.Store(true) },
		Seen:    func(o runtime.Object) { c.tell(ctx, nodehealth.NodeSeen{Node: nodehealth.NodeOf(o.(*v1.Node))}) },
		Gone:    func(o runtime.Object) { c.tell(ctx, nodehealth.NodeGone{Name: o.(*v1.Node).Name}) },
		Lost:    func() { c.lost(ctx, "nodes") },
		Back:    func() { c.back(ctx, "nodes") },
	}
}

func (c *Controller) leaseSource() feed.Source {
	leases := c.client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	return feed.Source{
		Name:  "leases",
		List:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return leases.List(ctx, o) },
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return leases.Watch(ctx, o) },
	}
}

func (c *Controller) leaseSink(ctx context.Context) feed.Sink {
	return feed.Sink{
		Listing: func() {},
		Listed:  func() { c.tell(ctx, nodehealth.LeasesListed{}); c.leasesListed.Store(true) },
		Seen: func(o runtime.Object) {
			if lease := o.(*coordinationv1.Lease); lease.Spec.RenewTime != nil {
				c.tell(ctx, nodehealth.LeaseSeen{Name: lease.Name, Renewed: lease.Spec.RenewTime.Time})
			}
		},
		Gone: func(o runtime.Object) { c.tell(ctx, nodehealth.LeaseGone{Name: o.(*coordinationv1.Lease).Name}) },
		Lost: func() { c.lost(ctx, "leases") },
		Back: func() { c.back(ctx, "leases") },
	}
}

// sight is which watches are broken: signs of life come by both.
type sight struct {
	mu   sync.Mutex
	lost map[string]bool
}

func (c *Controller) lost(ctx context.Context, watch string) {
	c.sight.mu.Lock()
	defer c.sight.mu.Unlock()
	if c.sight.lost == nil {
		c.sight.lost = map[string]bool{}
	}
	c.sight.lost[watch] = true
	c.tell(ctx, nodehealth.Blind{})
}

func (c *Controller) back(ctx context.Context, watch string) {
	c.sight.mu.Lock()
	defer c.sight.mu.Unlock()
	if delete(c.sight.lost, watch); len(c.sight.lost) == 0 {
		c.tell(ctx, nodehealth.Sighted{})
	}
}
