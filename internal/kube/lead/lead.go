// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package lead

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // leader_election_master_status
	"k8s.io/klog/v2"
)

// ErrLost ends Run when another replica leads or may lead. This replica's data may be outdated, so
// the process should be restarted.
var ErrLost = errors.New("leadership lost: the Lease could not be renewed in time or another replica has it; start again to stand by")

// slack is the time after its end that a Lease may be held without a renewal before Alive fails,
// equal to upstream's.
const slack = 20 * time.Second

// Elector decides whether this replica leads. It runs client-go's elector, and adds missing
// guarantees: the work ends before the Lease does (lead), the Lease is not released before the work
// has ended (Update), and no request leaves a process that has lost it (Over, Guard).
type Elector struct {
	options  Options
	identity string
	leases   coordinationv1.LeasesGetter
	events   resourcelock.EventRecorder // may be nil

	leading  atomic.Bool
	led      atomic.Pointer[lease] // the lease by which this replica leads or has led
	wall     func() time.Time      // wall-clock time; see renewal
	watchdog *leaderelection.HealthzAdaptor
	// annotation is written with every renewal; "" disables it.
	annotation string
	annotate   func() string
}

// New returns an elector on the cluster of config. Events about the Lease go to events, unless nil.
func New(config *rest.Config, options Options, events resourcelock.EventRecorder) (*Elector, error) {
	own := rest.CopyConfig(config)
	// A hanging request must leave time for another before the deadline.
	own.Timeout = max(time.Second, options.RenewDeadline/2)
	leases, err := coordinationv1.NewForConfig(own)
	if err != nil {
		return nil, fmt.Errorf("client for leader election: %w", err)
	}
	return newElector(leases, options, events)
}

// newElector is New with a client. The identity is the host's name, like upstream, with a suffix
// unique to the process: a restarted replica is another one.
func newElector(leases coordinationv1.LeasesGetter, options Options, events resourcelock.EventRecorder) (*Elector, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name of this host, for leader election: %w", err)
	}
	return &Elector{
		options:  options,
		identity: host + "_" + string(uuid.NewUUID()),
		leases:   leases,
		events:   events,
		wall:     time.Now,
		watchdog: leaderelection.NewLeaderHealthzAdaptor(slack),
	}, nil
}

// Leading reports whether the work runs. It may be called from any goroutine.
func (e *Elector) Leading() bool { return e.leading.Load() }

// Over reports whether this replica has led and no longer may: from the moment that its Lease has
// not been renewed for too long, whether or not Run has noticed yet. For Guard.
func (e *Elector) Over() bool {
	lease := e.led.Load()
	return lease != nil && (lease.lost.Load() || lease.now().since(*lease.renewed.Load()) >= e.options.good())
}

// Annotate adds an annotation to the Lease while this replica holds it; each renewal writes the
// current result of value. An empty value removes the annotation. Annotate must be called before
// Run.
func (e *Elector) Annotate(key string, value func() string) { e.annotation, e.annotate = key, value }

// Identity returns this replica's identity, as in the Lease's holder.
func (e *Elector) Identity() string { return e.identity }

// Alive fails if this replica holds the Lease without renewing it, slack after its end: for a
// liveness probe, like upstream's check leaderElection.
func (e *Elector) Alive(r *http.Request) error { return e.watchdog.Check(r) }

// Run does the work while this replica leads, or immediately if election is disabled. When the
// context ends, so does the work's context, and the Lease is released after the work has returned.
// ErrLost means that leadership was lost before.
//
// With the defaults, after the last renewal at 0 s: renewals are tried until 12 s, when the work's
// context ends; at 15 s another replica may take the Lease, and Run returns, whether or not the
// work has.
func (e *Elector) Run(ctx context.Context, work func(context.Context) error) error {
	if !e.options.Elect {
		e.leading.Store(true)
		defer e.leading.Store(false)
		return work(ctx)
	}
	// The elector must outlive ctx: while the work ends, the Lease is still renewed.
	electing, stopElecting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopElecting()
	lease := e.newLease()
	began, over := make(chan struct{}), make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lease,
		LeaseDuration:   e.options.LeaseDuration,
		RenewDeadline:   e.options.RenewDeadline,
		RetryPeriod:     e.options.RetryPeriod,
		ReleaseOnCancel: true,
		Name:            e.options.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(began) },
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	e.watchdog.SetLeaderElection(elector)
	go func() {
		defer close(over)
		elector.Run(electing)
	}()
	select {
	case <-ctx.Done():
		stopElecting()
		<-over
		return nil
	case <-began:
	}
	err = e.lead(ctx, lease, over, work)
	stopElecting()
	if !errors.Is(err, ErrLost) {
		<-over // the Lease is released
	}
	return err
}

// lead does the work until it ends by itself or must end: when the Lease was not renewed for
// good(), when another replica has it (taken), or when client-go's elector has given up (over). All
// three are loss of leadership, and the process must exit.
func (e *Elector) lead(ctx context.Context, lease *lease, over <-chan struct{}, work func(context.Context) error) error {
	working, stop := context.WithCancel(ctx)
	defer stop()
	e.led.Store(lease)
	e.leading.Store(true)
	defer e.leading.Store(false)
	ended := make(chan error, 1)
	go func() { ended <- work(working) }()
	good := e.options.good()
	expired := time.NewTimer(good)
	defer expired.Stop()
	for {
		select {
		case err := <-ended:
			return err
		// A renewal since the timer was set moves the end.
		case <-expired.C:
			if left := lease.left(good); left > 0 {
				expired.Reset(left)
				continue
			}
		case <-lease.taken:
		case <-over:
		}
		break
	}
	klog.FromContext(ctx).Error(ErrLost, "Ending at once", "lease", klog.KRef(e.options.Namespace, e.options.Name))
	stop()
	// No other replica leads before the Lease ends; this process must not finish the rest of the
	// work later, but exit.
	select {
	case <-ended:
	case <-time.After(e.options.LeaseDuration - good):
	}
	return ErrLost
}

// lease is the lock. It records its renewals, and whether another replica has it.
type lease struct {
	resourcelock.Interface
	renewed atomic.Pointer[renewal] // nil before the first
	wall    func() time.Time
	leading *atomic.Bool  // the Elector's flag that it leads
	taken   chan struct{} // has an element once another replica holds the Lease
	lost    atomic.Bool   // another replica holds the Lease
}

// renewal is the time of the last renewal of the Lease, by both clocks of the machine. The
// monotonic one stops while the machine is suspended; the wall clock may be set back. The clock
// showing the longer elapsed time counts, so that neither fault lets a write out after the Lease
// has ended. A wall clock set forward keeps writes back until the next renewal, a retry period at
// most.
type renewal struct{ monotonic, wall time.Time }

// now returns the present by both clocks.
func (l *lease) now() renewal {
	// Round strips the monotonic reading, without which Sub compares wall time.
	return renewal{time.Now(), l.wall().Round(0)}
}

// since returns the longer of the times elapsed by the two clocks.
func (r renewal) since(before renewal) time.Duration {
	return max(r.monotonic.Sub(before.monotonic), r.wall.Sub(before.wall))
}

// newLease returns the lock for one Run.
func (e *Elector) newLease() *lease {
	return &lease{
		Interface: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: e.options.Namespace, Name: e.options.Name},
			Client:     annotated{e.leases, e},
			LockConfig: resourcelock.ResourceLockConfig{Identity: e.identity, EventRecorder: e.events},
		},
		wall:    e.wall,
		leading: &e.leading,
		taken:   make(chan struct{}, 1),
	}
}

// left returns the time for which the work may continue without a renewal, this long after the last
// one. It uses only the monotonic clock: setting the wall clock must not end a leader that renews
// in time.
func (l *lease) left(good time.Duration) time.Duration {
	return good - time.Since(l.renewed.Load().monotonic)
}

// Get notices another holder immediately. client-go's elector would try to get the lease back until
// the renew deadline, with the work still running.
func (l *lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err == nil && l.leading.Load() && record.HolderIdentity != "" && record.HolderIdentity != l.Identity() {
		l.lost.Store(true)
		select {
		case l.taken <- struct{}{}:
		default:
		}
	}
	return record, raw, err
}

// Create takes a Lease that does not exist yet. That is a renewal like any other.
func (l *lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	at := l.now()
	err := l.Interface.Create(ctx, record)
	l.note(at, err)
	return err
}

// errWorking keeps the Lease from being released.
var errWorking = errors.New("not released: what was begun may still be under way; it expires instead")

// Update renews the Lease, or releases it. client-go's elector also releases a Lease after failing
// to renew it, and then another replica may lead immediately, while this one's work is still
// ending. During the work, the Lease expires instead. A release does not count as a renewal: it
// must not make Over false again.
func (l *lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" {
		if l.leading.Load() {
			return errWorking
		}
		return l.Interface.Update(ctx, record)
	}
	at := l.now()
	err := l.Interface.Update(ctx, record)
	l.note(at, err)
	return err
}

// note records a renewal as of the time before its request: other replicas may have seen it that
// early.
func (l *lease) note(at renewal, err error) {
	if err == nil {
		l.renewed.Store(&at)
	}
}
