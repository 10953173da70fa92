package live

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/plugins"
	"github.com/berth-k8s/berth/queue"
)

// placement is a pod that is counted on a node and not bound yet.
type placement struct {
	item *queue.Item
	p    *cluster.Pod
	node string
	undo []func() // what was reserved for it

	volumes plugins.PodVolumes
	until   time.Time // its volumes must be bound by then
}

// reserve takes what the pod needs beside room on the node.
func (s *Scheduler) reserve(profile *profile, b *placement, n *cluster.Node) error {
	for _, r := range profile.Reservers {
		switch r := r.(type) {
		case *plugins.VolumeBinding:
			volumes, err := r.PodVolumes(s.cluster, b.p, n)
			if err != nil {
				return fmt.Errorf("running Reserve plugin %q: %w", r.Name(), err)
			}
			b.volumes, b.until = volumes, time.Now().Add(r.Timeout)
			b.undo = append(b.undo, volumes.Assume(s.cluster))
		case *plugins.DynamicResources:
			if len(b.p.Spec().ResourceClaims) > 0 {
				return errors.New("pods with resource claims are decided, but the allocation is not written to the API yet: use kube-scheduler for them")
			}
		}
	}
	return nil
}

func (b *placement) giveBack() {
	for _, undo := range slices.Backward(b.undo) {
		undo()
	}
}

// bindVolumes writes what is to become of the pod's volumes, and has the pod wait until it has become so.
func (s *Scheduler) bindVolumes(b *placement) {
	s.binding = append(s.binding, b)
	s.helpers.do(func(ctx context.Context) {
		if err := s.writeVolumes(ctx, b.volumes); err != nil {
			s.inbox.put(func() { s.stopWaiting(b, err) })
		}
	})
}

func (s *Scheduler) writeVolumes(ctx context.Context, volumes plugins.PodVolumes) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	for _, volume := range volumes.Volumes {
		if _, err := s.client.CoreV1().PersistentVolumes().Update(ctx, volume, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("bind volume %s: %w", volume.Name, err)
		}
	}
	for _, claim := range volumes.Claims {
		if _, err := s.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("have a volume made for claim %s: %w", claim.Name, err)
		}
	}
	return nil
}

// checkVolumes binds the pods whose volumes are bound by now, and gives up those whose never will be.
func (s *Scheduler) checkVolumes(now time.Time) {
	for _, b := range slices.Clone(s.binding) {
		n := s.cluster.Node(b.node)
		if n == nil || s.cluster.Pod(b.p.UID) != b.p {
			s.stopWaiting(b, fmt.Errorf("node %s or the pod went while its volumes were bound", b.node))
			continue
		}
		bound, err := b.volumes.Bound(s.cluster, n)
		switch {
		case err != nil:
			s.stopWaiting(b, err)
		case bound:
			s.forgetBinding(b)
			s.bindPod(b)
		case now.After(b.until):
			s.stopWaiting(b, errors.New("binding volumes: timed out waiting for the condition"))
		}
	}
}

func (s *Scheduler) forgetBinding(b *placement) {
	s.binding = slices.DeleteFunc(s.binding, func(o *placement) bool { return o == b })
}

func (s *Scheduler) stopWaiting(b *placement, err error) {
	if slices.Contains(s.binding, b) {
		s.forgetBinding(b)
		s.bound(b, err)
	}
}
