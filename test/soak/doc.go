// Package soak is the campaign that asks whether Berth can be trusted: a whole cluster of
// processes, with workloads that come and go, on which everything that can go wrong does, from one
// seed; and a witness that looks straight at the API server and holds what it sees against what
// Berth promises.
//
// A campaign goes through rounds. In the storm processes are killed and put to sleep, requests are
// refused, lost, answered and not heard of, watches break, parts are cut off, the disk of etcd is
// full. Then faults end while taints and silent nodes stay as they are: whatever has to leave must
// leave now. Then nodes recover, and the cluster has to come to rest: every pod runs, or the plain
// evaluator agrees that it cannot.
//
// Two other campaigns use the same cluster and witness: in tenant.go one user is hostile, and in
// upgrade.go every part is replaced by another version of itself.
//
// Each promise has a file of its own: bound.go, room.go, evicted.go, preempted.go, rest.go,
// bounds.go. The witness decides from what it is told and when, so that the tests of this package
// tell it lies and see them found.
package soak
