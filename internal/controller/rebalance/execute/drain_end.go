// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/world/disruption"
)

// closesFor is the time limit for undoing surges once a drain is done, timed out or interrupted.
const closesFor = 30 * time.Second

// outOfTime handles the timeout. With AllowPending, the drain counts as done if the nodes are empty
// by then. outOfTime returns the reason for ending the drain, or "" if the drain counts as done.
func (d *Drainer) outOfTime() string {
	left, ending := d.remaining()
	if d.stage < emptying || left+ending > 0 {
		why := fmt.Sprintf("not done within %s", d.options.Timeout)
		if d.plan != nil {
			for _, node := range slices.Sorted(maps.Keys(d.heldPods())) {
				why += "; " + disruption.WhyHeld(node)
			}
		}
		return why
	}

	for _, p := range d.inProgress {
		switch {
		case p.ended:
		case !d.options.AllowPending:
			return fmt.Sprintf("not done within %s: %s/%s: %s", d.options.Timeout, p.Namespace, p.Name, homeless(d.successorOf(p)))
		default:
			d.leavePending(p, d.successorOf(p))
		}
	}
	return ""
}

// remaining counts the pods still to be evicted, and the evicted pods still terminating. Each pod
// counts once, even if it is in the plan and has since been evicted.
func (d *Drainer) remaining() (left, ending int) {
	if d.plan == nil {
		return 0, 0
	}
	seen := map[types.UID]bool{}
	count := func(namespace, name string, uid types.UID, leaves bool) {
		switch victim := d.cluster.pod(namespace, name, uid); {
		case victim == nil || seen[uid]:
		case victim.DeletionTimestamp == nil && !leaves:
			left++
		default:
			ending++
		}
		seen[uid] = true
	}

	for _, p := range d.inProgress {
		if p.left.IsZero() {
			count(p.Namespace, p.Name, p.UID, true)
		}
	}
	for i := range d.plan.Pods {
		p := &d.plan.Pods[i]
		count(p.Namespace, p.Name, p.UID, false)
	}
	for _, k := range d.plan.Ending {
		count(k.Namespace, k.Name, k.UID, false)
	}
	return left, ending
}

// end ends the drain; why is the cause of an interruption, or "". The first reason wins.
func (d *Drainer) end(why string) {
	if d.stage != closing && d.stage != drained {
		d.stage, d.stopped = closing, why
		d.close()
	}
}

// close reports the end once surges are undone and the response to the eviction in flight has
// arrived, so that the eviction counts.
func (d *Drainer) close() {
	d.at = time.Time{}
	if d.ended.IsZero() {
		d.ended = d.now
	}
	d.surges.follow(d.stopped)
	p, end := d.evicting, d.ended.Add(closesFor)
	if d.now.Before(end) && (d.restoring() || p != nil && p.ticket != 0) {
		d.wake(end)
		return
	}

	d.stage = drained
	for _, s := range d.surges.list {
		d.report(s.departure, Restored, "", fmt.Sprintf("%s is not scaled back yet; a later drain or uncordon does that", s.scaled))
	}
	if p != nil {
		d.evicting, d.unsure = nil, append(d.unsure, p)
	}
	d.settle()
	d.leaveRoom()
	d.withdraw()
	left, ending := d.remaining()
	d.addAction(DrainDone{Evicted: d.count, Left: left, Ending: ending, Stopped: d.stopped})
}

// withdraw withdraws the requests for remaining pods. Otherwise responders would evict pods after
// the command has exited.
func (d *Drainer) withdraw() {
	pods := map[types.UID]bool{}
	for _, p := range d.unsure {
		if !p.asked.IsZero() {
			pods[p.UID] = true
		}
	}
	if len(pods) > 0 {
		d.addAction(Withdraw{Pods: pods})
	}
}
