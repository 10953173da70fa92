package eviction

import "time"

// takeAnswer takes the attempts that waited for the answer to their next step: one attempt, or all
// that share the reading of a node. An answer to an unknown ticket is ignored.
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

// goOn takes an attempt to its next step.
//
// The usual way of an attempt for a node's taint is readingNode, markingUnread, deleting: three
// requests. If the pod has changed since the watch showed it, readingPod and marking take the place
// of markingUnread. Whatever is read says whether the pod still has to go; only deletePod sends the
// delete.
func (e *evictor) goOn(now time.Time, a *attempt, answer Answered) {
	// Before the check for a pod that is gone: a pod whose delete was answered counts also if the
	// watch showed its end first.
	if a.step == deleting && answer.Outcome == OK {
		e.statuses.countEvicted(now, a.rules)
	}
	// The pod went while the request was in flight, so there is nothing more to do; only its slot
	// becomes free.
	if a.pod == nil {
		e.underway--
		return
	}

	switch a.step {
	case readingNode:
		e.nodeRead(now, a, answer)
	case readingDevices:
		e.devicesRead(now, a, answer)
	case markingUnread:
		e.markedUnread(now, a, answer)
	case readingPod:
		e.podRead(now, a, answer)
	// The mark has no influence on the delete, except that a pod that does not exist needs none.
	case marking:
		if answer.Outcome == OK && answer.Pod != nil {
			a.live = *answer.Pod
		}
		if answer.Outcome == Gone {
			e.acceptDelete(now, a)
			return
		}
		e.deletePod(now, a)
	case deleting:
		e.podDeleted(now, a, answer)
	}
}

// nodeRead decides by the node as it is. One that is gone has no taints, so that its pods stay: the
// pod garbage collector removes them. One of the same name with another UID is another node, of
// which nothing is remembered.
func (e *evictor) nodeRead(now time.Time, a *attempt, answer Answered) {
	switch answer.Outcome {
	case OK:
		known := a.pod.on
		if known.uid != answer.Node.UID {
			known = &node{}
		}
		a.held = e.dating.nodeTaints(now, known, *answer.Node, true)
	case Gone:
		a.held = nil
	default:
		e.retryRead(now, a, answer)
		return
	}

	e.pause = pause{}
	switch {
	case e.stillDue(a):
		e.reasonRead(now, a)
	case a.pod.byDevice.By(now):
		e.readDevices(now, a)
	default:
		e.avertDelete(now, a)
	}
}

// devicesRead decides by what was read of the devices, which alone counts. What could not be found,
// a claim that was deleted or a rule that was withdrawn, asks nobody to go.
func (e *evictor) devicesRead(now time.Time, a *attempt, answer Answered) {
	if answer.Outcome != OK {
		e.retryRead(now, a, answer)
		return
	}
	e.pause = pause{}
	a.found = e.devices.foundOf(now, answer.Devices)
	if !e.stillDue(a) {
		e.avertDelete(now, a)
		return
	}
	e.reasonRead(now, a)
}

// reasonRead goes on after the reading of the node or the devices has shown that the pod has to go.
func (e *evictor) reasonRead(now time.Time, a *attempt) {
	if a.unread && !a.evicts && !a.asked && !a.live.Marked && a.live.ResourceVersion != "" && a.rereads == 0 {
		e.markPod(a, markingUnread)
		return
	}
	e.readPod(a)
}

// markedUnread goes on after a mark that was conditional on the version that the watch showed. If
// it was made, the pod is as it was shown, and its answer takes the place of a reading.
func (e *evictor) markedUnread(now time.Time, a *attempt, answer Answered) {
	switch answer.Outcome {
	case OK:
		a.live, a.unread = *answer.Pod, false
		e.deleteIfDue(now, a)
	case Gone:
		e.acceptDelete(now, a)
	case Conflict: // it changed since the watch showed it: the mark is requested again
		a.asked = false
		e.readPod(a)
	default:
		e.readPod(a)
	}
}

// podRead goes on with the pod as it is. Another UID, or a deletionTimestamp, means that nothing is
// left to do. A pod that goes through the Eviction API is not marked first: the API server does
// that itself, once budgets allow it.
func (e *evictor) podRead(now time.Time, a *attempt, answer Answered) {
	switch {
	case answer.Outcome == Gone, answer.Outcome == OK && (answer.Pod.UID != a.pod.UID || answer.Pod.Terminating):
		e.acceptDelete(now, a)
		return
	case answer.Outcome != OK:
		e.retryRead(now, a, answer)
		return
	}

	a.live, a.unread = *answer.Pod, false
	if a.live.Marked || a.asked || a.evicts {
		e.deleteIfDue(now, a)
		return
	}
	if !e.stillDue(a) {
		e.avertDelete(now, a)
		return
	}
	e.markPod(a, marking)
}

// stillDue decides from the live state alone, as of the reading of the node: a deadline that has
// passed since may be one that the node no longer sets. It may be asked again for the same attempt
// after the pod was read.
func (e *evictor) stillDue(a *attempt) bool {
	return e.liveDue(a).By(a.readAt)
}

// liveDue is the deadline that follows from what the attempt has read: from the node's taints or
// from the devices, never from both, since an attempt reads only what it is for.
func (e *evictor) liveDue(a *attempt) Due {
	if a.seeks {
		due, _ := a.found.deadlineOf(&a.live)
		return due
	}
	return Deadline(a.live.Tolerations, e.mirror.boundAt(a.readAt, a.pod, &a.live), a.held)
}

// causeOf is the deadline that the attempt is for.
func (a *attempt) causeOf() Due {
	if a.seeks {
		return a.pod.byDevice
	}
	return a.pod.byNode
}
