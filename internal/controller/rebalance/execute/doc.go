// Package execute carries out what package rebalance plans: moves, drains and rolls.
//
// A mover has pods leave: it evicts them, or has their successors come first (a surge), and keeps
// room for these. What a lost answer, a refusal and a pod that has gone mean is decided there, for
// all. It has two policies, the Core's and the Drainer's, which say which pod leaves next and what
// is waited for.
//
// The Core makes one move at a time, each proved on the newest state right before it is made. It
// requests a plan, makes its first move, waits until the successor is ready, and requests another
// plan. So every move is the first of a plan that was proved a moment ago, with all moves that an
// attempt needs. What a plan says about later moves is never relied on.
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
// The Drainer drains nodes, and the Roller has it drain one after the other. It makes the same kind
// of plan, has many pods terminate at a time, and needs no journal. One room is kept at a time: the
// next pod is evicted when the successor of the one before has a node.
package execute
