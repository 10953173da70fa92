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

// UpgradeOptions of a campaign in which nothing fails and every part is replaced by another version
// of itself, one by one, while users and administrators work and pods come all the time: from the
// old version to the new one, and back.
type UpgradeOptions struct {
	Options
	// Old is the folder of the other version's programs. It is what the cluster begins and ends
	// with.
	Old string
	// Rate is how many pods a second come beside the workloads.
	Rate int
	// Between is how long each part is given to work before the next one is replaced.
	Between time.Duration
}

// UpgradeDefaults are those of `make upgrade`.
func UpgradeDefaults() UpgradeOptions {
	o := Defaults()
	o.Nodes, o.Rest, o.Disk = 18, 10*time.Minute, false
	return UpgradeOptions{Options: o, Rate: 30, Between: 15 * time.Second}
}

// Validate says what is wrong, by flag.
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

// upgrade is a campaign that runs.
type upgrade struct {
	*campaign
	o      UpgradeOptions
	flow   *flow
	leases *leases
	steps  []step
}

// step is a part that was replaced.
type step struct {
	part, to       string
	stopped, ready time.Duration // how long it took to end, and from then until it was ready
	leaderless     time.Duration // how long one of the Leases had no holder, at most
	unbound        time.Duration // how long no pod was bound, at most
}

// The versions, as the report names them.
const oldVersion, newVersion = "old", "new"

// RunUpgrade plays the campaign. The error says that it could not be played; what it found is in
// the report.
func RunUpgrade(ctx context.Context, o UpgradeOptions) (*UpgradeReport, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	began := o.Options
	began.Bin = o.Old
	c := &campaign{Options: began, began: time.Now(), phase: "start", rolling: true, election: usual,
		faults: newCounts(), requests: newCounts(), deeds: newCounts(), ends: newCounts(), sizes: newSizes()}
	c.witness = newWitness(c.Silence, c.addViolation)
	u := &upgrade{campaign: c, o: o}
	defer c.cleanUp()
	if err := c.startAll(ctx); err != nil {
		return nil, err
	}
	c.churn.mends = 3 // nobody mends everything between two steps
	u.flow, u.leases = newFlow(c.client), &leases{}
	watching, stop := context.WithCancel(ctx)
	var witnesses sync.WaitGroup
	for _, f := range newFollowers(c.client, c.witness) {
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

// playUpgrade goes from the old version to the new one and back, until the time is over.
func (u *upgrade) playUpgrade(ctx context.Context) error {
	u.setPhase("first rest")
	if !u.awaitRest(ctx) {
		return ctx.Err() // there is nothing to be replaced
	}
	if err := u.flow.createNamespace(ctx); err != nil {
		return err
	}
	// The API server is the first to be upgraded and the last to go back, as Kubernetes wants it.
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

// rollParts replaces all parts under load.
func (u *upgrade) rollParts(ctx context.Context, order []*part, to, folder string) error {
	busy, over := context.WithCancel(ctx)
	var load sync.WaitGroup
	defer load.Wait()
	defer over()
	load.Go(func() { u.churn.runDeeds(busy) })
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
	u.witness.checks.addOne(noneForgot)
	if left := u.flow.awaitPlaced(ctx, u.Rest); len(left) > 0 {
		u.addViolation(noneForgot, fmt.Sprintf("%d pods of the load have no node %s after the last was created: %s",
			len(left), u.Rest, strings.Join(left[:min(len(left), 5)], ", ")), left[0])
	}

	return ctx.Err()
}

// replacePart ends a part as a rolling update does, and waits until its successor is ready and
// leads or another does.
func (u *upgrade) replacePart(ctx context.Context, p *part, to, folder string) {
	began := time.Now()
	p.switchProgram(folder)
	u.witness.checks.addOne(cleanEnd)
	if code, ran := p.terminateProcess(30 * time.Second); ran && code != 0 {
		// What the machine did not let it do in time counts as in any campaign.
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
	sleepFor(ctx, 3*time.Second) // what comes late belongs to it, too
	s := step{part: p.name, to: to, stopped: ended.Sub(began), ready: ready.Sub(ended),
		leaderless: u.leases.longest(began), unbound: u.flow.longestGap(began)}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.steps = append(u.steps, s)
	fmt.Fprintln(u.Out, s)
}
