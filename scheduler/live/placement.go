package live

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/decide"
	"github.com/berth-k8s/berth/plugins"
	"github.com/berth-k8s/berth/queue"
	"github.com/berth-k8s/berth/scheduler/decision"
)

// placement is a pod on its way from the queue to its node.
type placement struct {
	Attempt
	profile *profile
	item    *queue.Item
	waiting cluster.Pod // what Attempt.Waiting points to
	began   time.Time
	sampled bool // each plugin's time is taken

	undo    []func() // what was reserved for it, by Berth's own plugins
	asked   bool     // reservers from outside were asked
	permit  *WaitingPod
	victims []decision.Name // that leave for it
	volumes volumeWork
	devices deviceWork

	// stage says how far the binding is; whoever moves it on from ready may do so: the worker that begins it, or the owner who
	// withdraws it.
	stage  atomic.Int32
	staged bool // a goroutine of the pod's own prepares the binding
	// The pod is no longer to be bound, or was shown on its node, before the answer of the goroutine or the worker that is at it.
	dropped, confirmed bool

	isBound bool
	cancel  context.CancelCauseFunc
}

// Stages of a binding.
const (
	ready int32 = iota
	begun
	withdrawn
)

// Why a binding is not carried out, or was not.
var (
	errGone           = errors.New("the pod was deleted")
	errBoundElsewhere = errors.New("the pod was bound by somebody else")
	errNodeGone       = errors.New("the node was removed before the pod was bound to it")
)

// rejection is an error that stands for a plugin's verdict: the pod waits for what can help against it.
type rejection struct {
	plugin string
	*plugins.Rejection
}

func (r *rejection) Error() string {
	if r.Err != nil {
		return r.Err.Error()
	}
	f := decide.Failure{Nodes: 1, Reasons: map[string]int{}}
	for _, reason := range r.Reasons {
		f.Reasons[reason]++
	}
	return f.Message("")
}

// assume counts the pod on the node, reserves what it needs beside room, and sees to its binding.
func (s *Scheduler) assume(b *placement, n *cluster.Node) {
	b.Node = n.Name
	if nominated := s.cluster.Nominated(b.Pod.UID); nominated != nil && nominated.Nominated != n.Name {
		s.unnominate(b.Pod.UID)
	}
	undo, err := s.reserveOwn(b, n)
	b.undo = undo
	if err != nil {
		s.takeBack(b, err)
		return
	}
	s.cluster.Place(b.Waiting, n)
	s.placements[b.Pod.UID] = b
	s.came(b.Waiting, nil)
	klog.Background().V(2).Info("Decided", "pod", klog.KObj(b.Pod), "node", n.Name)
	if err := s.reserveOutside(b); err != nil {
		s.takeBack(b, err)
		return
	}
	if err := s.permitted(b); err != nil {
		s.takeBack(b, err)
		return
	}
	if b.permit != nil || b.volumes.any() || b.devices.any() || len(b.profile.preBind) > 0 {
		s.prepareBinding(b)
		return
	}
	s.bindPod(b)
}

// reserveOwn takes in the cluster's objects what the pod needs beside room.
func (s *Scheduler) reserveOwn(b *placement, n *cluster.Node) (undo []func(), err error) {
	if len(b.profile.Reservers) == 0 {
		return nil, nil
	}
	for _, r := range b.profile.Reservers {
		var give func()
		done := s.timing(b, r.Name(), plugins.Reserve)
		switch r := r.(type) {
		case *plugins.VolumeBinding:
			give, err = s.reserveVolumes(b, r, n)
		case *plugins.DynamicResources:
			give, err = s.reserveDevices(b, r, n)
		default:
			give, err = r.Reserve(s.cluster, b.Waiting, n)
		}
		if give != nil {
			undo = append(undo, give)
		}
		done(err == nil)
		if err != nil {
			return undo, fmt.Errorf("running Reserve plugin %q: %w", r.Name(), err)
		}
	}
	return undo, nil
}

func (s *Scheduler) reserveOutside(b *placement) error {
	if len(b.profile.reserve) == 0 {
		return nil
	}
	began := time.Now()
	b.asked = true
	for _, r := range b.profile.reserve {
		done := s.timing(b, r.Name(), plugins.Reserve)
		refused := r.Reserve(&b.Attempt)
		done(refused == nil)
		if refused != nil {
			s.observer.Ran(b.Profile, plugins.Reserve, false, time.Since(began))
			if refused.Err != nil {
				return fmt.Errorf("running Reserve plugin %q: %w", r.Name(), refused.Err)
			}
			return &rejection{r.Name(), refused}
		}
	}
	s.observer.Ran(b.Profile, plugins.Reserve, true, time.Since(began))
	return nil
}

// giveBack undoes what was reserved.
func (s *Scheduler) giveBack(b *placement) {
	if b.asked {
		b.asked = false
		for _, r := range slices.Backward(b.profile.reserve) {
			r.Unreserve(&b.Attempt)
		}
	}
	for _, undo := range slices.Backward(b.undo) {
		undo()
	}
	b.undo = nil
}

// forget takes the pod off the node that it was counted on.
func (s *Scheduler) forget(b *placement) {
	if s.placements[b.Pod.UID] != b {
		return
	}
	delete(s.placements, b.Pod.UID)
	delete(s.victims, b.Pod.UID)
	if p := s.cluster.Pod(b.Pod.UID); p != nil { // it may be another one than was placed, if it was to leave
		n := p.Node
		s.cluster.RemovePod(b.Pod.UID)
		s.left(p, n, nil)
	}
}

// takeBack ends a placement that came to nothing; the pod goes back to the queue.
func (s *Scheduler) takeBack(b *placement, err error) {
	s.giveBack(b)
	s.forget(b)
	s.end(b, false)
	if refused := (*rejection)(nil); errors.As(err, &refused) {
		none := ""
		s.reject(b, &why{message: refused.Error(), plugins: []string{refused.plugin}}, &none, refused.Pending)
		return
	}
	s.fail(b, err)
}

// withdraw has a pod not bound whose binding has not begun; it goes back to the queue. It returns false if it is too late.
func (s *Scheduler) withdraw(b *placement, why error) bool {
	switch {
	case b.staged:
		if b.stage.Load() != ready {
			return false
		}
		b.cancel(why) // what it is at comes to an end, and then says so
		return true
	case b.stage.CompareAndSwap(ready, withdrawn):
		s.takeBack(b, why)
		return true
	}
	return false
}

// abandon ends a placement because the pod is gone, or has its place without us.
func (s *Scheduler) abandon(uid types.UID, why error) {
	b := s.placements[uid]
	if b == nil {
		return
	}
	early := b.stage.CompareAndSwap(ready, withdrawn)
	s.forget(b)
	switch {
	case b.isBound:
	case b.staged:
		b.dropped = true
		b.cancel(why)
	case early:
		s.giveBack(b)
		s.end(b, false)
	default:
		b.dropped = true // until the answer to the binding is there
	}
}

// confirm ends a placement that the watch has shown.
func (s *Scheduler) confirm(b *placement) {
	delete(s.placements, b.Pod.UID)
	switch {
	case b.isBound:
	case !b.stage.CompareAndSwap(ready, withdrawn):
		b.confirmed = true // the answer is still to come, and ends the attempt
	case b.staged:
		b.dropped = true
		b.cancel(errBoundElsewhere)
	default:
		s.giveBack(b)
		s.end(b, false)
	}
}

// succeeded counts a pod that was bound.
func (s *Scheduler) succeeded(b *placement) {
	b.isBound = true
	now := time.Now()
	s.observer.Attempted(b.Profile, Scheduled, now.Sub(b.began))
	s.observer.Bound(b.item.Attempts, now.Sub(b.item.Admitted), b.item.Overdue)
	s.end(b, true)
}

// bindPod hands a binding over.
func (s *Scheduler) bindPod(b *placement) {
	s.binders.do(func(ctx context.Context) {
		if !b.stage.CompareAndSwap(ready, begun) {
			return
		}
		s.observer.Binding(1)
		err := s.bind(ctx, b)
		s.observer.Binding(-1)
		if err == nil {
			s.announcing.add(announcement{b.Profile, reference(b.Pod), b.Node, time.Now()})
			for _, p := range b.profile.postBind {
				done := s.timing(b, p.Name(), plugins.PostBind)
				p.PostBind(ctx, &b.Attempt)
				done(true)
			}
		}
		s.inbox.put(func() { s.bound(b, err) })
	})
}

// bound hears what came of a binding. A pod that was bound stays in the books until the watch shows it on its node.
func (s *Scheduler) bound(b *placement, err error) {
	switch {
	case b.dropped: // a watch has shown the pod meanwhile, gone or elsewhere, and is right
		s.giveBack(b)
		s.end(b, false)
	case b.confirmed:
		s.succeeded(b)
	case s.placements[b.Pod.UID] != b:
	case err != nil:
		s.takeBack(b, err)
	default:
		s.succeeded(b)
	}
}
