// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/berth-k8s/berth/internal/pacing"
)

// Part is a process to keep running. Name must be a file name, since it also names the log.
type Part struct {
	Name string
	// Argv returns the command; it is called at every start.
	Argv func() []string
	// Prepare, if set, is called before Argv, at every start.
	Prepare func() error
	// Ready recognises the line on standard output that reports readiness. Nil: a line that starts
	// with "ready".
	Ready func(line string) bool
	// Await, if set, returns when the part is ready, for a part that does not report readiness. ctx
	// ends with the process.
	Await func(ctx context.Context) error
	// OwnLog is set if the part writes its own log; the supervisor then keeps only the last lines.
	// Otherwise standard error is written to <Dir>/<Name>.log.
	OwnLog bool
}

// Supervisor runs parts. The caller sets Dir, Trouble and, for messages while parts start,
// Progress; both functions must be safe for concurrent use.
type Supervisor struct {
	// Dir is the directory of logs.
	Dir string
	// Progress is called with a starting part's standard output.
	Progress func(part, line string)
	// Trouble is called when a ready part has died, when it has recovered, and when its log cannot
	// be written.
	Trouble func(part, what string)
	// StopWithin bounds a part's shutdown after SIGTERM; 0: 10 s.
	StopWithin time.Duration
	// looks is the interval at which a starting part is checked and its elapsed time is reported to
	// Progress; 0: lookEvery.
	looks time.Duration
}

const (
	defaultStopWithin = 10 * time.Second
	// A dead part is restarted after restartMin. The delay doubles with each restart up to
	// restartMax, and returns to restartMin after a run longer than steadyAfter.
	restartMin  = 500 * time.Millisecond
	restartMax  = 30 * time.Second
	steadyAfter = time.Minute
)

// Run starts the parts in order, calls up when all are ready, keeps them running until ctx ends,
// and stops them. A part that ends before it was ever ready is an error: a retry would not help.
// Run returns nil if ctx ends, even while parts are starting. All started parts have ended when Run
// returns.
func (s *Supervisor) Run(ctx context.Context, parts []Part, up func()) error {
	var keepers []*keeper
	defer func() {
		// Stop in reverse order: each part may use earlier ones until it has ended.
		for _, k := range slices.Backward(keepers) {
			k.stop()
		}
	}()

	for _, part := range parts {
		k, err := s.startPart(ctx, part)
		// Record the keeper before checking the error: a part that is not ready is still running.
		if k != nil {
			keepers = append(keepers, k)
		}
		if err != nil || ctx.Err() != nil {
			return err
		}
	}

	up()
	<-ctx.Done()
	return nil
}

// keeper keeps one part running. It has a goroutine for the part, and one for each restart that is
// not ready yet.
type keeper struct {
	part   Part
	s      *Supervisor
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// stop ends the part, and returns when its process has ended.
func (k *keeper) stop() {
	k.cancel()
	k.wg.Wait()
}

// startPart starts a part and waits until it is ready. The caller must stop the keeper, if any,
// even after an error.
func (s *Supervisor) startPart(ctx context.Context, part Part) (*keeper, error) {
	p, err := s.launchPart(part, s.Progress)
	if err != nil {
		return nil, err
	}
	// This context is not a child of ctx, because parts are stopped one by one, not all together.
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	k := &keeper{part: part, s: s, cancel: cancel}
	died := make(chan error, 1)
	k.wg.Go(func() { k.keepRunning(own, p, died) })
	look := time.NewTicker(cmp.Or(s.looks, lookEvery))
	defer look.Stop()
	for wait := newPatience(time.Now()); ; {
		select {
		case <-p.ready:
			return k, nil
		case err := <-died:
			return k, err
		case now := <-look.C:
			if why := wait.whyOver(now, s.signsOf(part, p)); why != "" {
				return k, fmt.Errorf("%s: %s: see %s, or start again: a second start finds its files in memory",
					part.Name, why, s.logPath(part))
			}
			if s.Progress != nil {
				s.Progress(part.Name, wait.describeProgress("still starting", now))
			}
		case <-ctx.Done():
			return k, nil
		}
	}
}

// signsOf reads the signs of progress of a starting part.
func (s *Supervisor) signsOf(part Part, p *process) signs {
	now := signs{lines: p.lines.Load()}
	if last := p.lastSaid.Load(); last != nil {
		now.last = *last
	}
	if info, err := os.Stat(s.logPath(part)); err == nil {
		now.log = info.Size()
	}
	return now
}

// keepRunning waits for the process to end and restarts it, until own ends. If the part ends before
// it was ever ready, died receives the error, and the part is not restarted.
func (k *keeper) keepRunning(own context.Context, p *process, died chan<- error) {
	delay := restartMin
	for {
		began := time.Now()
		select {
		case <-own.Done():
			p.stopProcess(cmp.Or(k.s.StopWithin, defaultStopWithin))
			return
		case <-p.ended:
		}

		if !p.wasReady() && died != nil {
			died <- k.startFailure(p)
			return
		}

		// The part was ready once, so it is restarted whenever it ends.
		died = nil
		if time.Since(began) > steadyAfter {
			delay = restartMin
		}

		k.s.Trouble(k.part.Name, fmt.Sprintf("%s; starting it again in %s", p.describeEnd(), delay))
		for p = nil; p == nil; delay = min(2*delay, restartMax) {
			if !pacing.Sleep(own, delay) {
				return
			}
			var err error
			if p, err = k.s.launchPart(k.part, nil); err != nil {
				k.s.Trouble(k.part.Name, fmt.Sprintf("%v; trying again in %s", err, min(2*delay, restartMax)))
			}
		}

		k.wg.Go(func() { k.announceRestart(own, p) })
	}
}

// announceRestart reports the readiness of a restarted part. It reports nothing if the part ends
// again first.
func (k *keeper) announceRestart(own context.Context, p *process) {
	select {
	case <-p.ready:
		k.s.Trouble(k.part.Name, "running again")
	case <-p.ended:
	case <-own.Done():
	}
}

// startFailure returns the reason that a part never became ready: its last line, if any, in which
// components report start failures.
func (k *keeper) startFailure(p *process) error {
	if own := p.tail.lastLine(); own != "" {
		return errors.New(strings.TrimPrefix(own, "Error: "))
	}
	return fmt.Errorf("%s %s; see %s", k.part.Name, p.describeEnd(), k.s.logPath(k.part))
}

// logPath returns the file of the part's standard error, or of its own log.
func (s *Supervisor) logPath(part Part) string { return filepath.Join(s.Dir, part.Name+".log") }

const (
	// lookEvery is the interval between checks of a starting part.
	lookEvery = 15 * time.Second
	// quietFor limits the time a starting part may show no progress: a slow machine with a cold
	// cache needs minutes for a step or two, and produces output meanwhile.
	quietFor = 2 * time.Minute
	// startWithin limits the time until a part is ready, regardless of progress, since endless
	// retries also write a log.
	startWithin = 15 * time.Minute
)

// signs holds a starting part's signs of progress. Any difference between two checks is progress,
// including a log shrunk by rotation.
type signs struct {
	lines int64  // number of lines on standard output
	last  string // last line
	log   int64  // size of its log
}

// patience decides when to give up on a starting part.
type patience struct {
	began, moved time.Time // moved is the time of the last progress
	seen         signs
}

// newPatience starts the clock together with the part.
func newPatience(now time.Time) *patience { return &patience{began: now, moved: now} }

// whyOver returns the reason to give up on the part, or "". It is called every lookEvery. It checks
// silence before the total time.
func (p *patience) whyOver(now time.Time, seen signs) string {
	if seen != p.seen {
		p.seen, p.moved = seen, now
	}
	switch {
	case now.Sub(p.moved) >= quietFor:
		return fmt.Sprintf("no progress in the last %s, %s", quietFor, p.describeProgress("not ready", now))
	case now.Sub(p.began) >= startWithin:
		return p.describeProgress("not ready", now)
	}
	return ""
}

// describeProgress describes the elapsed time and the progress of the part.
func (p *patience) describeProgress(what string, now time.Time) string {
	text := fmt.Sprintf("%s after %s", what, now.Sub(p.began).Round(time.Second))
	if p.seen.last != "" {
		text += "; its last message: " + p.seen.last
	}
	return text
}
