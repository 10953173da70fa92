// Package trial plays a day that was recorded under a configuration of one's choice. A journal
// holds what the API showed and what came of the scheduler's own requests. The first is kept: nodes
// come and go, pods are created, end and are deleted at the times at which it happened. The second
// would not be true any more, so it is made up: requests succeed at once, and their consequences
// are shown to the core as an API server would show them.
//
// Where the courses of events part, the day is bent as little as possible. A pod that ended after
// having run for a while runs for as long, wherever and whenever it begins. A pod that was removed
// for another one and now is not stays, and the pod that its controller made in its place does not
// come; one that now has to make room is made again by its controller.
//
// [Play] plays one course, [Compare] tells two apart.
package trial
