// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package cycle implements the scheduling cycle as a pure state machine. It picks the next pod and
// its node, the work required before binding, the victims to preempt, and the time of each retry.
//
// [Core.Step] takes one [Event] and returns the resulting [Action] values. Events report watch
// notifications, outcomes of actions, or the passage of time. Actions are requests to the outside
// world: bind this pod, delete that victim, write this condition. If the core needs the outcome of
// an action, the action carries a [Ticket], and the outcome arrives as an [Answered] with the same
// ticket. The core has no client, no goroutine, no clock other than the argument of Step, and no
// randomness other than the seed in its options: therefore the same events at the same times
// produce the same actions. The exception is out-of-tree plugins, called through the interfaces of
// extension.go.
//
// The live scheduler, the journal's replay, simulations and tests all drive this core.
//
// A pod passes through the following files. Each contains a stage: its actions, the handling of
// their outcomes, and the step to the next stage.
//
//	  Seen                            an event that may help
//	   |                              (clusterevents.go, mirrors.go)
//	   v                                    |
//	intake.go ---> gates.go ---> queue <----+---- attempt.go <------------ stop.go
//	                               |                  ^                      ^
//	                        Tick   v                  |                      |
//	          ask.go  <-->   decide.go -------> postfilter.go                |
//	          Ask                  |            preempt.go                   |
//	                               | node       evict.go Remove              |
//	                               v                                         |
//	                         reserve.go -------------------------------------+
//	                               v                                         |
//	                         permit.go     Hold -----------------------------+
//	                               v                                         |
//	                         prepare.go    Preflight, PreBind ---------------+
//	                           WriteVolumes (reserve.go)                     |
//	                           WriteClaims (devices.go, claims.go)           |
//	                               v                                         |
//	                         bind.go       Bind -----------------------------+
//	                               |
//	intake.go <--- Seen on its node
//
// step.go dispatches events to the stages. core.go connects the components with the options
// (options.go) and the profiles (profiles.go, servedprofile.go). The decision immediately counts
// the pod on its node (see placement.go), so the next decision accounts for the occupied room. If a
// later stage fails, or the pod loses its node, stop.go gives the placement up: it sends Cancel and
// Release, undoes the reservations, and returns the pod to the queue. The pending pods of a pod
// group, or of a tree of groups, are decided together instead of in decide.go:
//
//	queue --Tick--> decidegroup.go ---> groupoutcome.go ---> permit.go
//	                groupattempt.go     |
//	                treeattempt.go      |
//	                treedomains.go      +------------------> attempt.go
//	                   | does not fit
//	                   v
//	                grouppostfilter.go, groupreservation.go
//
// Room is reserved in four ways: a placement holds its node (reserve.go), a nominated pod the room
// that its victims free (nominations.go), a group the nodes on which it will fit (reservations.go),
// and a pod being moved its next node (movereservations.go).
//
// A gang that loses a pod on its way gives up the placements of its other pods (memberLost in
// groupintake.go).
//
// The core does not log. Package runner logs the outcome of an action where it is carried out
// (sendBinding for a Bind), and the reason of a [Cancel] in cancelTask; decisions of a pod are
// recorded for its explanation (decisions.go).
//
// The core consists of the following parts. Each part uses only the preceding parts, which a test
// enforces. clusterEvents holds the events that may help waiting pods; nominations reserve room for
// nominated pods; decisions record past decisions; sharedClaims holds the device claims of pods
// being placed; placements take pods from the decision to the binding; podGroups count the pods
// missing from each group; reservations hold room for long-waiting groups; preemptions make room;
// profiles hold the deciders and the gates of pending pods; attempts decide pods; intake processes
// pods and nodes from the API; mirrors turn the lists and watches of all kinds into changes.
package cycle
