// Package places measures how much work a cluster with GPUs takes: it plays the tasks of a trace,
// one after the other, and counts what share of the GPUs is allocated in the end.
//
// The protocol is that of "Beware of Fragmentation" (Weng et al., USENIX ATC 2023): the tasks of a
// mix arrive in random order, followed by tasks drawn from the mix, until all together want 130 %
// of the GPUs; they never leave; what fits nowhere when it arrives is not tried again.
//
// Kubernetes' scores and Berth's plugin Fragmentation are played by Berth's engine, with profiles
// as a user would write them; "moves" is Fragmentation with at most three proved moves per 100
// arrivals, "claims" is Fragmentation with GPUs in ResourceSlices and a claim for each task.
// [Trace.PlayLive] plays these on a cluster that runs. FGD, the paper's policy, is played by an
// implementation of its own.
package places
