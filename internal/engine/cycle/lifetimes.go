// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"math"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// startMargin is the longest time from the known end of a pod to the expected start of a group:
// kubelets report an end later, and the expected start is a full minute, so that it is seldom
// rewritten.
const startMargin = 2 * time.Minute

// lifetime describes the known end of a pod.
type lifetime struct {
	until   time.Time     // deletion deadline of a terminating pod
	longest time.Duration // longest time from the start to the end of any other pod
}

// notePod records whether the end of a pod is known.
func (rs *reservations) notePod(pod *v1.Pod) {
	delete(rs.lives, pod.UID)
	switch deadline := pod.Spec.ActiveDeadlineSeconds; {
	case rules.IsTerminal(pod):
	case pod.DeletionTimestamp != nil: // includes the grace period
		rs.lives[pod.UID] = lifetime{until: pod.DeletionTimestamp.Time}
	case deadline != nil:
		seconds := min(*deadline, math.MaxInt32) + min(ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 0), math.MaxInt32)
		rs.lives[pod.UID] = lifetime{longest: time.Duration(seconds) * time.Second}
	}
}

// knownEnd returns the time, on the clock of API objects, at which a pod ends. It is zero if it is
// unknown, or if the pod has outlived it.
func (rs *reservations) knownEnd(p *cluster.Pod) time.Time {
	life, now := rs.lives[p.UID()], rs.wallTime()
	end := life.until
	if life.longest > 0 {
		end = now.Add(life.longest)
		if !p.Started.IsZero() {
			end = p.Started.Time().Add(life.longest)
		}
	}
	if end.Before(now.Add(-startMargin / 2)) {
		return time.Time{}
	}
	return end
}
