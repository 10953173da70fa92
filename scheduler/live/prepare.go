package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
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
	groups, err := s.workBefore(ctx, b)
	if err != nil {
		return err
	}
	if (len(groups) > 0 || b.permit != nil) && b.Pod.Status.NominatedNodeName != b.Node { // so that autoscalers keep the node
		if err := s.writeStatus(ctx, b.Pod, nil, &b.Node); err != nil {
			klog.FromContext(ctx).Error(err, "Nominated node not written", "pod", klog.KObj(b.Pod), "node", b.Node)
		}
	}
	if b.permit != nil {
		if err := s.await(ctx, b.permit); err != nil {
			return err
		}
	}
	if len(groups) == 0 {
		return nil
	}
	began := time.Now()
	for _, group := range groups {
		if err = s.preBind(ctx, b, group); err != nil {
			break
		}
	}
	s.observer.Ran(b.Profile, plugins.PreBind, err == nil, time.Since(began))
	return err
}

// preBinding is one plugin's work before the binding.
type preBinding struct {
	plugin string
	do     func(context.Context) error
}

// workBefore is what is to be done before the binding, in the order of the profile: one group after the other, and what is in a group
// at the same time. A plugin that will not share its time parts those before it from those behind it, also where it has nothing to do.
func (s *Scheduler) workBefore(ctx context.Context, b *placement) (groups [][]preBinding, err error) {
	outside := map[string]PreBinder{}
	for _, p := range b.profile.preBind {
		outside[p.Name()] = p
	}
	var together []preBinding
	part := func() {
		if len(together) > 0 {
			groups, together = append(groups, together), nil
		}
	}
	for _, name := range b.profile.At[plugins.PreBind] {
		one := preBinding{plugin: name}
		work := PreBindWork{Parallel: true}
		switch p, ok := outside[name]; {
		case ok:
			if work, err = p.Needed(ctx, &b.Attempt); err != nil {
				return nil, fmt.Errorf("running PreBindPreFlight %q: %w", name, err)
			}
			one.do = func(ctx context.Context) error { return p.PreBind(ctx, &b.Attempt) }
		case name == "VolumeBinding":
			work.Needed = b.volumes.any()
			one.do = func(ctx context.Context) error { return s.bindVolumes(ctx, b) }
		case name == "DynamicResources":
			work.Needed = b.devices.any()
			one.do = func(ctx context.Context) error { return s.bindDevices(ctx, b) }
		}
		if !work.Parallel {
			part()
		}
		if work.Needed {
			together = append(together, one)
		}
		if !work.Parallel {
			part()
		}
	}
	part()
	return groups, nil
}

// preBind has the plugins of a group do their work. The first that fails ends that of the others.
func (s *Scheduler) preBind(ctx context.Context, b *placement, group []preBinding) error {
	all, ctx := errgroup.WithContext(ctx)
	for _, one := range group {
		all.Go(func() error { return s.preBindOne(ctx, b, one) })
	}
	return all.Wait()
}

func (s *Scheduler) preBindOne(ctx context.Context, b *placement, one preBinding) error {
	done := s.timing(b, one.plugin, plugins.PreBind)
	err := one.do(ctx)
	done(err == nil)
	if refused := (unschedulable)(nil); err == nil || errors.As(err, &refused) {
		return err
	}
	return fmt.Errorf("running PreBind plugin %q: %w", one.plugin, err)
}
