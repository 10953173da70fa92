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
)

// Part is one process to keep running. Name must be a file name, since it names the log, too.
type Part struct {
	Name string
	// Argv returns the command; it is called at every start.
	Argv func() []string
	// Prepare, if set, is called before Argv, at every start.
	Prepare func() error
	// Ready recognises the line on standard output that says that the part can be used. Nil: a line
	// that starts with "ready".
	Ready func(line string) bool
	// Await, if set, returns when the part can be used, for one that does not say so itself. ctx
	// ends with the process.
	Await func(ctx context.Context) error
	// OwnLog: the part keeps its own log; only its last lines are remembered here. Otherwise
	// standard error goes to <Dir>/<Name>.log.
	OwnLog bool
}

// Supervisor runs parts. Dir, Trouble and, for messages while parts start, Progress are set by the
// caller; both functions are called from several goroutines.
type Supervisor struct {
	// Dir is where logs are written.
	Dir string
	// Progress is called with what a part prints on standard output while it starts.
	Progress func(part, line string)
	// Trouble is called when a part that was ready has died, when it is back, and when its log
	// cannot be written.
	Trouble func(part, what string)
	// StopWithin is how long a part may take to end after SIGTERM; 0: 10 s.
	StopWithin time.Duration
	// looks is how often a part that starts is looked at, and Progress told how long it has taken;
	// 0: lookEvery.
	looks time.Duration
}

const (
	defaultStopWithin = 10 * time.Second
	// A part that died is started again after restartMin, doubled each time up to restartMax, and
	// restartMin again once it ran for steadyAfter.
	restartMin  = 500 * time.Millisecond
	restartMax  = 30 * time.Second
	steadyAfter = time.Minute
)

// Run starts the parts in order, calls up when all are ready, keeps them running until ctx ends,
// and stops them. A part that ends before it was ever ready is an error: a retry would not help. It
// returns nil if ctx ends, also while parts still start. Every part that was started has ended when
// it returns.
func (s *Supervisor) Run(ctx context.Context, parts []Part, up func()) error {
	var keepers []*keeper
	defer func() {
		// In reverse order: each part may use those before it until it has ended.
		for _, k := range slices.Backward(keepers) {
			k.stop()
		}
	}()

	for _, part := range parts {
		k, err := s.startPart(ctx, part)
		// Noted before the error is looked at: a part that did not become ready runs all the same.
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

// startPart starts a part and waits until it is ready. The keeper, if any, has to be stopped also
// after an error.
func (s *Supervisor) startPart(ctx context.Context, part Part) (*keeper, error) {
	p, err := s.launchPart(part, s.Progress)
	if err != nil {
		return nil, err
	}
	// Not a child of ctx: parts are stopped one by one, not all at once.
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

// signsOf reads the signs of progress of a part that starts.
func (s *Supervisor) signsOf(part Part, p *process) signs {
	now := signs{lines: p.said.Load()}
	if last := p.lastSaid.Load(); last != nil {
		now.last = *last
	}
	if info, err := os.Stat(s.logPath(part)); err == nil {
		now.log = info.Size()
	}
	return now
}

// keepRunning waits for the process to end and starts it again, until own ends. died gets the error
// of a part that ended before it was ever ready; after that, or once it was ready, the part is
// restarted for as long as the keeper lives.
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

		// It was ready once: from now on an end is followed by a restart.
		died = nil
		if time.Since(began) > steadyAfter {
			delay = restartMin
		}

		k.s.Trouble(k.part.Name, fmt.Sprintf("%s; starting it again in %s", p.describeEnd(), delay))
		for p = nil; p == nil; delay = min(2*delay, restartMax) {
			select {
			case <-own.Done():
				return
			case <-time.After(delay):
			}
			var err error
			if p, err = k.s.launchPart(k.part, nil); err != nil {
				k.s.Trouble(k.part.Name, fmt.Sprintf("%v; trying again in %s", err, min(2*delay, restartMax)))
			}
		}

		k.wg.Go(func() { k.announceRestart(own, p) })
	}
}

// announceRestart reports that a part that was started again is ready. It says nothing if the part
// ends again first.
func (k *keeper) announceRestart(own context.Context, p *process) {
	select {
	case <-p.ready:
		k.s.Trouble(k.part.Name, "running again")
	case <-p.ended:
	case <-own.Done():
	}
}

// startFailure is why a part never became ready: in its own words, if it has any. A component says
// in its last line why it cannot start.
func (k *keeper) startFailure(p *process) error {
	if own := p.tail.lastLine(); own != "" {
		return errors.New(strings.TrimPrefix(own, "Error: "))
	}
	return fmt.Errorf("%s %s; see %s", k.part.Name, p.describeEnd(), k.s.logPath(k.part))
}

// logPath is where the part's standard error goes, or its own log is.
func (s *Supervisor) logPath(part Part) string { return filepath.Join(s.Dir, part.Name+".log") }
