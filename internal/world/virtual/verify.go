// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package virtual

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// Subject is a world whose core has a task, for Verify.
type Subject struct {
	*Time
	Process  interface{ Start() }
	Faults   *Faults
	Requests *Requests
	Watches  []*Watch
	Kinds    []string // kinds of requests that the task needs
	// SetClock sets the time by which the process's wall clock is ahead.
	SetClock func(ahead time.Duration)
	// Policies turn faults of this world on and off, by name, such as a policy that drops fields.
	Policies map[string]func(on bool)
	Begin    func() // begins the task; nil if the process begins it when it starts
	Stop     func() // ends the task at the end of the fault; nil if it ends by itself

	// Wrong returns the errors of the current state. There must be none Recovers after the end of
	// all faults.
	Wrong    func() []string
	Recovers time.Duration
	// Clear, if set, deletes all objects. The core must then forget them: Entries returns the size
	// of its tables.
	Clear   func()
	Entries func() int
}

// Limits of Verify.
const (
	mostRequests = 20               // requests of a kind for an object per minute
	lasts        = 10 * time.Minute // duration of a fault
	forgets      = 15 * time.Minute // time until a core has forgotten deleted objects
)

// episode is a fault of Verify.
type episode struct {
	name string
	set  func(s *Subject, on bool)
}

// Verify checks a core under every fault of requests, of all kinds and of each kind, combined with
// every fault of watches, and under clock steps, policies, and the end of the process at any
// request. While a fault lasts, the core sends at most 20 requests of a kind for an object per
// minute. After it, the state becomes correct in time, which includes the end of every wait, and
// the core keeps nothing about deleted objects.
//
// create returns a world whose process is not running yet. Verify returns the number of injections.
func Verify(create func() *Subject, report func(format string, args ...any)) map[Injection]int {
	injected := map[Injection]int{}
	for _, e := range episodes(create()) {
		for _, watch := range watchEpisodes {
			s := create()
			name := e.name + ", " + watch.name
			s.Requests.Limit = mostRequests
			s.start(func() { e.set(s, true) }, func() { watch.set(s, true) })
			s.Run(lasts)
			if s.Stop != nil {
				s.Stop()
			}
			e.set(s, false)
			watch.set(s, false)
			s.Run(s.Recovers)
			for _, wrong := range append(s.Requests.Excess[:min(1, len(s.Requests.Excess))], s.Wrong()...) {
				report("%s: %s", name, wrong)
			}
			Add(injected, s.Faults.Injected)
			if s.Clear == nil {
				continue
			}
			for _, w := range s.Watches { // the lists that follow do not contain the deleted objects
				w.Cut(time.Minute, true)
			}
			s.Clear()
			s.Run(forgets)
			if n := s.Entries(); n > 0 {
				report("%s: %d entries are left without any object", name, n)
			}
		}
	}

	for _, kind := range create().Kinds {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(injected)), func(i Injection) bool { return i.Kind == kind }) {
			report("no fault was injected into %s", kind)
		}
	}
	for _, after := range []bool{false, true} {
		verifyKills(create, after, injected, report)
	}
	return injected
}

// start starts the process and its task, with faults from the beginning of the task.
func (s *Subject) start(inject, breakWatches func()) {
	if s.Begin == nil {
		inject()
		s.Process.Start()
		breakWatches()
		return
	}
	s.Process.Start()
	s.Run(time.Minute)
	inject()
	breakWatches()
	s.Begin()
}

// episodes returns the faults of requests, the policies and the clock steps.
func episodes(s *Subject) []episode {
	list := []episode{{"no fault", func(*Subject, bool) {}}}
	for f := Lost; f < faults; f++ {
		for _, kind := range append([]string{""}, s.Kinds...) {
			delay := longestRetryAfter
			if f == BusyFor && kind != "" {
				delay = time.Hour // which a core must not wait for
			}
			list = append(list, episode{fmt.Sprintf("%s to %q", f, kind), func(s *Subject, on bool) {
				s.Faults.Rules = nil
				if on {
					s.Faults.Rules = []Rule{{Fault: f, Chance: 1, Kind: kind, Delay: delay}}
				}
			}})
		}
	}

	for _, name := range slices.Sorted(maps.Keys(s.Policies)) {
		list = append(list, episode{name, func(s *Subject, on bool) { s.Policies[name](on) }})
	}
	for _, step := range []time.Duration{-lasts, lasts} {
		list = append(list, episode{fmt.Sprintf("clock %v ahead", step), func(s *Subject, on bool) {
			s.SetClock(0)
			if on {
				s.SetClock(step)
			}
		}})
	}
	if _, ok := s.Process.(interface{ SetTwin(on bool) }); ok {
		list = append(list, episode{"two processes", func(s *Subject, on bool) {
			s.Process.(interface{ SetTwin(on bool) }).SetTwin(on)
			s.Requests.Limit *= 2
		}})
	}
	return list
}

// watchEpisodes are the faults of watches.
var watchEpisodes = []episode{
	{"watches work", func(*Subject, bool) {}},
	{"watches lag", func(s *Subject, on bool) {
		for _, w := range s.Watches {
			w.Jitter = 0
			if on {
				w.Jitter = 5 * time.Second
			}
		}
	}},
	{"watches stall", func(s *Subject, on bool) {
		for _, w := range s.Watches {
			if w.Restore(true); on {
				w.Break()
			}
		}
	}},
	{"watches refused", func(s *Subject, on bool) {
		for _, w := range s.Watches {
			if w.Restore(true); on {
				w.Refuse(30 * time.Second)
			}
		}
	}},
}

// verifyKills ends the process at each of its requests, and starts it again.
func verifyKills(create func() *Subject, after bool, injected map[Injection]int, report func(format string, args ...any)) {
	for at := 1; ; at++ {
		s := create()
		s.start(func() { s.Faults.KillAt, s.Faults.KillAfter = at, after }, func() {})
		s.Run(lasts)
		if s.Faults.KillAt > 0 {
			return
		}
		Add(injected, s.Faults.Injected)
		s.Process.Start()
		if s.Stop != nil {
			s.Run(lasts)
			s.Stop()
		}
		s.Run(s.Recovers)
		for _, wrong := range s.Wrong() {
			report("killed at request %d (after it: %t): %s", at, after, wrong)
		}
	}
}

// Add adds numbers of injections to a sum.
func Add(sum, injected map[Injection]int) {
	for injection, n := range injected {
		sum[injection] += n
	}
}
