// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// UpgradeOptions configures a campaign without failures that replaces every component, one by one,
// from the old version to the new one and back. Meanwhile users and administrators change workloads
// and nodes, and pods are created.
type UpgradeOptions struct {
	Options
	// Old is the folder of the old version's programs, which the cluster runs at the beginning and
	// the end.
	Old string
	// Rate is the number of pods created per second in addition to the workloads.
	Rate int
	// Between is the pause between two replacements.
	Between time.Duration
}

// UpgradeDefaults returns the defaults of `make upgrade`.
func UpgradeDefaults() UpgradeOptions {
	o := Defaults()
	o.Nodes, o.Rest, o.Disk = 18, 10*time.Minute, false
	return UpgradeOptions{Options: o, Rate: 30, Between: 15 * time.Second}
}

// Validate returns an error for invalid options or missing programs.
func (o *UpgradeOptions) Validate() error {
	if err := o.Options.Validate(); err != nil {
		return err
	}
	for _, name := range []string{"berth", "berth-controlplane", "berth-scheduler"} {
		for _, folder := range []string{o.Old, o.Bin} {
			if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
				return fmt.Errorf("both versions need a program of that name: %w", err)
			}
		}
	}
	return nil
}

// upgrade is a running campaign.
type upgrade struct {
	*campaign
	o      UpgradeOptions
	flow   *flow
	leases *leases
	steps  []step
}

// step is the replacement of a part.
type step struct {
	part, to       string
	stopped, ready time.Duration // time from the request to the end, and from the end until all is ready
	leaderless     time.Duration // longest time without a holder of a Lease
	unbound        time.Duration // longest time without a binding
}

// The versions, as named in the report.
const oldVersion, newVersion = "old", "new"

// RunUpgrade plays the campaign. It returns an error only if the campaign could not be played to
// its end; broken promises are in the report.
func RunUpgrade(ctx context.Context, o UpgradeOptions) (*UpgradeReport, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	began := o.Options
	began.Bin = o.Old
	c := &campaign{Options: began, began: time.Now(), phase: "start", rolling: true, election: usual,
		faults: newCounts(), requests: newCounts(), actions: newCounts(), ends: newCounts(), sizes: newSizes()}
	c.observer = newObserver(c.Silence, c.addViolation)
	u := &upgrade{campaign: c, o: o}
	defer c.cleanUp()
	if err := c.startAll(ctx); err != nil {
		return nil, err
	}
	c.churn.mends = 3 // changes to nodes are not repaired between steps, so revert them more often
	u.flow, u.leases = newFlow(c.client), &leases{}
	watching, stop := context.WithCancel(ctx)
	var witnesses sync.WaitGroup
	for _, f := range newFollowers(c.client, c.observer) {
		witnesses.Go(func() { f.runFollower(watching) })
	}
	for _, watch := range []func(context.Context){c.watchClock, c.pollReady, c.printProgress, u.flow.watchPods, u.flow.deleteOld} {
		witnesses.Go(func() { watch(watching) })
	}
	witnesses.Go(func() { u.leases.watchLeases(watching, c.client) })
	err := u.playUpgrade(ctx)
	stop()
	witnesses.Wait()
	if err == nil {
		c.endParts()
	}
	return u.makeUpgradeReport(), err
}

// playUpgrade alternates between the old version and the new one until the time is over.
func (u *upgrade) playUpgrade(ctx context.Context) error {
	u.setPhase("first rest")
	if !u.awaitRest(ctx) {
		return ctx.Err() // a cluster that is not at rest is not upgraded
	}
	if err := u.flow.createNamespace(ctx); err != nil {
		return err
	}
	// As required by Kubernetes, the API server is upgraded first and downgraded last.
	order := slices.Clone(u.parts)
	for u.rounds == 0 || time.Since(u.began) < u.For {
		for _, way := range []struct{ to, folder string }{{newVersion, u.o.Bin}, {oldVersion, u.o.Old}} {
			u.setPhase("to the " + way.to)
			if err := u.rollParts(ctx, order, way.to, way.folder); err != nil {
				return err
			}
			u.setPhase("all replaced")
			u.awaitSettled(ctx)
			u.setPhase("rest")
			u.awaitRest(ctx)
			slices.Reverse(order)
		}
		u.mu.Lock()
		u.rounds++
		u.mu.Unlock()
	}
	return ctx.Err()
}

// rollParts replaces all components under load.
func (u *upgrade) rollParts(ctx context.Context, order []*part, to, folder string) error {
	busy, over := context.WithCancel(ctx)
	var load sync.WaitGroup
	defer load.Wait()
	defer over()
	load.Go(func() { u.churn.runActions(busy) })
	load.Go(func() { u.flow.createPods(busy, u.o.Rate) })

	for _, p := range order {
		if !sleepFor(ctx, u.o.Between) {
			return ctx.Err()
		}
		u.replacePart(ctx, p, to, folder)
	}

	if !sleepFor(ctx, u.o.Between) {
		return ctx.Err()
	}
	over()
	load.Wait()
	u.observer.checks.addOne(noneForgot)
	if left := u.flow.awaitPlaced(ctx, u.Rest); len(left) > 0 {
		u.addViolation(noneForgot, fmt.Sprintf("%d pods of the load have no node %s after the last was created: %s",
			len(left), u.Rest, strings.Join(left[:min(len(left), 5)], ", ")), left[0])
	}

	return ctx.Err()
}

// replacePart terminates a process, as a rolling update does, and waits until all processes are
// ready and each Lease has a holder.
func (u *upgrade) replacePart(ctx context.Context, p *part, to, folder string) {
	began := time.Now()
	p.switchProgram(folder)
	u.observer.checks.addOne(cleanEnd)
	if code, ran := p.terminateProcess(30 * time.Second); ran && code != 0 {
		// Delays caused by the machine are excused as in any campaign.
		why, excused := u.excuseOf(p, p.lastWords())
		if p == u.plane && strings.Contains(p.lastWords(), "did not stop within") {
			why, excused = "it had no time to end as it should", true
		}
		if excused {
			u.ends.addOne(p.kindName() + ": " + why)
		} else {
			u.addViolation(cleanEnd, fmt.Sprintf("%s was asked to end and did so with exit code %d", p.name, code), p.name)
		}
	}
	ended := time.Now()
	for sleepFor(ctx, 50*time.Millisecond) {
		left := append(u.notUp(ctx), u.leases.freeLeases()...)
		if len(left) == 0 {
			break
		}
		if time.Since(ended) > u.Rest {
			u.addViolation(comesToRest, fmt.Sprintf("%s after %s was replaced by the %s version: %s", u.Rest, p.name, to,
				strings.Join(left, "; ")), p.name)
			break
		}
	}
	if runs, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.pid())); filepath.Dir(runs) != folder {
		u.addViolation(comesToRest, fmt.Sprintf("%s was replaced by that of %s, and runs %q", p.name, folder, runs), p.name)
	}
	ready := time.Now()
	sleepFor(ctx, 3*time.Second) // include late effects in this step
	s := step{part: p.name, to: to, stopped: ended.Sub(began), ready: ready.Sub(ended),
		leaderless: u.leases.longest(began), unbound: u.flow.longestGap(began)}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.steps = append(u.steps, s)
	fmt.Fprintln(u.Out, s)
}
