// Package cycle is the scheduling cycle as a pure state machine: which pod is next, where it goes,
// what must happen before it is bound, who has to make room, who is tried again and when.
//
// [Core.Step] takes one [Event] and returns the [Action] values that follow from it. Events say
// what a watch showed, what came of an action, and that time has passed; actions are requests for
// the world: bind this pod, delete that victim, write this condition. An action whose outcome
// matters carries a [Ticket], and its outcome comes back as [Answered] with the same ticket. The
// core has no client, no goroutine, no clock but the argument of Step and no chance but the seed in
// its options: the same events at the same times give the same actions. Out-of-tree plugins that a
// profile names are the exception: they are asked through the interfaces of extension.go, and what
// they answer is theirs.
//
// The live scheduler, the journal's replay, simulations and tests feed the same core.
//
// A pod goes through the core like this: Seen puts it into the queue; a Tick pops it, decides it
// and counts it on its node at once (a placement), so that the next decision sees the room taken;
// then its placement waits at Permit, has its volumes and device claims written, and is bound, each
// step an action and an answer; a later Seen that shows the pod on its node ends the placement. The
// pods of a pod group that wait are decided together, see scheduleGroup. If a step fails, the
// placement gives back what it reserved and the pod returns to the queue.
package cycle
