// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package lead

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // leader_election_master_status
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/deploy"
	"github.com/berth-k8s/berth/internal/pacing"
)

// ErrLost is returned by Run when another replica leads or may lead. This replica's data may be
// outdated, so the process should be restarted.
var ErrLost = errors.New("leadership lost: the Lease could not be renewed in time or another replica has it; start again to stand by")

// slack is the time between the expiration of a Lease that this replica holds and the failure of
// Alive. It is the same as in upstream.
const slack = 20 * time.Second

// Elector decides whether this replica leads. It runs client-go's elector, and adds guarantees: the
// work ends before the Lease expires (lead), the Lease is not released before the work has ended
// (Update), and a process that has lost the Lease sends no requests (Over, Guard).
type Elector struct {
	options  Options
	identity string
	leases   coordinationv1.LeasesGetter
	events   resourcelock.EventRecorder // may be nil

	leading  atomic.Bool
	led      atomic.Pointer[lease] // the lease by which this replica leads or has led
	wall     func() time.Time      // wall-clock time; see renewal
	watchdog *leaderelection.HealthzAdaptor
	// annotation is the key of the annotation written with every renewal; "" disables it.
	annotation string
	annotate   func() string
	// OnNewLeader, if set, receives the identity of each new holder of the Lease, from another
	// goroutine. It must be set before Run.
	OnNewLeader func(identity string)
}

// New returns an elector for the cluster of config. Events about the Lease are recorded with
// events, unless it is nil.
func New(config *rest.Config, options Options, events resourcelock.EventRecorder) (*Elector, error) {
	own := rest.CopyConfig(config)
	// If a request hangs, there must be time for a second one before the deadline.
	own.Timeout = max(time.Second, options.RenewDeadline/2)
	leases, err := coordinationv1.NewForConfig(own)
	if err != nil {
		return nil, fmt.Errorf("client for leader election: %w", err)
	}
	return newElector(leases, options, events)
}

// newElector is like New, but takes a client. Like upstream, the identity is the host's name with a
// suffix unique to the process, so a restarted replica has a new identity, unless the options name
// it.
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
		identity: cmp.Or(options.Identity, host+"_"+string(uuid.NewUUID())),
		leases:   leases,
		events:   events,
		wall:     time.Now,
		watchdog: leaderelection.NewLeaderHealthzAdaptor(slack),
	}, nil
}

// Leading reports whether the work is running. It may be called from any goroutine.
func (e *Elector) Leading() bool { return e.leading.Load() }

// Over reports whether this replica has led, but may no longer lead. It returns true as soon as the
// Lease has not been renewed for too long, even if Run has not detected that yet. It is intended
// for Guard.
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

// Alive returns an error if this replica holds a Lease that expired longer ago than slack. It is
// intended for a liveness probe, like upstream's check leaderElection.
func (e *Elector) Alive(r *http.Request) error { return e.watchdog.Check(r) }

// Run calls work when this replica leads, or immediately if election is disabled. When ctx ends,
// the context of work ends as well, and the Lease is released after work has returned. Run returns
// the error of work, or ErrLost if leadership was lost before work returned.
//
// For example, with the defaults, if the last renewal was at 0 s, renewals are attempted until 12
// s. The context of work then ends. At 15 s, another replica may take the Lease, and Run returns
// even if work has not returned.
func (e *Elector) Run(ctx context.Context, work func(context.Context) error) error {
	if !e.options.Elect {
		e.leading.Store(true)
		defer e.leading.Store(false)
		return work(ctx)
	}
	// The elector must outlive ctx, because the Lease is still renewed while the work ends.
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
			OnNewLeader:      e.OnNewLeader,
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
		<-over // the Lease has been released
	}
	return err
}

// lead runs the work until it returns, or until leadership is lost: the Lease was not renewed for
// good(), another replica holds it (taken), or client-go's elector has given up (over). If
// leadership is lost, lead returns ErrLost, and the process must exit.
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
		// If the Lease was renewed since the timer was set, the timer is set again.
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
	klog.FromContext(ctx).Error(ErrLost, "Exiting immediately", "lease", klog.KRef(e.options.Namespace, e.options.Name))
	stop()
	// The work has until the expiration of the Lease to end. Unless another replica has taken the
	// Lease, none leads before that. After that, Run returns without waiting, so that the process
	// exits.
	select {
	case <-ended:
	case <-time.After(e.options.LeaseDuration - good):
	}
	return ErrLost
}

// lease is the resource lock. It records the last renewal, and whether another replica holds the
// Lease.
type lease struct {
	resourcelock.Interface
	renewed atomic.Pointer[renewal] // nil before the first renewal
	wall    func() time.Time
	leading *atomic.Bool  // Elector.leading
	taken   chan struct{} // has an element once another replica holds the Lease
	lost    atomic.Bool   // another replica holds the Lease
}

// renewal is the time of the last renewal of the Lease, by both clocks of the machine. The
// monotonic clock stops while the machine is suspended, and the wall clock may be set back. The
// longer of the two elapsed times counts, so that in either case, no write is sent after the Lease
// has expired. If the wall clock is set forward, writes are rejected until the next renewal, for a
// retry period at most.
type renewal struct{ monotonic, wall time.Time }

// now returns the current time by both clocks.
func (l *lease) now() renewal {
	// Round strips the monotonic reading, so that Sub uses the wall-clock time.
	return renewal{time.Now(), l.wall().Round(0)}
}

// since returns the time elapsed since an earlier renewal, by the clock that shows more.
func (r renewal) since(earlier renewal) time.Duration {
	return max(r.monotonic.Sub(earlier.monotonic), r.wall.Sub(earlier.wall))
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

// left returns the time remaining until the given duration has passed since the last renewal. It
// uses only the monotonic clock, so that a leader that renews in time keeps working when the wall
// clock is set.
func (l *lease) left(d time.Duration) time.Duration {
	return d - time.Since(l.renewed.Load().monotonic)
}

// Get reads the Lease, and ends the work immediately if another replica holds it. client-go's
// elector would try to get the Lease back until the renew deadline, while the work is still
// running.
func (l *lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	if err == nil && l.leading.Load() && record.HolderIdentity != "" && record.HolderIdentity != l.Identity() {
		l.lost.Store(true)
		pacing.Signal(l.taken)
	}
	return record, raw, err
}

// Create creates the Lease, which counts as a renewal.
func (l *lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	at := l.now()
	err := l.Interface.Create(ctx, record)
	l.note(at, err)
	return err
}

// errWorking is returned instead of releasing the Lease.
var errWorking = errors.New("not released: what was begun may still be under way; it expires instead")

// Update renews the Lease, or releases it. client-go's elector also releases the Lease when it
// could not renew it, and another replica could then lead while the work of this replica is still
// ending. Therefore Update refuses to release the Lease during the work, so that it expires
// instead. A release does not count as a renewal, because Over must not return false again.
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

// note records a successful renewal. at is the time before the request, because other replicas may
// have observed the renewal that early.
func (l *lease) note(at renewal, err error) {
	if err == nil {
		l.renewed.Store(&at)
	}
}

// NamespaceFile holds the namespace of this process's pod.
const NamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Trusted returns the Leases that are trusted to announce a scheduler's configuration, each as
// NAMESPACE/NAME, or as NAMESPACE for all Leases in it: kube-system, Berth's namespace, the given
// ones, and the namespace of this process's pod.
func Trusted(named ...string) []string {
	all := append([]string{metav1.NamespaceSystem, deploy.Namespace}, named...)
	if own, err := os.ReadFile(NamespaceFile); err == nil {
		all = append(all, strings.TrimSpace(string(own)))
	}
	return all
}

// List returns the Leases that may be used for leader election: all Leases except for those in
// kube-node-lease, which has a Lease for every node.
func List(ctx context.Context, leases coordinationv1.LeasesGetter) (all []*v1.Lease, err error) {
	list, err := leases.Leases(metav1.NamespaceAll).List(ctx,
		metav1.ListOptions{FieldSelector: "metadata.namespace!=" + corev1.NamespaceNodeLease})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all, nil
}

// Guard prevents the client's connections from sending anything after over has returned true; over
// is usually Elector.Over. A process that is suspended while it leads may resume in the middle of a
// request when another replica leads, and the API server would carry out the request. Therefore
// over is called right before each write to the network.
func Guard(config *rest.Config, over func() bool) {
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext // client-go's own
	}
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &guarded{conn, over}, nil
	}
}

// guarded is a connection that writes nothing when over returns true.
type guarded struct {
	net.Conn
	over func() bool
}

// Write closes the connection instead of writing if over returns true, so that pending requests
// fail immediately.
func (g *guarded) Write(b []byte) (int, error) {
	if g.over() {
		g.Close()
		return 0, ErrLost
	}
	return g.Conn.Write(b)
}
