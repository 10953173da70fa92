// Package rebalance decides which running pods to move, and proves each move before it is made.
//
// Make takes a State (the API objects of a cluster) and a Policy, and returns a Plan: moves in
// order, each with the nodes on which the scheduler puts the successor, what gets better, what it
// costs, and why it was preferred to the next best. It sees no client and no clock, and the same
// state and policy give the same plan.
//
// A move is proved with the engine that schedules (package decide), on the cluster as the moves
// before leave it:
//
//   - Pending pods are placed first. The successor is what the victim's controller makes in its
//     place.
//   - The successor is decided twice: while the victim terminates, and after it has gone. Every
//     node that is best in one of the two must do, and none may be the victim's own: otherwise the
//     pod could land where it was.
//   - No constraint of any other pod is newly violated, no budget is overdrawn, no pod preempts
//     another, and none becomes pending.
//   - What the policy counts goes down. There is one list of gauges for the whole policy, compared
//     in order, and a move that raises an earlier one is refused; so two strategies cannot move one
//     pod back and forth.
//
// It is safe to stop after any move. Moves that help only together (a node is emptied or it is not)
// are an Attempt: made as a whole, or taken back. When nothing more can be proved the plan ends, so
// a second plan on the state that the first one leads to is empty.
package rebalance
