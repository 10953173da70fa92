// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package changefeed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/inspect/record"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/ui/model"
)

// Recording shows a recorded cluster as of any time in it. It is safe for concurrent use;
// goroutines take turns with the single player.
type Recording struct {
	Dir         string
	From, Until time.Time
	sessions    []record.Session
	history     []model.Moment // history of the whole recording

	mu     sync.Mutex
	player *player // player at the time shown last
}

// Open reads the whole recording once, so that its history is known and errors are reported at the
// start. It then drops the player, because a time is shown only on request.
func Open(dir string) (*Recording, error) {
	index, err := record.ReadIndex(dir)
	if err != nil {
		return nil, err
	}
	if len(index.Sessions) == 0 {
		return nil, fmt.Errorf("%s: nothing was recorded", dir)
	}

	r := &Recording{Dir: dir, sessions: index.Sessions, From: index.Sessions[0].Began.Time,
		Until: index.Sessions[len(index.Sessions)-1].Until.Time}
	all := r.playSession(0)
	defer all.stop()
	all.cluster.Lasting(r.Until.Sub(r.From))
	if err := all.playUntil(r.Until); err != nil {
		return nil, err
	}

	r.history = all.cluster.State(r.Until).History
	return r, nil
}

// Look calls look with the cluster at a time. A time outside the recording is replaced by the
// beginning or the end. Moving forward costs the steps in between; moving back costs up to a whole
// session.
func (r *Recording) Look(at time.Time, look func(c *model.Cluster)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	at = pacing.Earlier(pacing.Later(at, r.From), r.Until)
	// Find the last session that began before this time. A time between two sessions shows the end
	// of the earlier session.
	session := 0
	for i := range r.sessions {
		if !r.sessions[i].Began.After(at) {
			session = i
		}
	}
	// A player only moves forward. For an earlier time, the session is replayed from its beginning;
	// for a later session, the player starts with that session.
	if p := r.player; p == nil || at.Before(p.at) || p.session < session {
		if p != nil {
			p.stop()
		}
		r.player = r.playSession(session)
	}
	if err := r.player.playUntil(at); err != nil {
		r.player.stop()
		r.player = nil
		return err
	}
	look(r.player.cluster)
	return nil
}

// State returns the whole shown state at a time. The history covers the whole recording, including
// the part after that time.
func (r *Recording) State(at time.Time) (state *model.Delta, err error) {
	err = r.Look(at, func(c *model.Cluster) {
		state = c.State(r.player.at)
		state.History, state.Since = r.history, r.From.UnixMilli()
	})
	return state, err
}

// playSession returns a player of the recording from a session on, before its first step.
func (r *Recording) playSession(session int) *player {
	p := &player{cluster: model.New(), session: session}
	p.next, p.stop = iter.Pull2(record.Play(r.Dir, slices.Clone(r.sessions[session:])))
	return p
}

// player plays a recording into a cluster. It must be stopped after use.
type player struct {
	cluster *model.Cluster
	session int // session at which the player began
	at      time.Time
	next    func() (record.Step, error, bool)
	stop    func()
	ahead   *record.Step // read, but not applied yet
	// claims is set after the first recorded ResourceClaim. A recording without claims may have
	// been made without permission to read them.
	claims bool
	// composites is set after the first recorded CompositePodGroup, which proves that the cluster
	// serves the kind.
	composites bool
}

// playUntil plays up to a time. After an error the player must not be used.
func (p *player) playUntil(at time.Time) error {
	for {
		// The time of a step is known only once it is read, so a step after the given time is kept
		// for the next call.
		if p.ahead == nil {
			step, err, more := p.next()
			if err != nil {
				return err
			}
			if more {
				p.ahead = &step
			}
		}
		if p.ahead == nil || p.ahead.At.After(at) {
			p.showAt(p.at)
			p.showAt(at)
			return nil
		}
		if p.ahead.At.Sub(p.at) >= time.Second { // record the pending pods in between in the history
			p.showAt(p.at)
		}
		p.takeStep(p.ahead)
		p.at = p.ahead.At
		p.ahead = nil
	}
}

// showAt updates the cluster's rows to the given time.
func (p *player) showAt(at time.Time) {
	p.at = at
	for p.cluster.Changes(at); p.cluster.More(); {
		p.cluster.Changes(at)
	}
}

// takeStep applies one step of the recording, like the watches of a live cluster.
func (p *player) takeStep(s *record.Step) {
	// The cluster uses the time of the recording.
	c, now := p.cluster, s.At
	switch s.Object.(type) {
	// A list begins, or has ended: objects missing from it have been deleted.
	case nil:
		if s.Begins {
			c.NodesListing(now)
			c.PodsListing(now)
			c.GroupsListing()
			c.Trees.Listing()
			c.ClaimsListing()
		} else if s.Began {
			c.NodesListed(now)
			c.PodsListed(now)
			c.GroupsListed()
			if p.composites {
				c.Trees.Listed()
			}
			if p.claims {
				c.ClaimsListed()
			}
		}
		return
	case *schedulingv1alpha3.CompositePodGroup:
		if !p.composites {
			p.composites = true
			defer c.Trees.Listed()
		}
	case *resourcev1.ResourceClaim:
		if !p.claims {
			p.claims = true
			defer c.ClaimsListed()
		}
	}
	if s.Gone {
		gone(s.Object)(c, now)
	} else {
		seen(s.Object)(c, now)
	}
}

// journalAge is the maximum age of the journals from which the history is restored.
const journalAge = 24 * time.Hour

// RestoreHistory adds the departures and moments recorded by the scheduler's journals in a folder.
// Unreadable files are skipped, and the first error is logged.
func (w *Watcher) RestoreHistory(ctx context.Context, dir string) {
	p := &player{cluster: model.New()}
	files, err := records.Files(dir)
	for _, file := range files {
		info, unread := os.Stat(file)
		if unread == nil && time.Since(info.ModTime()) < journalAge {
			unread = p.playJournal(ctx, file)
		}
		err = cmp.Or(err, unread)
	}
	if err != nil {
		klog.FromContext(ctx).Info("History not restored completely", "journal", dir, "err", err)
	}
	p.showAt(p.at)
	w.changeCluster(func(c *model.Cluster, _ time.Time) { c.Adopt(p.cluster) })
}

// playJournal plays a journal of the scheduler into the cluster until its end or an error.
func (p *player) playJournal(ctx context.Context, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	r, err := journal.NewReader(f)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		next, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		// Replacements are found when rows are shown.
		if next.At.Sub(p.at) >= model.Every {
			p.showAt(next.At)
		}
		switch e := next.Event.(type) {
		case cycle.Seen:
			p.takeStep(&record.Step{At: next.At, Object: e.Object})
		case cycle.Gone: // with the last state, in case that an earlier file has the others
			p.takeStep(&record.Step{At: next.At, Object: e.Object})
			p.takeStep(&record.Step{At: next.At, Object: e.Object, Gone: true})
		}
	}
	return ctx.Err()
}
