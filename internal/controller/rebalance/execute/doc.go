// Package execute carries out what package rebalance plans: one move at a time, each proved on the
// newest state right before it is made.
//
// The Core is a state machine. It receives the objects of the cluster and requests a plan. It makes
// the plan's first move, waits until the successor is ready, and requests another plan. So every
// move is the first of a plan that was proved a moment ago, with all moves that an attempt needs.
// What a plan says about later moves is never relied on.
//
// Before a pod is evicted, the move is written into a journal, one object in the API. A process
// that starts with a move in its journal looks at the victim: if it is still there, the move is
// forgotten; if it is terminating or gone, its successor is waited for. So after a crash no second
// pod is evicted for the same cause. The journal is written with the version that was read, so of
// two processes that carry out moves one stops. The journal also has the workloads that rest
// because they were moved recently.
//
// Berth's scheduler keeps the room of a successor, see package cycle. That is not relied on:
// another scheduler may place it, and a pod of a higher priority may take the room. What happens is
// noticed on arrival. Two successors in a row that land elsewhere end the run, and so does one that
// finds no node.
//
// The Drainer drains nodes. It makes the same kind of plan, has many pods terminate at a time, and
// needs no journal. One room is kept at a time: the next pod is evicted when the successor of the
// one before has a node.
package execute
