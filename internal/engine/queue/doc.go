// Package queue holds the pending pods: which is decided next, which has to wait, and for what.
//
// A pod that is not being decided or bound is in one of four places. Active pods are decided in
// order: by priority, then by how long they have waited. A pod that was rejected waits, together
// with the names of the plugins that rejected it, until an event occurs that may change the verdict
// of one of these, or for five minutes at most. A pod that wakes before its back-off is over, or
// whose attempt failed, backs off: for one second after the first attempt and twice as long after
// each further one, up to ten seconds. A gated pod is offered to its gate again on the events that
// the gate is interested in, including changes of the pod itself.
//
// Interests say which events can help. After an attempt, they are also consulted about the events
// that occurred during it. Waiting pods of one class that were rejected by the same plugins form a
// group, and a hint is called once per event for the whole group, unless it looks at single pods.
// Groups are indexed by what they wait for (Narrowing), so that an event need not be compared with
// all of them.
//
// The queue is plain data with one owner, and has no clock: the time is an argument.
package queue
