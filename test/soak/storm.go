// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/berth-k8s/berth/internal/world/virtual"
)

// fault is a kind of failure. The function do causes the failure and returns when the failure is
// over. It returns done=false if it could not cause the failure.
type fault struct {
	often int
	do    func(ctx context.Context, p *part, rng *rand.Rand) (kind string, done bool)
}

// storm causes concurrent faults from one seed.
type storm struct {
	c      *campaign
	rng    *rand.Rand
	counts *counts
	// targets are the affected components. Every second storm spares the control plane: during an
	// outage of the control plane the observer misses changes, and cannot judge doubtful cases.
	targets []*part
}

// background returns the faults of all requests throughout a storm.
func background() []virtual.Rule {
	return append(refused(0.04), virtual.Rule{Fault: virtual.Lost, Chance: 0.03}, virtual.Rule{Fault: virtual.Unanswered, Chance: 0.03},
		virtual.Rule{Fault: virtual.Slow, Chance: 0.02, Delay: longestDelay})
}

// refused returns rules that refuse about this share of all requests, in different ways.
func refused(share float64) []virtual.Rule {
	return []virtual.Rule{
		{Fault: virtual.Failing, Chance: share / 2}, {Fault: virtual.Conflicting, Chance: share / 4},
		{Fault: virtual.BusyFor, Chance: share / 4, Delay: time.Second},
	}
}

func (s *storm) listFaults() []fault {
	return []fault{
		{6, s.killPart},
		{4, s.sleepPart},
		{3, s.partitionPart},
		{3, s.refusePart},
		{8, s.squallPart},
		{4, s.cutWatches},
		{3, s.stallWatches},
		{1, s.fillDisk},
	}
}

// runFaults causes faults until the context ends, and returns when all are over.
func (s *storm) runFaults(ctx context.Context) {
	for _, p := range s.c.networkedParts() {
		p.network.setRules(false, background()...)
	}
	var under sync.WaitGroup
	faults, sum := s.listFaults(), 0
	for _, f := range faults {
		sum += f.often
	}
	for sleepFor(ctx, randomBetween(s.rng, 300*time.Millisecond, 1800*time.Millisecond)) {
		dice := s.rng.IntN(sum)
		i := slices.IndexFunc(faults, func(f fault) bool { dice -= f.often; return dice < 0 })
		p := s.targets[s.rng.IntN(len(s.targets))]
		own := rand.New(rand.NewPCG(s.rng.Uint64(), 0)) // a separate source, so that a fault does not affect the choice of the next faults
		under.Go(func() {
			if kind, done := faults[i].do(ctx, p, own); done {
				s.counts.addOne(kind)
			}
		})
	}
	under.Wait()
	for _, p := range s.c.networkedParts() {
		p.network.setRules(false)
	}
}

func randomBetween(rng *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rng.Int64N(int64(most-least)))
}

func (s *storm) killPart(_ context.Context, p *part, rng *rand.Rand) (string, bool) {
	return "kill -9 of " + p.name, p.killProcess(time.Duration(rng.IntN(5)) * time.Second)
}

func (s *storm) sleepPart(ctx context.Context, p *part, rng *rand.Rand) (string, bool) {
	most := longestTrouble
	if p == s.c.plane {
		most = longestOutage
	}
	if !p.stopProcess() {
		return "", false
	}
	sleepFor(ctx, randomBetween(rng, time.Second, most))
	p.wakeProcess()
	return "SIGSTOP and SIGCONT of " + p.name, true
}

// partitionPart blocks all traffic between a part and the API server.
func (s *storm) partitionPart(ctx context.Context, p *part, rng *rand.Rand) (string, bool) {
	if p.network == nil {
		return "", false
	}
	p.setCut(true)
	p.network.wire.blockAll()
	sleepFor(ctx, randomBetween(rng, time.Second, longestTrouble))
	p.network.wire.open()
	p.setCut(false)
	return "partition of " + p.name, true
}

func (s *storm) refusePart(ctx context.Context, p *part, rng *rand.Rand) (string, bool) {
	if p.network == nil {
		return "", false
	}
	p.setCut(true)
	p.network.wire.refuseAll()
	sleepFor(ctx, randomBetween(rng, time.Second, longestTrouble))
	p.network.wire.open()
	p.setCut(false)
	return "connections refused to " + p.name, true
}

// squallPart makes most requests of a part fail in one way.
func (s *storm) squallPart(ctx context.Context, p *part, rng *rand.Rand) (string, bool) {
	if p.network == nil {
		return "", false
	}
	kinds := []struct {
		name  string
		rules []virtual.Rule
	}{
		{"refused", refused(0.6)},
		{"lost", []virtual.Rule{{Fault: virtual.Lost, Chance: 0.6}}},
		{"not answered", []virtual.Rule{{Fault: virtual.Unanswered, Chance: 0.6}}},
		{"slow", []virtual.Rule{{Fault: virtual.Slow, Chance: 0.3, Delay: longestDelay}}},
	}

	kind := kinds[rng.IntN(len(kinds))]
	elects, what := rng.IntN(3) > 0, "requests"
	if elects {
		what = "requests but for the Lease"
	}

	p.setCut(true)
	p.network.setRules(elects, kind.rules...)
	sleepFor(ctx, randomBetween(rng, 3*time.Second, longestTrouble))
	p.network.setRules(false, background()...)
	p.setCut(false)
	return fmt.Sprintf("most %s %s of %s", what, kind.name, p.name), true
}

var someWatches = []string{"", "pods", "nodes", "leases"}

func (s *storm) cutWatches(_ context.Context, p *part, rng *rand.Rand) (string, bool) {
	if p.network == nil {
		return "", false
	}
	relist := rng.IntN(2) == 0
	p.network.cutWatches(someWatches[rng.IntN(len(someWatches))], relist)
	return fmt.Sprintf("watches cut of %s", p.name), true
}

func (s *storm) stallWatches(ctx context.Context, p *part, rng *rand.Rand) (string, bool) {
	if p.network == nil {
		return "", false
	}
	p.setCut(true)
	p.network.stallWatches(ctx, someWatches[rng.IntN(len(someWatches))], randomBetween(rng, time.Second, 8*time.Second))
	p.setCut(false)
	return "watches stalled of " + p.name, true
}

// fillDisk fills etcd's disk for a while.
func (s *storm) fillDisk(ctx context.Context, _ *part, rng *rand.Rand) (string, bool) {
	if s.c.disk == nil || !slices.Contains(s.targets, s.c.plane) || !s.c.disk.fillDisk() {
		return "", false
	}
	s.c.plane.setCut(true)
	sleepFor(ctx, randomBetween(rng, 3*time.Second, 8*time.Second))
	s.c.disk.freeDisk()
	s.c.plane.setCut(false)
	return "disk of etcd full", true
}
