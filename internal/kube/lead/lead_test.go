// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package lead

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
)

// replica is one process of several.
type replica struct {
	*Elector
	cut     atomic.Bool // the replica cannot reach the API server
	robbed  atomic.Bool // updates conflict because another replica has the Lease; the fake client does not check versions
	unheard atomic.Bool // only its renewals fail
	slow    time.Duration
	began   atomic.Pointer[time.Time]
	told    atomic.Pointer[time.Time] // when the context of its work ended
	stop    context.CancelFunc
	outcome chan error
}

var errCut = errors.New("no route to host")

// replicas returns n replicas that share the Leases of one cluster.
func replicas(t *testing.T, n int) []*replica {
	t.Helper()
	shared := fake.NewClientset()
	var all []*replica
	for range n {
		r := &replica{outcome: make(chan error, 1)}
		client := &fake.Clientset{}
		client.AddReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
			switch {
			case r.cut.Load():
				return true, nil, errCut
			case r.robbed.Load() && action.GetVerb() == "update":
				return true, nil, apierrors.NewConflict(coordinationv1.Resource("leases"), "test", errors.New("the object has been modified"))
			}
			if update, ok := action.(clienttesting.UpdateAction); ok && r.unheard.Load() {
				if holder := update.GetObject().(*coordinationv1.Lease).Spec.HolderIdentity; holder != nil && *holder != "" {
					return true, nil, errCut
				}
			}
			object, err := shared.Invokes(action, &coordinationv1.Lease{})
			return true, object, err
		})
		var err error
		if r.Elector, err = newElector(client.CoordinationV1(), Defaults("test"), nil); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func (r *replica) start() {
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() {
		r.outcome <- r.Run(ctx, func(ctx context.Context) error {
			now := time.Now()
			r.began.Store(&now)
			<-ctx.Done()
			now = time.Now()
			r.told.Store(&now)
			time.Sleep(r.slow)
			return nil
		})
	}()
}

// startBoth starts two replicas. The first leads, and the second stands by.
func startBoth(t *testing.T) (a, b *replica) {
	t.Helper()
	all := replicas(t, 2)
	a, b = all[0], all[1]
	a.start()
	time.Sleep(time.Second)
	b.start()
	time.Sleep(time.Minute)
	if !a.Leading() || a.began.Load() == nil || b.Leading() || b.began.Load() != nil {
		t.Fatalf("leading: %v and %v; want only the first", a.Leading(), b.Leading())
	}
	return a, b
}

func TestTerminatedLeaderGivesTheLeaseAwayAfterItsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := startBoth(t)
		a.slow = 20 * time.Second
		a.stop()
		time.Sleep(19 * time.Second)
		if b.began.Load() != nil {
			t.Error("the second works while the first still ends its work")
		}
		if err := <-a.outcome; err != nil {
			t.Errorf("the first ended with %v", err)
		}
		time.Sleep(5 * time.Second) // two retry periods, less than the 15 s of the Lease
		if !b.Leading() {
			t.Error("the lease was not given away")
		}
		b.stop()
		<-b.outcome
	})
}

func TestCutOffLeaderEndsBeforeAnotherBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := startBoth(t)
		a.cut.Store(true)
		if err := <-a.outcome; !errors.Is(err, ErrLost) {
			t.Errorf("the first ended with %v, want %v", err, ErrLost)
		}
		time.Sleep(20 * time.Second)
		if b.began.Load() == nil {
			t.Fatal("the second did not take over")
		}
		if gap := b.began.Load().Sub(*a.told.Load()); gap < 2*time.Second {
			t.Errorf("the first was told to end %v before the second began: want the 3 s between 2 s + 10 s and the lease's 15 s, less a moment", gap)
		}
		b.stop()
		<-b.outcome
		time.Sleep(time.Minute) // for the first replica's last attempt to release the Lease
	})
}

// TestLeaseIsNotReleasedWhileWorkEnds verifies that a leader that could not renew its Lease does
// not release it before the work has ended, even if the API server is reachable again.
func TestLeaseIsNotReleasedWhileWorkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := startBoth(t)
		a.slow = 2900 * time.Millisecond // just less than the 3 s between the end of leadership after 12 s and the expiration after 15 s
		a.unheard.Store(true)
		for b.began.Load() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		if !a.Over() {
			t.Error("what the first has begun may still be sent")
		}
		if told := a.told.Load(); told == nil || b.began.Load().Sub(*told) < a.slow {
			t.Error("the second began while the first still ended its work")
		}
		if err := <-a.outcome; !errors.Is(err, ErrLost) {
			t.Errorf("the first ended with %v", err)
		}
		b.stop()
		<-b.outcome
	})
}

// TestReleaseIsNoRenewal verifies that a release of the Lease does not extend the time until Over
// returns true.
func TestReleaseIsNoRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := replicas(t, 1)[0]
		a.start()
		time.Sleep(31 * time.Second) // a second after a renewal
		a.stop()
		if err := <-a.outcome; err != nil {
			t.Errorf("ended with %v", err)
		}
		time.Sleep(11500 * time.Millisecond)
		if !a.Over() {
			t.Error("the Lease counts from its release")
		}
	})
}

func TestWorkThatDoesNotEndDoesNotHoldTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := startBoth(t)
		a.slow = time.Hour
		began := time.Now()
		a.cut.Store(true)
		if err := <-a.outcome; !errors.Is(err, ErrLost) {
			t.Errorf("ended with %v", err)
		}
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("ended after %v, when the lease was over", took)
		}
		b.stop()
		<-b.outcome
		time.Sleep(2 * time.Hour)
	})
}

func TestLeaseThatAnotherHasTakenEndsTheWorkAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := replicas(t, 1)[0]
		a.start()
		time.Sleep(31 * time.Second) // between two renewals
		ctx := context.Background()
		leases := a.leases.Leases("kube-system")
		lease, err := leases.Get(ctx, "test", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		other, now := "other", metav1.NowMicro()
		lease.Spec.HolderIdentity, lease.Spec.RenewTime = &other, &now
		taken := time.Now()
		if _, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		a.robbed.Store(true)
		if err := <-a.outcome; !errors.Is(err, ErrLost) {
			t.Errorf("ended with %v", err)
		}
		if took := time.Since(taken); took > 5*time.Second {
			t.Errorf("ended %v after another took the lease", took)
		}
		if !a.Over() {
			t.Error("what it has begun may still be sent")
		}
		time.Sleep(time.Minute)
	})
}

// TestNothingIsSentWhenTheLeaseIsOver verifies that a replica can no longer send requests when
// another replica begins to work.
func TestNothingIsSentWhenTheLeaseIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := startBoth(t)
		config := &rest.Config{Dial: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			return ours, nil
		}}
		Guard(config, a.Over)
		conn, err := config.Dial(t.Context(), "tcp", "api:443")
		if err != nil {
			t.Fatal(err)
		}
		send := func() error { _, err := conn.Write([]byte("bind")); return err }
		cutAt := time.Now()
		a.cut.Store(true)
		var refused time.Duration
		for refused == 0 && b.began.Load() == nil {
			time.Sleep(100 * time.Millisecond)
			if err := send(); errors.Is(err, ErrLost) {
				refused = time.Since(cutAt)
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if refused == 0 {
			t.Fatal("another began while the first could still send")
		}
		if refused < 8*time.Second {
			t.Errorf("refused after %v: the Lease was renewed at most 2 s before and good for 12", refused)
		}
		if err := send(); err == nil {
			t.Error("sent once more")
		}
		if b.Over() {
			t.Error("who has never led has nothing to lose")
		}
		<-a.outcome
		time.Sleep(20 * time.Second)
		b.stop()
		<-b.outcome
		time.Sleep(time.Minute)
	})
}

// TestNothingIsSentByAMachineThatWasSuspended verifies that Over returns true on a machine that
// resumes after the Lease has expired, although its monotonic clock did not advance. It also
// verifies the effects of setting the wall clock.
func TestNothingIsSentByAMachineThatWasSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := replicas(t, 1)
		a := all[0]
		var suspended atomic.Int64
		a.wall = func() time.Time { return time.Now().Add(time.Duration(suspended.Load())) }
		a.start()
		time.Sleep(31 * time.Second) // between two renewals
		if a.Over() {
			t.Fatal("over while it renews")
		}
		a.cut.Store(true)
		suspended.Store(int64(time.Hour))
		if !a.Over() {
			t.Error("resumed an hour later, what was begun before may still be sent")
		}
		// If the wall clock is set forward, it looks like a suspension until the next renewal.
		a.cut.Store(false)
		time.Sleep(3 * time.Second)
		if a.Over() || !a.Leading() {
			t.Error("renewed, and still over")
		}
		// If the wall clock is set back, the monotonic clock counts.
		suspended.Store(-int64(time.Hour))
		a.cut.Store(true)
		time.Sleep(12 * time.Second)
		if !a.Over() {
			t.Error("not renewed for 12 s, and a wall clock set back keeps it alive")
		}
		<-a.outcome
		time.Sleep(time.Minute)
	})
}

// TestBothClocksAreRead verifies that the monotonic time of a renewal has a monotonic reading, and
// that its wall time has none. It runs without a synctest bubble, in which times have no monotonic
// readings.
func TestBothClocksAreRead(t *testing.T) {
	at := (&Elector{wall: time.Now}).newLease().now()
	if at.wall != at.wall.Round(0) || at.monotonic == at.monotonic.Round(0) {
		t.Errorf("%v by the wall clock and %v by the other", at.wall, at.monotonic)
	}
}

func TestTerminatedWhileStandingByEndsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := startBoth(t)
		began := time.Now()
		b.stop()
		if err := <-b.outcome; err != nil || time.Since(began) > time.Second {
			t.Errorf("ended with %v after %v", err, time.Since(began))
		}
		a.stop()
		<-a.outcome
	})
}

func TestWithoutElectionTheWorkRunsAtOnce(t *testing.T) {
	o := Defaults("test")
	o.Elect = false
	e, err := newElector(nil, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	failure := errors.New("broken")
	if err := e.Run(context.Background(), func(context.Context) error {
		if !e.Leading() {
			t.Error("does not lead")
		}
		return failure
	}); err != failure {
		t.Errorf("%v", err)
	}
}

func TestBadOptionsAreRefusedByFlag(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"--leader-elect-lease-duration 10s: must be greater than --leader-elect-renew-deadline 10s": func(o *Options) { o.LeaseDuration = 10 * time.Second },
		"--leader-elect-lease-duration 500ms: must be 1s or more":                                   func(o *Options) { o.LeaseDuration = 500 * time.Millisecond },
		"--leader-elect-retry-period 0s: must be greater than zero":                                 func(o *Options) { o.RetryPeriod = 0 },
		"--leader-elect-renew-deadline 10s: must be greater than 1.2 times":                         func(o *Options) { o.RetryPeriod = 9 * time.Second },
		"must not be empty": func(o *Options) { o.Name = "" },
	} {
		o := Defaults("test")
		change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		o.Elect = false
		if err := o.Validate(); err != nil {
			t.Errorf("refused without election: %v", err)
		}
	}
}

// TestTheHolderAnnotatesItsLease verifies that each renewal writes the current value of the
// annotation, that an empty value removes the annotation, and that only the holder writes it.
func TestTheHolderAnnotatesItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := replicas(t, 2)
		var value atomic.Value
		value.Store("one")
		for i, r := range all {
			r.Annotate("key", func() string { return map[int]string{0: value.Load().(string), 1: "another's"}[i] })
			r.start()
			time.Sleep(time.Minute)
		}
		annotated := func() map[string]string {
			lease, err := all[0].leases.Leases("kube-system").Get(context.Background(), "test", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return lease.Annotations
		}
		if got := annotated()["key"]; got != "one" {
			t.Errorf("annotated %q", got)
		}
		value.Store("two")
		time.Sleep(10 * time.Second)
		if got := annotated()["key"]; got != "two" {
			t.Errorf("annotated %q after a change", got)
		}
		value.Store("")
		time.Sleep(10 * time.Second)
		if got, there := annotated()["key"]; there {
			t.Errorf("annotated %q without a value", got)
		}
		for _, r := range all {
			r.stop()
			<-r.outcome
		}
		time.Sleep(2 * time.Hour)
	})
}
