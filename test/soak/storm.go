package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// fault is a way in which things go wrong. do makes it, and returns when it is over; false: it
// could not be made.
type fault struct {
	often int
	do    func(ctx context.Context, p *part, rng *rand.Rand) (kind string, done bool)
}

// storm makes faults from one seed, several at once.
type storm struct {
	c      *campaign
	rng    *rand.Rand
	counts *counts
	// targets are the parts that are struck. In every second storm the control plane is not among
	// them: while it is away the witness sees nothing, and has to give some doubtful cases the
	// benefit of it.
	targets []*part
}

// background is how requests fare all the time in a storm.
var background = weather{refused: 0.04, lost: 0.03, unanswered: 0.03, slow: 0.04}

func (s *storm) faults() []fault {
	return []fault{
		{6, s.kill},
		{4, s.sleep},
		{3, s.part},
		{3, s.refuse},
		{8, s.squall},
		{4, s.cutWatches},
		{3, s.stallWatches},
		{1, s.fillDisk},
	}
}

// run makes faults until the context ends, and returns when all are over.
func (s *storm) run(ctx context.Context) {
	for _, p := range s.c.networked() {
		p.network.setWeather(background)
	}
	var under sync.WaitGroup
	faults, sum := s.faults(), 0
	for _, f := range faults {
		sum += f.often
	}
	for pause(ctx, between(s.rng, 300*time.Millisecond, 1800*time.Millisecond)) {
		dice := s.rng.IntN(sum)
		i := slices.IndexFunc(faults, func(f fault) bool { dice -= f.often; return dice < 0 })
		p := s.targets[s.rng.IntN(len(s.targets))]
		own := rand.New(rand.NewPCG(s.rng.Uint64(), 0)) // what becomes of one fault does not change the next
		under.Go(func() {
			if kind, done := faults[i].do(ctx, p, own); done {
				s.counts.add(kind)
			}
		})
	}
	under.Wait()
	for _, p := range s.c.networked() {
		p.network.setWeather(weather{})
	}
}

func between(rng *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(rng.Int64N(int64(most-least)))
}

func (s *storm) kill(_ context.Context, p *part, rng *rand.Rand) (string, bool) {
	return "kill -9 of " + p.name, p.kill(time.Duration(rng.IntN(5)) * time.Second)
}

func (s *storm) sleep(ctx context.Context, p *part, rng *rand.Rand) (string, bool) {
	most := longestTrouble
	if p == s.c.plane {
		most = longestOutage
	}
	if !p.sleep() {
		return "", false
	}
	pause(ctx, between(rng, time.Second, most))
	p.wake()
	return "SIGSTOP and SIGCONT of " + p.name, true
}

// part lets nothing through between a part and the API server.
func (s *storm) part(ctx context.Context, p *part, rng *rand.Rand) (string, bool) {
	if p.network == nil {
		return "", false
	}
	p.setCut(true)
	p.network.wire.part()
	pause(ctx, between(rng, time.Second, longestTrouble))
	p.network.wire.open()
	p.setCut(false)
	return "partition of " + p.name, true
}

func (s *storm) refuse(ctx context.Context, p *part, rng *rand.Rand) (string, bool) {
	if p.network == nil {
		return "", false
	}
	p.setCut(true)
	p.network.wire.refuse()
	pause(ctx, between(rng, time.Second, longestTrouble))
	p.network.wire.open()
	p.setCut(false)
	return "connections refused to " + p.name, true
}

// squall has the requests of a part fare very badly, in one way.
func (s *storm) squall(ctx context.Context, p *part, rng *rand.Rand) (string, bool) {
	if p.network == nil {
		return "", false
	}
	kinds := []struct {
		name string
		weather
	}{
		{"refused", weather{refused: 0.6}},
		{"lost", weather{lost: 0.6}},
		{"not answered", weather{unanswered: 0.6}},
		{"slow", weather{slow: 0.6}},
	}

	kind := kinds[rng.IntN(len(kinds))]
	what := "requests"
	if kind.work = rng.IntN(3) > 0; kind.work {
		what = "requests but for the Lease"
	}

	p.setCut(true)
	p.network.setWeather(kind.weather)
	pause(ctx, between(rng, 3*time.Second, longestTrouble))
	p.network.setWeather(background)
	p.setCut(false)
	return fmt.Sprintf("most %s %s of %s", what, kind.name, p.name), true
}

var someWatches = []string{"", "pods", "nodes", "leases"}

func (s *storm) cutWatches(_ context.Context, p *part, rng *rand.Rand) (string, bool) {
	if p.network == nil {
		return "", false
	}
	relist := rng.IntN(2) == 0
	p.network.cut(someWatches[rng.IntN(len(someWatches))], relist)
	return fmt.Sprintf("watches cut of %s", p.name), true
}

func (s *storm) stallWatches(ctx context.Context, p *part, rng *rand.Rand) (string, bool) {
	if p.network == nil {
		return "", false
	}
	p.setCut(true)
	p.network.stall(ctx, someWatches[rng.IntN(len(someWatches))], between(rng, time.Second, 8*time.Second))
	p.setCut(false)
	return "watches stalled of " + p.name, true
}

// fillDisk leaves etcd no room for a while.
func (s *storm) fillDisk(ctx context.Context, _ *part, rng *rand.Rand) (string, bool) {
	if s.c.disk == nil || !slices.Contains(s.targets, s.c.plane) || !s.c.disk.fill() {
		return "", false
	}
	s.c.plane.setCut(true)
	pause(ctx, between(rng, 3*time.Second, 8*time.Second))
	s.c.disk.free()
	s.c.plane.setCut(false)
	return "disk of etcd full", true
}
