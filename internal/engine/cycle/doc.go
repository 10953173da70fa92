// Package cycle is the scheduling cycle as a pure state machine: it chooses which pod is next and
// where it goes, what must happen before it is bound, which pods are preempted for it, and when a
// pod is retried.
//
// [Core.Step] takes one [Event] and returns the [Action] values that follow from it. Events report
// what a watch showed, the outcome of an action, or that time has passed. Actions are requests to
// the outside world: bind this pod, delete that victim, write this condition. An action whose
// outcome matters carries a [Ticket], and its outcome comes back as [Answered] with the same
// ticket. The core has no client, no goroutine, no clock other than the argument of Step, and no
// randomness other than the seed in its options: the same events at the same times give the same
// actions. The exception is out-of-tree plugins, which are called through the interfaces of
// extension.go.
//
// The live scheduler, the journal's replay, simulations and tests all feed this core.
//
// A pod takes this path. Seen puts it into the queue. A Tick pops it, decides it and counts it on
// its node at once (a placement), so that the next decision sees the room taken. The placement
// waits at Permit, has its volumes and device claims written, and is bound; each of these is an
// action and an answer. A later Seen that shows the pod on its node ends the placement. The pending
// pods of a pod group are decided together, see scheduleGroup. If a step fails, the placement gives
// back what it reserved and the pod returns to the queue.
//
// The parts, each of which uses only those before it (a test enforces the order): happenings are
// the events that may help waiting pods; nominations keep room for them; decisions remember what
// was decided; sharedClaims are the device claims of pods on their way to a node; placements take
// pods from the decision to the binding; podGroups know how many pods groups lack; reservations
// hold room for groups that have waited for long; preemptions make room; profiles say who decides
// and which gates keep pods out; attempts decide; intake takes in what the API shows of pods and
// nodes. mirrors turn the lists and watches of all kinds into changes. Core hands events to them.
package cycle
