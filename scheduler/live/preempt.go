package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/decide"
	"github.com/berth-k8s/berth/queue"
	"github.com/berth-k8s/berth/scheduler/decision"
)

var errPreempted = errors.New("preempted by DefaultPreemption")

// preempt makes room for a pod that fits nowhere, if that is possible.
func (s *Scheduler) preempt(_ context.Context, b *placement, _ *decide.Failure) Rescue {
	found := b.profile.Preempt(b.Waiting)
	s.observer.Preempted(len(found.Victims))
	if found.Node == nil {
		r := Rescue{Message: "preemption: " + found.Message, Rejectors: found.Plugins}
		if !found.Ineligible {
			none := ""
			r.Nominate = &none
		}
		return r
	}
	s.makeRoom(b, found)
	return Rescue{Nominate: &found.Node.Name, Final: true}
}

// makeRoom has the victims removed. The pod is not tried again before they have been told.
func (s *Scheduler) makeRoom(b *placement, found decide.Preemption) {
	n := found.Node
	for _, waiting := range append([]*cluster.Pod(nil), n.Nominated...) {
		if waiting.Class.Priority < b.Waiting.Class.Priority {
			s.moveOn(waiting)
		}
	}
	began, failed := time.Now(), &atomic.Bool{}
	for _, victim := range found.Victims {
		b.victims = append(b.victims, decision.Name{Namespace: victim.Namespace(), Name: victim.Name})
		if victim.Terminating {
			continue
		}
		message := fmt.Sprintf("Preempted by pod %v on node %v", b.Pod.UID, n.Name)
		ref := v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: victim.Namespace(), Name: victim.Name, UID: victim.UID}
		if v := s.placements[victim.UID]; v != nil && !v.isBound && s.withdraw(v, errPreempted) {
			s.events.add(b.Profile, ref, v1.EventTypeNormal, "Preempted", message+" (in kube-scheduler memory).")
			continue
		}
		s.preempting[b.Pod.UID]++
		s.leaving(victim)
		s.helpers.do(func(ctx context.Context) {
			err := s.remove(ctx, ref, b.Profile)
			if err == nil {
				s.events.add(b.Profile, ref, v1.EventTypeNormal, "Preempted", message)
			} else {
				failed.Store(true)
				klog.FromContext(ctx).Error(err, "Victim not removed", "victim", klog.KRef(ref.Namespace, ref.Name), "for", klog.KObj(b.Pod))
			}
			s.inbox.put(func() { s.told(b, ref.UID, err, began, failed) })
		})
	}
}

// told hears that a victim was removed, or that this failed. The last one lets the pod in again.
func (s *Scheduler) told(b *placement, victim types.UID, err error, began time.Time, failed *atomic.Bool) {
	if err != nil {
		s.stays(victim)
	}
	uid := b.Pod.UID
	if s.preempting[uid]--; s.preempting[uid] > 0 {
		return
	}
	delete(s.preempting, uid)
	s.observer.RemovedVictims(!failed.Load(), time.Since(began))
	item := s.queue.Get(uid)
	if item != nil && (item.Place() == queue.Gated || failed.Load()) {
		s.queue.Wake(uid, queue.ForceActivate, time.Now())
	}
}

// leaving notes that a victim goes, before the watch says so: nobody is to choose it, or to wait for it, anew.
func (s *Scheduler) leaving(victim *cluster.Pod) {
	s.victims[victim.UID] = true
	was, n := *victim, victim.Node
	s.changedPlaced(&was, n, s.replaceAs(victim, true), nil)
}

// stays takes that back: the victim could not be removed.
func (s *Scheduler) stays(victim types.UID) {
	if !s.victims[victim] { // the watch has shown that it goes
		return
	}
	delete(s.victims, victim)
	if p := s.cluster.Pod(victim); p != nil && p.Node != nil {
		s.replaceAs(p, false)
	}
}

// replaceAs puts a pod that leaves in the place of one that stays, or the other way round.
func (s *Scheduler) replaceAs(p *cluster.Pod, leaving bool) *cluster.Pod {
	n, other := p.Node, *p
	s.cluster.RemovePod(p.UID)
	other.Node, other.Terminating, other.Preempted = nil, leaving, leaving
	s.cluster.Place(&other, n)
	return &other
}

// moveOn takes the nomination from a pod that the node has no room for any more.
func (s *Scheduler) moveOn(p *cluster.Pod) {
	s.unnominate(p.UID)
	item := s.queue.Get(p.UID)
	if item == nil {
		return
	}
	pod, none := item.Pod, ""
	s.helpers.do(func(ctx context.Context) {
		if err := s.writeStatus(ctx, pod, nil, &none); err != nil {
			klog.FromContext(ctx).Error(err, "Nomination not taken away", "pod", klog.KObj(pod))
		}
	})
	s.queue.Wake(p.UID, queue.ForceActivate, time.Now())
}

// remove deletes a victim after it was told why.
func (s *Scheduler) remove(ctx context.Context, victim v1.ObjectReference, by string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pods := s.client.CoreV1().Pods(victim.Namespace)
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": victim.UID},
		"status": map[string]any{"conditions": []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler,
			Message: fmt.Sprintf("%s: preempting to accommodate a higher priority pod", by), LastTransitionTime: metav1.Now(),
		}}},
	})
	if err != nil {
		return err
	}
	_, err = pods.Patch(ctx, victim.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil {
		err = pods.Delete(ctx, victim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &victim.UID}})
	}
	if apierrors.IsConflict(err) { // if another pod has its name, it has gone
		if pod, lookErr := pods.Get(ctx, victim.Name, metav1.GetOptions{}); lookErr == nil && pod.UID != victim.UID {
			return nil
		}
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
