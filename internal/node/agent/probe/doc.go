// Package probe finds out how containers are: whether one has started, is ready, is alive, by the
// probes of the pod's spec; and runs the hooks after a container's start and before its end.
//
// What is decided from results is a core without clock or network ([Gauge]): which probe is due
// when, what so many results in a row mean, what waits for the startup probe, what a container that
// the agent finds after its own restart is taken to be. [Prober] feeds one such gauge for each
// probe of each pod with what the runtime shows ([Prober.Sync]) and with what exec, HTTP, TCP and
// gRPC answer, and has the [Verdicts]. What follows from them, a status or a kill, is the caller's.
// Texts of events are the kubelet's.
package probe
