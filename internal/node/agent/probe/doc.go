// Package probe determines the state of containers: whether one has started, is ready, is alive, by
// the probes of the pod's spec. It also runs the hooks after a container's start and before its
// end.
//
// A core without clock or network ([Gauge]) decides: which probe is due when, what several results
// in a row mean, what waits for the startup probe, and what holds for a container that the agent
// finds after its own restart. [Prober] runs one gauge for each probe of each pod, gives it what
// the runtime shows ([Prober.Sync]) and the results of exec, HTTP, TCP and gRPC, and provides the
// [Verdicts]. What follows from these, a status or a kill, is up to the caller. Event messages are
// the kubelet's.
package probe
