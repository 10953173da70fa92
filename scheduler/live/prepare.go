package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/plugins"
)

// prepareBinding does on a goroutine of the pod's own what must be done and awaited before it is bound.
func (s *Scheduler) prepareBinding(b *placement) {
	ctx, cancel := context.WithCancelCause(s.life)
	b.staged, b.cancel = true, cancel
	s.stages.Go(func() {
		err := s.prepare(ctx, b)
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		cancel(nil)
		s.inbox.put(func() { s.prepared(b, err) })
	})
}

// prepared hears what came of it.
func (s *Scheduler) prepared(b *placement, err error) {
	b.staged = false
	switch {
	case b.dropped:
		s.giveBack(b)
		s.end(b, false)
	case s.life.Err() != nil: // bindings that have not begun are left to the next one
	case err != nil:
		s.takeBack(b, err)
	case s.cluster.Node(b.Node) == nil:
		s.takeBack(b, errNodeGone)
	default:
		s.bindPod(b)
	}
}

// prepare goes through the steps in their order.
func (s *Scheduler) prepare(ctx context.Context, b *placement) error {
	work, err := s.workBefore(ctx, b)
	if err != nil {
		return err
	}
	if (work || b.permit != nil) && b.Pod.Status.NominatedNodeName != b.Node { // so that autoscalers keep the node
		if err := s.writeStatus(ctx, b.Pod, nil, &b.Node); err != nil {
			klog.FromContext(ctx).Error(err, "Nominated node not written", "pod", klog.KObj(b.Pod), "node", b.Node)
		}
	}
	if b.permit != nil {
		if err := s.await(ctx, b.permit); err != nil {
			return err
		}
	}
	if !work {
		return nil
	}
	began := time.Now()
	err = s.preBind(ctx, b)
	s.observer.Ran(b.Profile, plugins.PreBind, err == nil, time.Since(began))
	return err
}

// workBefore tells whether anything is to be done before the binding.
func (s *Scheduler) workBefore(ctx context.Context, b *placement) (bool, error) {
	work := b.volumes.any() || b.devices.any()
	for _, p := range b.profile.preBind {
		needed, err := p.Needed(ctx, &b.Attempt)
		if err != nil {
			return false, fmt.Errorf("running PreBindPreFlight %q: %w", p.Name(), err)
		}
		work = work || needed
	}
	return work, nil
}

// preBind does the work in the order of the profile.
func (s *Scheduler) preBind(ctx context.Context, b *placement) error {
	outside := map[string]PreBinder{}
	for _, p := range b.profile.preBind {
		outside[p.Name()] = p
	}
	for _, name := range b.profile.At[plugins.PreBind] {
		var err error
		switch p, ok := outside[name]; {
		case ok:
			err = p.PreBind(ctx, &b.Attempt)
		case name == "VolumeBinding" && b.volumes.any():
			err = s.bindVolumes(ctx, b)
		case name == "DynamicResources" && b.devices.any():
			err = s.bindDevices(ctx, b)
		}
		if refused := (unschedulable)(nil); errors.As(err, &refused) {
			return err
		}
		if err != nil {
			return fmt.Errorf("running PreBind plugin %q: %w", name, err)
		}
	}
	return nil
}
