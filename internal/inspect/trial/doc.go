// Package trial replays a recorded day under another configuration. A journal has what the API
// showed, and the outcomes of the scheduler's own requests. The first is kept: nodes come and go,
// and pods are created, end and are deleted at the recorded times. The second would no longer be
// true, so it is simulated: requests succeed at once, and the core is shown their consequences as
// an API server would show them.
//
// Where the two courses of events part, the day is changed as little as possible. A pod that ended
// after running for a while runs for as long, wherever and whenever it starts. A pod that was
// preempted and now is not stays, and the replacement that its controller created does not appear.
// A pod that is now preempted is replaced by its controller.
//
// [Play] plays one course, [Compare] compares two.
package trial
