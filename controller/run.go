package controller

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/controller/eventlog"
	evictionlive "github.com/berth-k8s/berth/eviction/live"
	nodehealthlive "github.com/berth-k8s/berth/nodehealth/live"
)

// Controller is the two controllers and their endpoints.
type Controller struct {
	options Options
	config  *rest.Config

	leading  atomic.Bool
	elector  *leaderelection.HealthzAdaptor
	evictor  atomic.Pointer[evictionlive.Evictor]
	health   atomic.Pointer[nodehealthlive.Controller]
	listener net.Listener
}

// electorSlack is how long a leader may fail to renew before /healthz says so.
const electorSlack = 20 * time.Second

// ErrLeadershipLost ends Run when another replica leads: what this one knows
// may be outdated, so the process should be started anew.
var ErrLeadershipLost = errors.New("leadership lost: another replica leads, start again to stand by")

// New returns a controller for the cluster of config. It listens already, so
// that Address is known.
func New(config *rest.Config, options Options) (*Controller, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	c := &Controller{options: options, config: config, elector: leaderelection.NewLeaderHealthzAdaptor(electorSlack)}
	if options.Health != "" {
		var err error
		if c.listener, err = net.Listen("tcp", options.Health); err != nil {
			return nil, fmt.Errorf("--health-bind-address: %w", err)
		}
	}
	return c, nil
}

// Address is that of the endpoints, "" if there are none.
func (c *Controller) Address() string {
	if c.listener == nil {
		return ""
	}
	return c.listener.Addr().String()
}

// Run leads, or stands by until it leads, until the context ends.
func (c *Controller) Run(ctx context.Context) error {
	if c.listener != nil {
		server := &http.Server{Handler: c.endpoints(), ReadHeaderTimeout: 10 * time.Second}
		served := make(chan struct{})
		go func() {
			defer close(served)
			if err := server.Serve(c.listener); !errors.Is(err, http.ErrServerClosed) {
				klog.FromContext(ctx).Error(err, "Health endpoints ended")
			}
		}()
		defer func() { server.Close(); <-served }()
	}
	if !c.options.Lead.Elect {
		return c.lead(ctx)
	}
	return c.elect(ctx)
}

func (c *Controller) elect(ctx context.Context) error {
	client, err := c.client("berth-controller/leader-election", 20)
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("name of this host, for leader election: %w", err)
	}
	// The election outlives the context by as long as the controllers need to
	// end: no write may be under way when another replica leads.
	electing, stopElecting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopElecting()
	var began atomic.Bool
	ended := make(chan error, 1)
	defer context.AfterFunc(ctx, func() {
		if !began.Load() {
			stopElecting()
		}
	})()
	lead := c.options.Lead
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: lead.Namespace, Name: lead.Name},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
		},
		LeaseDuration:   lead.LeaseDuration,
		RenewDeadline:   lead.RenewDeadline,
		RetryPeriod:     lead.RetryPeriod,
		ReleaseOnCancel: true,
		WatchDog:        c.elector,
		Name:            lead.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				began.Store(true)
				leading, stop := context.WithCancel(leading)
				defer context.AfterFunc(ctx, stop)()
				ended <- c.lead(leading)
				stopElecting()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	elector.Run(electing)
	if !began.Load() {
		return nil
	}
	err = <-ended
	if err == nil && ctx.Err() == nil {
		return ErrLeadershipLost
	}
	return err
}

// lead runs the controllers until the context ends.
func (c *Controller) lead(ctx context.Context) error {
	var parts []func(context.Context)
	if c.options.enabled(evictionlive.Name) {
		client, events, err := c.clients(evictionlive.Name, evictionlive.Name)
		if err != nil {
			return err
		}
		evictor := evictionlive.New(client, events, c.options.Eviction)
		c.evictor.Store(evictor)
		parts = append(parts, events.Run, evictor.Run)
	}
	if c.options.enabled(nodehealthlive.Name) {
		client, events, err := c.clients(nodehealthlive.Name, "node-controller")
		if err != nil {
			return err
		}
		health := nodehealthlive.New(client, events, c.options.NodeHealth)
		c.health.Store(health)
		parts = append(parts, events.Run, health.Run)
	}
	c.leading.Store(true)
	defer c.leading.Store(false)
	var running sync.WaitGroup
	for _, part := range parts {
		running.Go(func() { part(ctx) })
	}
	running.Wait()
	return nil
}

// clients are a controller's: one without a limit of its own, since what is in
// flight is bounded, and one for events that cannot be in its way.
func (c *Controller) clients(name, source string) (kubernetes.Interface, *eventlog.Log, error) {
	client, err := c.client("berth-controller/"+name, -1)
	if err != nil {
		return nil, nil, err
	}
	events, err := c.client("berth-controller/"+name+"-events", -1)
	if err != nil {
		return nil, nil, err
	}
	return client, eventlog.New(events, source), nil
}

func (c *Controller) client(agent string, qps float32) (kubernetes.Interface, error) {
	config := rest.CopyConfig(c.config)
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.UserAgent = rest.DefaultKubernetesUserAgent() + "/" + agent
	config.QPS, config.Burst = qps, int(qps)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", agent, err)
	}
	return client, nil
}

// metrics are those of the controllers and, from the registry that all of
// Kubernetes' libraries share, those of the process. The controllers' are not
// in there: in a process with kube-controller-manager's they would clash.
func (c *Controller) metrics() http.Handler {
	own := metrics.NewKubeRegistry()
	own.MustRegister(evictionlive.Metrics()...)
	own.MustRegister(nodehealthlive.Metrics()...)
	all := prometheus.Gatherers{own, legacyregistry.DefaultGatherer}
	return metrics.HandlerFor(all, metrics.HandlerOpts{ErrorHandling: metrics.ContinueOnError})
}

func (c *Controller) endpoints() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", c.metrics())
	alive := func(w http.ResponseWriter, r *http.Request) {
		if err := c.elector.Check(r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintln(w, "ok")
	}
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if what := c.notReady(); what != "" {
			http.Error(w, what, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

// notReady says what is missing. A replica that stands by is ready to.
func (c *Controller) notReady() string {
	if !c.leading.Load() {
		if c.options.Lead.Elect {
			return ""
		}
		return "not started"
	}
	if c.options.enabled(evictionlive.Name) {
		if e := c.evictor.Load(); e == nil || !e.Synced() {
			return evictionlive.Name + " has not seen all pods and nodes yet"
		}
	}
	if c.options.enabled(nodehealthlive.Name) {
		if h := c.health.Load(); h == nil || !h.Synced() {
			return nodehealthlive.Name + " has not seen all nodes and leases yet"
		}
	}
	return ""
}
