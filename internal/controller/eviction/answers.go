// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"time"

	"github.com/berth-k8s/berth/internal/response"
)

// takeAnswer advances the attempts waiting for a response: one attempt, or several attempts that
// share the read of a node. A response to an unknown ticket is ignored.
func (e *evictor) takeAnswer(now time.Time, answer Answered) {
	a := e.attempts[answer.Ticket]
	delete(e.attempts, answer.Ticket)
	if a == nil {
		return
	}

	others := a.also
	a.also = nil
	e.goOn(now, a, answer)
	for _, other := range others {
		e.goOn(now, other, answer)
	}
}

// goOn handles the response to an attempt's request, and begins the next step.
//
// The usual sequence for a node's taint is readingNode, markingUnread, deleting: three requests. If
// the pod has changed since it was last observed, readingPod and marking are inserted before
// deleting. Each read determines whether the pod must still be evicted; only deletePod sends the
// delete.
func (e *evictor) goOn(now time.Time, a *attempt, answer Answered) {
	// This precedes the check for a nil pod, because a successful delete counts even if the watch
	// delivered the deletion before the response.
	if a.Step == deleting && answer.Outcome == response.OK {
		e.statuses.countEvicted(now, a.Rules)
	}
	// The pod was deleted while the request was in flight; only its slot is released.
	if a.pod == nil {
		e.underway--
		return
	}

	switch a.Step {
	case readingNode:
		e.nodeRead(now, a, answer)
	case readingDevices:
		e.devicesRead(now, a, answer)
	case markingUnread:
		e.markedUnread(now, a, answer)
	case readingPod:
		e.podRead(now, a, answer)
	// The outcome of the mark does not affect the delete, except that a nonexistent pod needs no
	// delete.
	case marking:
		if answer.Outcome == response.OK && answer.Pod != nil {
			a.Live = *answer.Pod
		}
		if answer.Outcome == response.Gone {
			e.acceptDelete(now, a)
			return
		}
		e.deletePod(now, a)
	case deleting:
		e.podDeleted(now, a, answer)
	}
}

// nodeRead decides by the live node. A missing node lacks taints, so its pods stay: the pod garbage
// collector removes them. A node of the same name with another UID is a different node, without
// remembered taints.
func (e *evictor) nodeRead(now time.Time, a *attempt, answer Answered) {
	switch answer.Outcome {
	case response.OK:
		known := a.pod.node
		if known.UID != answer.Node.UID {
			known = &node{}
		}
		a.Held = e.dating.nodeTaints(now, known, *answer.Node, true)
	case response.Gone:
		a.Held = nil
	default:
		e.retryRead(now, a, answer)
		return
	}

	e.pause = pause{}
	a.pod.node.Reads.Reset()
	switch {
	case e.stillDue(a):
		e.reasonRead(a)
	case a.pod.byDevice.IsDue(now):
		e.readDevices(now, a)
	default:
		e.avertDelete(now, a)
	}
}

// devicesRead decides only by the device objects just read. An object missing from the response,
// such as a deleted claim or rule, does not evict the pod.
func (e *evictor) devicesRead(now time.Time, a *attempt, answer Answered) {
	if answer.Outcome != response.OK {
		e.retryRead(now, a, answer)
		return
	}
	e.pause = pause{}
	a.found = e.devices.foundOf(now, answer.Devices)
	if !e.stillDue(a) {
		e.avertDelete(now, a)
		return
	}
	e.reasonRead(a)
}

// reasonRead continues after reading a node or devices that still require the eviction. A repeated
// attempt marks the pod after reading it, and so only once.
func (e *evictor) reasonRead(a *attempt) {
	if a.Unread && !a.Evicts && !a.Asked && !a.Live.Marked && a.Live.ResourceVersion != "" && a.Rereads == 0 && a.pod.Tries == 0 {
		e.markPod(a, markingUnread)
		return
	}
	e.readPod(a)
}

// markedUnread continues after a mark conditional on the observed version. If the mark succeeded,
// the pod was unchanged, and the response is as good as a read.
func (e *evictor) markedUnread(now time.Time, a *attempt, answer Answered) {
	switch answer.Outcome {
	case response.OK:
		a.Live, a.Unread = *answer.Pod, false
		e.deleteIfDue(now, a)
	case response.Gone:
		e.acceptDelete(now, a)
	case response.Conflict: // the pod has changed since it was last observed: the mark is requested again
		a.Asked = false
		e.readPod(a)
	default:
		e.readPod(a)
	}
}

// podRead continues with the live pod. If the pod is missing, has another UID or is terminating,
// the attempt is complete. A pod evicted through the Eviction API is not marked first: the API
// server marks it when the budgets allow the eviction.
func (e *evictor) podRead(now time.Time, a *attempt, answer Answered) {
	switch {
	case answer.Outcome == response.Gone, answer.Outcome == response.OK && (answer.Pod.UID != a.pod.UID || answer.Pod.Terminating):
		e.acceptDelete(now, a)
		return
	case answer.Outcome != response.OK:
		e.retryRead(now, a, answer)
		return
	}

	a.Live, a.Unread = *answer.Pod, false
	if a.Live.Marked || a.Asked || a.Evicts {
		e.deleteIfDue(now, a)
		return
	}
	if !e.stillDue(a) {
		e.avertDelete(now, a)
		return
	}
	e.markPod(a, marking)
}

// stillDue reports whether the pod is due according to the live state, evaluated at the time of the
// read of the node or the devices: a deadline that passed later may no longer apply. stillDue may
// be called again for the same attempt after the pod was read.
func (e *evictor) stillDue(a *attempt) bool {
	return e.liveDue(a).IsDue(a.ReadAt)
}

// liveDue returns the deadline that results from the attempt's reads: from the devices if the
// attempt has read them, and otherwise from the node's taints.
func (e *evictor) liveDue(a *attempt) Due {
	if a.Seeks {
		due, _ := a.found.deadlineOf(&a.Live)
		return due
	}
	return Deadline(a.Live.Tolerations, e.mirror.boundAt(a.ReadAt, a.pod, &a.Live), a.Held)
}

// causeOf returns the observed deadline for which the attempt deletes the pod.
func (a *attempt) causeOf() Due {
	if a.Seeks {
		return a.pod.byDevice
	}
	return a.pod.byNode
}
