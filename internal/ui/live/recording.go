package live

import (
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/inspect/record"
	"github.com/berth-k8s/berth/internal/ui/model"
)

// Recording is a recorded cluster at any time of it.
type Recording struct {
	Dir         string
	From, Until time.Time
	sessions    []record.Session
	history     []model.Moment // of all of it

	mu     sync.Mutex
	player *player // where it was looked at last
}

// Open reads a recording once, so that what happened in it is known and what cannot be read is said
// at the start.
func Open(dir string) (*Recording, error) {
	index, err := record.ReadIndex(dir)
	if err != nil {
		return nil, err
	}
	if len(index.Sessions) == 0 {
		return nil, fmt.Errorf("%s: nothing was recorded", dir)
	}
	r := &Recording{Dir: dir, sessions: index.Sessions, From: index.Sessions[0].Began.Time, Until: index.Sessions[len(index.Sessions)-1].Until.Time}
	all := r.play(0)
	defer all.stop()
	all.cluster.Lasting(r.Until.Sub(r.From))
	if err := all.until(r.Until); err != nil {
		return nil, err
	}
	r.history = all.cluster.State(r.Until).History
	return r, nil
}

// Look shows the cluster as it was at a time; before and after what was recorded, as it was at its
// beginning and end.
func (r *Recording) Look(at time.Time, look func(c *model.Cluster)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if at.Before(r.From) {
		at = r.From
	}
	if at.After(r.Until) {
		at = r.Until
	}
	session := 0
	for i := range r.sessions {
		if !r.sessions[i].Began.After(at) {
			session = i
		}
	}
	// Time goes forward only: for what lies before, the session is played from its beginning; to a
	// later one is jumped.
	if p := r.player; p == nil || at.Before(p.at) || p.session < session {
		if p != nil {
			p.stop()
		}
		r.player = r.play(session)
	}
	if err := r.player.until(at); err != nil {
		r.player.stop()
		r.player = nil
		return err
	}
	look(r.player.cluster)
	return nil
}

// State is all that is shown of a time, and what happened in all of the recording.
func (r *Recording) State(at time.Time) (state *model.Delta, err error) {
	err = r.Look(at, func(c *model.Cluster) {
		state = c.State(r.player.at)
		state.History = r.history
	})
	return state, err
}

func (r *Recording) play(session int) *player {
	p := &player{cluster: model.New(), session: session}
	p.next, p.stop = iter.Pull2(record.Play(r.Dir, slices.Clone(r.sessions[session:])))
	return p
}

// player is a cluster on its way through a recording.
type player struct {
	cluster *model.Cluster
	session int // that it began with
	at      time.Time
	next    func() (record.Step, error, bool)
	stop    func()
	ahead   *record.Step // read already, and still to come
}

// until goes on to a time.
func (p *player) until(at time.Time) error {
	for {
		if p.ahead == nil {
			step, err, more := p.next()
			switch {
			case err != nil:
				return err
			case !more:
				p.show(p.at)
				p.show(at)
				return nil
			}
			p.ahead = &step
		}
		if p.ahead.At.After(at) {
			p.show(p.at)
			p.show(at)
			return nil
		}
		if p.ahead.At.Sub(p.at) >= time.Second { // what was pending meanwhile is part of what happened, from when on it was
			p.show(p.at)
		}
		p.take(p.ahead)
		p.at = p.ahead.At
		p.ahead = nil
	}
}

func (p *player) show(at time.Time) {
	p.at = at
	for p.cluster.Changes(at); p.cluster.More(); {
		p.cluster.Changes(at)
	}
}

func (p *player) take(s *record.Step) {
	c, now := p.cluster, s.At
	switch o := s.Object.(type) {
	case *v1.Node:
		if s.Gone {
			c.NodeGone(now, o.Name)
		} else {
			c.NodeSeen(now, model.NodeOf(o))
		}
	case *v1.Pod:
		if s.Gone {
			c.PodGoneNamed(now, types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
		} else {
			c.PodSeen(now, model.PodOf(o))
		}
	case *schedulingv1alpha2.PodGroup:
		if s.Gone {
			c.GroupGone(types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
		} else {
			c.GroupSeen(model.GroupOf(o))
		}
	case metav1.Object:
	default:
		if s.Begins {
			c.NodesListing(now)
			c.PodsListing(now)
			c.GroupsListing()
		} else if s.Began {
			c.NodesListed(now)
			c.PodsListed(now)
			c.GroupsListed()
		}
	}
}
