package live

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/plugins"
)

// volumeWork is what is to become of a pod's volumes before it is bound.
type volumeWork struct {
	plugins.PodVolumes
	timeout time.Duration
}

func (w *volumeWork) any() bool { return len(w.Volumes)+len(w.Claims) > 0 }

// reserveVolumes takes them in the cluster's objects.
func (s *Scheduler) reserveVolumes(b *placement, plugin *plugins.VolumeBinding, n *cluster.Node) (undo func(), err error) {
	volumes, err := plugin.PodVolumes(s.cluster, b.Waiting, n)
	if err != nil || len(volumes.Volumes)+len(volumes.Claims) == 0 {
		return nil, err
	}
	b.volumes = volumeWork{volumes, plugin.Timeout}
	return volumes.Assume(s.cluster), nil
}

// bindVolumes writes what is to become of them, and waits until it has become so.
func (s *Scheduler) bindVolumes(ctx context.Context, b *placement) error {
	if err := s.writeVolumes(ctx, &b.volumes); err != nil {
		return err
	}
	return s.awaitObjects(ctx, b.volumes.timeout, errors.New("binding volumes: timed out waiting for the condition"), func() (bool, error) {
		n := s.cluster.Node(b.Node)
		if n == nil {
			return false, errNodeGone
		}
		return b.volumes.Bound(s.cluster, n)
	})
}

func (s *Scheduler) writeVolumes(ctx context.Context, w *volumeWork) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for _, volume := range w.Volumes {
		if _, err := s.client.CoreV1().PersistentVolumes().Update(ctx, volume, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("bind volume %s: %w", volume.Name, err)
		}
	}
	for _, claim := range w.Claims {
		if _, err := s.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("have a volume made for claim %s: %w", claim.Name, err)
		}
	}
	return nil
}

// condition is something that a pod waits for, and that is looked at whenever objects change on which it may depend.
type condition struct {
	met  func() (bool, error) // on the owner; an error says that it never will be
	done chan error
}

// awaitObjects waits for a condition of the cluster's objects.
func (s *Scheduler) awaitObjects(ctx context.Context, timeout time.Duration, timedOut error, met func() (bool, error)) error {
	c := &condition{met, make(chan error, 1)}
	s.inbox.put(func() { s.conditions[c], s.conditionNews = struct{}{}, true })
	defer s.inbox.put(func() { delete(s.conditions, c) })
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case err := <-c.done:
		return err
	case <-timer.C:
		return timedOut
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// checkConditions tells those whose condition is met, or never will be.
func (s *Scheduler) checkConditions() {
	for c := range s.conditions {
		if met, err := c.met(); met || err != nil {
			delete(s.conditions, c)
			c.done <- err
		}
	}
}
