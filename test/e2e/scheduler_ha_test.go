// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

var (
	haKills = flag.Int("ha-kills", 2, "how often TestLeaderKilledUnderLoad kills the leader (and a third as often puts it to sleep); the long form is -ha-kills 10 -ha-lease 15s")
	haLease = flag.Duration("ha-lease", 3*time.Second, "its lease duration; renew deadline and retry period are upstream's fractions of it")
)

const saysLost = "berth: leadership lost"

// pair runs two schedulers that share a Lease. Like a kubelet, it restarts schedulers that end: on
// a very busy machine a leader may fail to renew its Lease.
type pair struct {
	c        *cluster
	config   string
	flags    []string // additional flags
	replicas []*replica
	lost     int
	refused  float64 // refused bindings of processes that have ended
}

func (p *pair) keep(t *testing.T) {
	t.Helper()
	p.replicas = slices.DeleteFunc(p.replicas, func(r *replica) bool {
		if len(r.ended) == 0 {
			return false
		}
		if err := r.says(saysLost); err != nil {
			t.Errorf("a scheduler ended, and not for want of leadership: %v", err)
		}
		p.lost++
		return true
	})
	for len(p.replicas) < 2 {
		p.replicas = append(p.replicas, p.c.schedule(t, append([]string{"--config", p.config}, p.flags...)...))
	}
}

// leader waits until exactly one replica leads, according to its metrics, and returns that replica.
func (p *pair) leader(t *testing.T) (leads *replica) {
	t.Helper()
	eventually(t, *haLease+startWithin, func() error {
		p.keep(t)
		leads = nil
		for _, r := range p.replicas {
			if r.metric("leader_election_master_status") == 1 {
				if leads != nil {
					return fatal{fmt.Errorf("two replicas say that they lead")}
				}
				leads = r
			}
		}
		if leads == nil {
			return fmt.Errorf("none leads")
		}
		return nil
	})
	return leads
}

// busyLeader waits until a leader has decided some pods, removes the leader from the pair, and
// returns it.
func (p *pair) busyLeader(t *testing.T) (leads *replica) {
	t.Helper()
	eventually(t, patience, func() error {
		leads = p.leader(t)
		if leads.metric("scheduler_schedule_attempts_total") < 20 {
			return fmt.Errorf("the leader has decided few pods")
		}
		return nil
	})
	p.refused += leads.metric("berth_scheduler_bindings_refused_total")
	p.replicas = slices.DeleteFunc(p.replicas, func(r *replica) bool { return r == leads })
	return leads
}

// TestLeaderKilledUnderLoad verifies that no pod is bound twice or forgotten when the leader of two
// schedulers is killed repeatedly while pods are created. With long test runs, some leaders are
// suspended instead, and resumed when the other replica leads. At the end, one leader is terminated
// and must release the Lease, and another leader's Lease is overwritten.
func TestLeaderKilledUnderLoad(t *testing.T) {
	t.Parallel()
	nodes := 30 + *haKills*int(haLease.Seconds()) // enough for the pods created until the next leader
	p := &pair{c: start(t, filepath.Join(t.TempDir(), "ha"), "--nodes", strconv.Itoa(nodes)), config: filepath.Join(t.TempDir(), "ha.yaml")}
	if err := os.WriteFile(p.config, fmt.Appendf(nil, `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {resourceName: ha, leaseDuration: %s, renewDeadline: %s, retryPeriod: %s}
profiles: [{schedulerName: ha}]
`, *haLease, *haLease*2/3, *haLease*2/15), 0o600); err != nil {
		t.Fatal(err)
	}
	seen := &witness{nodes: map[types.UID]string{}}
	seen.watch(t, p.c.client, "ha")
	p.leader(t)
	// The standby replica is ready as well, because its caches are synced.
	eventually(t, startWithin, func() error {
		for _, r := range p.replicas {
			if page := r.page("/readyz"); page != "ok" {
				return fmt.Errorf("/readyz: %s", page)
			}
		}
		return nil
	})

	stop := load(t, p.c.client, "ha", 40)
	var takeovers []time.Duration
	for round := range *haKills + *haKills/3 {
		leads := p.busyLeader(t)
		gone := time.Now()
		awake := leads.strike(t, round >= *haKills)
		eventually(t, *haLease*3+startWithin, func() error {
			p.keep(t)
			at, ok := seen.firstBoundAfter(gone.Add(*haLease / 2)) // requests of the killed leader may still arrive
			if ok {
				takeovers = append(takeovers, at.Sub(gone).Round(100*time.Millisecond))
				return nil
			}
			return fmt.Errorf("no pod was bound after the leader was gone")
		})
		awake()
	}
	handover := p.askedToGo(t, seen)

	made := stop()
	allPlaced(t, p.c.client, "ha", made, func() { p.keep(t) })
	p.robbed(t)
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for _, broken := range seen.broken {
		t.Error(broken)
	}
	t.Logf("%d pods, %d kills with a lease of %s: next pod bound after %v, after SIGTERM %s; %v bindings refused; leadership lost for want of CPU %d times",
		made, *haKills, *haLease, takeovers, handover.Round(time.Millisecond), p.refused, p.lost)
}

// askedToGo sends SIGTERM to the leader, which must exit with code 0 and release the Lease. It
// returns the time from the end of the leader until the next binding.
func (p *pair) askedToGo(t *testing.T, seen *witness) time.Duration {
	t.Helper()
	leads := p.busyLeader(t)
	before := p.holder(t)
	asked := time.Now()
	if err := leads.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	switch err := <-leads.ended; {
	case err == nil:
		if p.holder(t) == before {
			t.Error("the Lease was not given away")
		}
	case leads.says(saysLost) == nil:
		p.lost++
	default:
		t.Errorf("SIGTERM: %v, want exit code 0:\n%s", err, leads.out)
	}
	ended := time.Now()
	var next time.Time
	eventually(t, *haLease*3+startWithin, func() error {
		p.keep(t)
		var ok bool
		if next, ok = seen.firstBoundAfter(ended); !ok {
			return fmt.Errorf("no pod was bound after the leader went")
		}
		return nil
	})
	return next.Sub(asked)
}

func (p *pair) holder(t *testing.T) string {
	t.Helper()
	lease, err := p.c.client.CoordinationV1().Leases("kube-system").Get(background(), "ha", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// strike kills a leader, or suspends it like a paused machine. The returned function resumes a
// suspended leader, which must end because another replica leads. On a busy machine, a leader may
// have ended before, because it could not renew the Lease in time.
func (r *replica) strike(t *testing.T, asleep bool) (awake func()) {
	t.Helper()
	sent := syscall.SIGKILL
	if asleep {
		sent = syscall.SIGSTOP
	}
	err := r.cmd.Process.Signal(sent)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatal(err)
	}
	if !asleep || err != nil {
		<-r.ended
		return func() {}
	}
	return func() {
		t.Helper()
		if err := r.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		select {
		case <-r.ended:
			if code := r.cmd.ProcessState.ExitCode(); code != 1 {
				t.Errorf("asleep while another took over: exit code %d, want 1", code)
			}
		case <-time.After(startWithin):
			t.Errorf("asleep while another took over, and goes on")
		}
	}
}

// robbed gives the leader's Lease to another holder. The leader must exit with code 1 and log the
// reason.
func (p *pair) robbed(t *testing.T) {
	t.Helper()
	leads := p.leader(t)
	p.refused += leads.metric("berth_scheduler_bindings_refused_total")
	give(t, p.c.client)
	select {
	case <-leads.ended:
	case <-time.After(startWithin):
		t.Errorf("the leader goes on without its Lease")
		return
	}
	if code := leads.cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if err := leads.says(saysLost); err != nil {
		t.Error(err)
	}
}

// give writes another holder into the Lease.
func give(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	leases := client.CoordinationV1().Leases("kube-system")
	eventually(t, patience, func() error {
		lease, err := leases.Get(background(), "ha", metav1.GetOptions{})
		if err != nil {
			return err
		}
		other, now := "other", metav1.NowMicro()
		lease.Spec.HolderIdentity, lease.Spec.RenewTime = &other, &now
		_, err = leases.Update(background(), lease, metav1.UpdateOptions{})
		return err
	})
}
