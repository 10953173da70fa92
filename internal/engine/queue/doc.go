// Package queue holds the pending pods: which is decided next, which has to wait, and for what.
//
// A pod is in one of four places. Active pods are decided in order: by priority, then by how long
// they have waited. A pod that was rejected waits, together with the names of the plugins that
// rejected it, until an event occurs that may change the mind of one of these, or for five minutes
// at most. A pod that wakes before its back-off is over, or whose attempt failed, backs off: for
// one second after the first attempt and twice as long after each further one, up to ten seconds. A
// gated pod is offered to its gate again on the events that the gate asks for, changes of the pod
// itself included.
//
// Interests say which events can help. They are also consulted about the events that occurred
// during an attempt, when the attempt is over. Waiting pods that are alike in all that matters,
// their class and the plugins that rejected them, form a group, which is asked about once per
// event. Groups are indexed by what they wait for (Narrowing), so that an event need not be
// compared with all of them.
//
// The queue is plain data with one owner, and has no clock: the time is an argument.
package queue
