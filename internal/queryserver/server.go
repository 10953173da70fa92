// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queryserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/pflag"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/question"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/kube/guard"
	"github.com/berth-k8s/berth/internal/kube/serve"
	"github.com/berth-k8s/berth/internal/world"
)

const (
	// Port is the default port.
	Port = 8423
	// answerWithin bounds a question; callers may set an earlier deadline.
	answerWithin = 25 * time.Second
	// reload is the interval between look-ups of the schedulers' configuration.
	reload = 30 * time.Second
	// longWork is the minimum work of a long question: about 50 ms.
	longWork = 500_000
	// longTime is the time after which a question in a lane is repeated as a long one.
	longTime = 100 * time.Millisecond
	// refusalDelay delays a refusal for too much work, so that a caller who asks again and again
	// without a pause does not occupy the processor.
	refusalDelay = 250 * time.Millisecond
	// minCompressed is the size of answers from which they are compressed. Compressing a small one
	// takes longer than the decision.
	minCompressed = 16 << 10
)

// Options configures a server.
type Options struct {
	serve.Options
	// Lanes is the number of concurrent short questions.
	Lanes int
	// CallerRate is the work that a caller may cause, in judgements of a node for a pod per second.
	CallerRate int
	// Running returns the configuration of the cluster's schedulers at a given time. leases holds
	// the cluster's Leases.
	Running func(ctx context.Context, leases []*coordinationv1.Lease, at time.Time) (*config.Running, error)
	// Parse parses the operations of a forecast.
	Parse question.Parser
}

// Defaults returns the default options.
func Defaults() Options {
	o := Options{Options: serve.Defaults(Port), Lanes: min(runtime.GOMAXPROCS(0), 4), CallerRate: 25_000_000}
	o.BindAddress, o.HTTP2, o.Grace = "127.0.0.1", true, 5*time.Second
	return o
}

// AddFlags adds all flags, with o as defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	o.Options.AddFlags(flags)
	flags.IntVar(&o.Lanes, "parallel", o.Lanes, "short questions answered at a time; each of them has a copy of the cluster in memory")
	flags.IntVar(&o.CallerRate, "caller-rate", o.CallerRate,
		"work that each caller may cause, in judgements of a node for a pod per second, with a burst of ten seconds")
}

// Server serves the questions of callers.
type Server struct {
	Answers
	options  Options
	client   *snapshot.Client
	reviews  kubernetes.Interface // for TokenReviews and SubjectAccessReviews only
	follower *follower
	accounts accounts
	// long has an element per long question in progress. Each holds a copy of the cluster, and
	// occupies a processor. Half of the lanes remain for short questions.
	long    chan struct{}
	nodes   atomic.Int64 // approximate number of nodes, for the estimates of work
	assumed atomic.Pointer[config.Running]
	server  *serve.Server

	seconds *metrics.HistogramVec
	work    *metrics.CounterVec
}

// New returns a server for the cluster of config that does not listen; see Follow.
func New(config *rest.Config, o Options) (*Server, error) {
	if o.Lanes < 1 || o.CallerRate < 1 || o.SecurePort < 1 {
		return nil, errors.New("--parallel, --caller-rate and --secure-port: must be 1 or more")
	}
	s := &Server{
		options: o, long: make(chan struct{}, max(o.Lanes/2, 1)),
		accounts: accounts{rate: o.CallerRate, known: cache.NewLRUExpireCache(remembered)},
		seconds: metrics.NewHistogramVec(&metrics.HistogramOpts{
			Name: "berth_query_duration_seconds", Help: "Time to answer a question.", StabilityLevel: metrics.ALPHA,
			Buckets: metrics.ExponentialBuckets(0.0005, 2, 16),
		}, []string{"question", "code"}),
		work: metrics.NewCounterVec(&metrics.CounterOpts{
			Name: "berth_query_work_total", Help: "Estimated work of the questions, in judgements of a node for a pod.",
			StabilityLevel: metrics.ALPHA,
		}, []string{"question"}),
	}

	s.Answers = Answers{Parse: o.Parse, Read: s.read, authorize: s.viewOf}
	var err error
	if s.reviews, err = guard.Client(config); err != nil {
		return nil, err
	}
	if s.client, err = snapshot.NewClient(config); err != nil {
		return nil, err
	}
	s.follower = newFollower(s.client, o.Lanes)
	return s, nil
}

// Listen returns a server for the cluster of config. It listens already; Run serves.
func Listen(config *rest.Config, o Options) (*Server, error) {
	s, err := New(config, o)
	if err == nil {
		s.server, err = serve.Listen(o.Options)
	}
	return s, err
}

// Follow follows the cluster until the context ends, for questions by this process; see Local.
func (s *Server) Follow(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { s.follower.run(ctx) })
	running.Go(func() { s.followSchedulers(ctx) })
	running.Wait()
}

type localKey struct{}

// Local returns the context of a question by this process. The answer is complete, because the
// process reads the cluster by its own permissions. Local waits until the cluster has been read.
func (s *Server) Local(ctx context.Context) (context.Context, error) {
	err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, answerWithin, true, func(context.Context) (bool, error) {
		return s.unready(nil) == nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", s.unready(nil), err)
	}
	return context.WithValue(ctx, localKey{}, true), nil
}

// URLs returns the addresses that are listened on.
func (s *Server) URLs() []string { return s.server.URLs() }

// Run follows the cluster and serves questions until the context ends. Questions in progress may
// then complete, within a few seconds.
func (s *Server) Run(ctx context.Context) {
	registry := metrics.NewKubeRegistry()
	registry.MustRegister(s.seconds, s.work)
	endpoints := serve.Endpoints{Component: "berth-serve", Metrics: registry, Ready: []serve.Check{{Name: "watches", Failed: s.unready}}}
	mux := http.NewServeMux()
	mux.Handle("/", endpoints.Handler())
	path, handler := Handler(s, answerWithin, connect.WithInterceptors(connect.UnaryInterceptorFunc(s.observe)),
		connect.WithCompressMinBytes(minCompressed))
	mux.Handle(path, handler)

	// The lanes outlive the requests.
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { s.Follow(following) })
	s.server.Run(ctx, serve.Handlers{Secure: mux, Plain: endpoints.Handler(), Own: path}, s.reviews)
	stop()
	running.Wait()
}

// unready returns an error until the cluster has been read.
func (s *Server) unready(*http.Request) error {
	if s.assumed.Load() == nil {
		return errors.New("the cluster has not been read yet")
	}
	return nil
}

// followSchedulers keeps the lanes' profiles current.
func (s *Server) followSchedulers(ctx context.Context) {
	select {
	case <-s.follower.ready:
	case <-ctx.Done():
		return
	}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		running, err := s.running(ctx)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Configuration of the schedulers not read")
			return
		}
		for _, l := range s.follower.lanes {
			l.mu.Lock()
			l.setProfiles(running.Profiles)
			l.mu.Unlock()
		}
		s.assumed.Store(running)
	}, reload)
}

// running reads the configuration of the running schedulers.
func (s *Server) running(ctx context.Context) (*config.Running, error) {
	var leases []*coordinationv1.Lease
	if err := s.follower.do(ctx, func(l *lane) {
		leases = slices.Collect(world.All[*coordinationv1.Lease](l.world))
		s.nodes.Store(int64(l.world.Cluster().Len()))
	}); err != nil {
		return nil, err
	}
	return s.options.Running(ctx, leases, time.Now())
}

// source describes the state as of now.
func (s *Server) source(running *config.Running) simulate.Source {
	return simulate.Source{From: s.client.Host(), AsOf: metav1.NewTime(time.Now().UTC().Truncate(time.Second)),
		Assumed: running.Assumed, Stopped: running.Stopped}
}

// Handler returns the path and the handler of a service. A question ends after the given time.
func Handler(service berthv1alpha1.QueryServiceHandler, within time.Duration, options ...connect.HandlerOption) (string, http.Handler) {
	bound := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			ctx, cancel := context.WithTimeout(ctx, within)
			defer cancel()
			response, err := next(ctx, r)
			switch {
			case err == nil || connect.CodeOf(err) != connect.CodeUnknown:
				return response, err
			case ctx.Err() != nil:
				return nil, connect.NewError(connect.CodeDeadlineExceeded, fmt.Errorf("not answered in time, within %s: ask for less at a time", within))
			case errors.Is(err, explain.ErrNoPod):
				return nil, connect.NewError(connect.CodeNotFound, err)
			}
			return nil, connect.NewError(connect.CodeInvalidArgument, err)
		}
	})
	return berthv1alpha1.NewQueryServiceHandler(service, append(options, connect.WithInterceptors(bound),
		connect.WithReadMaxBytes(question.MostBody), connect.WithRecover(recovered))...)
}

// charge charges the estimated work of a question to its caller.
func (s *Server) charge(q Question, work int) error {
	s.work.WithLabelValues(q.name).Add(float64(work))
	return q.view.caller.charge(work)
}

// askLong calls its argument with a fork of a lane. Long questions of a caller run one at a time,
// so that the caller cannot occupy the turns of other callers.
func (s *Server) askLong(ctx context.Context, q Question, work int, ask func(*lane) error) error {
	select {
	case q.view.caller.long <- struct{}{}:
		defer func() { <-q.view.caller.long }()
	default:
		return exhausted("a long question of this caller is in progress", 0)
	}
	if err := s.charge(q, work); err != nil {
		return err
	}

	select {
	case s.long <- struct{}{}:
		defer func() { <-s.long }()
	case <-ctx.Done():
		return ctx.Err()
	}
	var own *lane
	if err := s.follower.do(ctx, func(l *lane) { own = l.fork() }); err != nil {
		return err
	}
	return ask(own)
}

// read calls use with the state of a lane.
func (s *Server) read(ctx context.Context, q Question, use func(*State) error) error {
	return s.askLong(ctx, q, 20*longWork, func(l *lane) error {
		running, err := s.running(ctx)
		if err != nil {
			return err
		}
		state := &State{Running: running, Source: s.source(running), Missing: s.follower.unreadable()}
		state.Set = manifest.Assemble(state.Source.From, slices.Collect(l.world.Objects()))
		state.Set.Whole = len(state.Missing) == 0
		return use(state)
	})
}

// observe measures the time of a question.
func (s *Server) observe(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		began := time.Now()
		if s.assumed.Load() == nil {
			return nil, connect.NewError(connect.CodeUnavailable, errors.New("the cluster has not been read yet"))
		}
		response, err := next(ctx, r)
		code := "ok"
		if err != nil {
			code = connect.CodeOf(err).String()
		}

		s.seconds.WithLabelValues(r.Spec().Procedure[len("/"+berthv1alpha1.QueryServiceName+"/"):], code).Observe(time.Since(began).Seconds())
		if connect.CodeOf(err) == connect.CodeResourceExhausted {
			select {
			case <-time.After(refusalDelay):
			case <-ctx.Done():
			}
		}
		return response, err
	}
}

// recovered turns a panic into an error: one tenant's question must not end the service.
func recovered(ctx context.Context, spec connect.Spec, _ http.Header, panicked any) error {
	klog.FromContext(ctx).Error(nil, "Question failed", "question", spec.Procedure, "panic", panicked)
	return connect.NewError(connect.CodeInternal, fmt.Errorf("the question failed: %v", panicked))
}
