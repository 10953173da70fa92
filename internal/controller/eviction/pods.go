// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"time"

	"github.com/berth-k8s/berth/internal/pacing"
)

// pod is a placed pod. It is in deadlines.queue exactly while it has a deadline, is not observed as
// terminating, and is not held by an attempt.
type pod struct {
	podRecord
	node     *node
	byNode   Due      // deadline set by its node's taints
	byDevice Due      // deadline set by its devices' taints
	asked    []string // the rules that evict the pod
	place    int      // index in deadlines.queue; -1 if absent
	among    int      // index in node.pods
	attempt  *attempt // the attempt in progress; nil: none
}

// podRecord is the part of a pod's state that Knowledge stores unchanged.
type podRecord struct {
	Pod
	List     uint32    // number of the last list that contained the pod
	Begun    time.Time // Pod.Bound by the Core's clock: tolerations count from this time
	Due      Due       // the earlier of byNode and byDevice
	Number   uint64    // rank by first observation; pods with the same deadline are evicted in this order
	Tries    int       // failed attempts for this deadline
	NotYet   time.Time // earliest time of the next attempt (back-off)
	Device   bool      `json:",omitempty"` // the taint of the last deadline belongs to a device
	Recorded bool      // the event of its eviction has been recorded
	Cancels  bool      // the cancellation must be recorded when the attempt ends
	Accepted bool      // the API server accepted the delete, or reported that the pod does not exist
}

// nextAttempt returns the start of the pod's next attempt.
func (p *pod) nextAttempt() time.Time { return pacing.Later(p.Due.At, p.NotYet) }

// podSeen applies the current state of a pod. Of two pods with the same name, only the pod observed
// last exists; the deletion of the other pod was missed. A pod without a node is ignored: taints
// cannot affect it yet.
func (c *Core) podSeen(now time.Time, seen Pod) {
	if seen.Node == "" {
		return
	}
	if holder, ok := c.mirror.names[seen.Name]; ok && holder != seen.UID {
		c.forgetPod(now, c.mirror.pods[holder])
	}

	p := c.mirror.podFor(now, seen)
	p.Begun = c.mirror.boundAt(now, p, &seen)
	// The claims may change, so the pod is listed under them again; see addUser.
	c.devices.dropUser(p)
	p.Pod, p.List = seen, c.mirror.podList.Number
	c.devices.addUser(p)
	c.decidePod(now, p)
}

// forgetPod removes a deleted pod. If a request for the pod is in flight, its response only
// releases the slot.
func (c *Core) forgetPod(now time.Time, p *pod) {
	c.deadlines.leaveQueue(p)
	c.devices.dropUser(p)
	c.statuses.recordAsked(now, p, nil)
	c.deadlines.setDue(p, Due{})
	if p.attempt != nil {
		p.attempt.pod = nil
	}
	c.mirror.dropPod(p)
}

// decidePods re-evaluates each of the pods, in the order given.
func (c *Core) decidePods(now time.Time, pods []*pod) {
	for _, p := range pods {
		c.decidePod(now, p)
	}
}

// decidePod computes the pod's deadline from the current state. A changed deadline resets the
// back-off, unless a delete has been accepted.
func (c *Core) decidePod(now time.Time, p *pod) {
	asked := c.judgePod(p)
	c.statuses.recordAsked(now, p, asked)
	if due := p.byNode.soonerOf(p.byDevice); !due.equalTo(p.Due) {
		// The cancellation is recorded only if the pod really stays: it is not terminating, no
		// delete has been accepted, and its node exists. The pods of a deleted node are removed
		// anyway, so only the end of a device's taint counts as a cancellation for them.
		p.Cancels = due.Stays() && !p.Terminating && !p.Accepted && (p.node.Known || p.Due.OfDevice())
		c.deadlines.setDue(p, due)
		p.Tries = 0
		if !p.Accepted {
			p.NotYet = time.Time{}
		}
		if p.Cancels && p.attempt == nil {
			c.deadlines.cancelEviction(p)
		}
	}
	c.deadlines.enqueuePod(p)
}

// judgePod computes the pod's deadline, and returns the rules that evict it.
func (c *Core) judgePod(p *pod) (asked []string) {
	p.byNode, p.byDevice = Due{}, Due{}
	if p.Terminating {
		return nil
	}
	if p.node.Known {
		p.byNode = Deadline(p.Tolerations, p.Begun, p.node.Held)
	}
	p.byDevice, asked = c.devices.seen.deadlineOf(&p.Pod)
	return asked
}
