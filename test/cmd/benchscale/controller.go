// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/berth-k8s/berth/test/bench/driver"
)

const (
	// leaseInterval is the interval between two renewals of a node's Lease, in seconds.
	leaseInterval = 10
	// silentShare is the reciprocal of the share of nodes that fall silent. It has no common
	// divisor with the number of zones, so these nodes are in all zones.
	silentShare = 101
	// foundWithin bounds the time from the last sign of life of a silent node to its condition: the
	// grace period of 50 s, and the period of 5 s. Requests take another 5 s, and 1 ms per silent
	// node if this is more.
	foundWithin = 55 * time.Second
)

// measureController starts `berth controller`, lets all nodes renew their Leases for a minute, and
// then makes 1 % of the nodes silent. It fails if one of these is not found in time, or if another
// node is marked.
func (b *bench) measureController(ctx context.Context) error {
	renewals := float64(b.nodes) / leaseInterval
	if err := b.stub.load("heartbeats=%f&renewals=%f", float64(b.nodes)/statusInterval, renewals); err != nil {
		return err
	}
	began, before := time.Now(), b.stub.cpu()
	p, err := b.Launch(driver.Berth, "controller", "controller", "--kubeconfig", b.stub.kubeconfig, "--health-bind-address", "127.0.0.1:0", "--profiling")
	if err != nil {
		return err
	}
	b.scheduler = &scheduler{Process: p}
	if err := b.until(ctx, 10*time.Minute, func() (bool, error) {
		r, err := b.stub.report("")
		return r.Requests["WATCH leases"] > 0 && r.Requests["WATCH nodes"] > 1, err // the lists are complete
	}); err != nil {
		return err
	}
	b.add("read the cluster", time.Since(began), "", "", "", p.CPU(), b.stub.cpu()-before)

	const minute = time.Minute
	if err := b.renewed(ctx, fmt.Sprintf("%.0f renewals/s", renewals), minute); err != nil {
		return err
	}
	began = time.Now()
	own, stub := p.CPU(), b.stub.cpu()
	if err := b.stub.load("silent=%d", silentShare); err != nil {
		return err
	}
	var r report
	err = b.until(ctx, 5*time.Minute, func() (bool, error) {
		r, err = b.stub.report("")
		return r.Counts.Found == r.Counts.Silent, err
	})
	b.add(fmt.Sprintf("%d of %d silent nodes found", r.Counts.Found, r.Counts.Silent), time.Since(began), "", "", "", p.CPU()-own, b.stub.cpu()-stub)
	if err != nil {
		return err
	}
	if err := b.renewed(ctx, "afterwards", minute); err != nil {
		return err
	}
	if r, err = b.stub.report(""); err != nil {
		return err
	}
	b.Printf("silent nodes were found %.1f to %.1f s after their last sign of life; %d other nodes were marked; %d conflicts",
		float64(r.Counts.First)/1000, float64(r.Counts.Last)/1000, r.Counts.Wrong, r.Counts.Conflicts)
	if r.Counts.Wrong > 0 || r.Counts.Last > int(foundWithin.Milliseconds())+max(5000, r.Counts.Silent) {
		return errors.New("nodes were found late, or marked although they were not silent")
	}
	return nil
}

// renewed waits while nodes renew their Leases, and reports how many renewals were sent.
func (b *bench) renewed(ctx context.Context, name string, d time.Duration) error {
	own, stub, sent := b.scheduler.CPU(), b.stub.cpu(), b.stub.sent("leases")
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
	}
	name += fmt.Sprintf(" (%.0f/s sent)", float64(b.stub.sent("leases")-sent)/d.Seconds())
	b.add(name, d, "", "", "", b.scheduler.CPU()-own, b.stub.cpu()-stub)
	return nil
}

// until polls until done returns true, for at most the given time.
func (b *bench) until(ctx context.Context, limit time.Duration, done func() (bool, error)) error {
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if is, err := done(); is || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.scheduler.Ended:
			return b.scheduler.Gone()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return fmt.Errorf("not done within %v", limit)
}
