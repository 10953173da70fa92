// Package pressure decides when a node is short of memory, disk or PIDs, what is said about it, and
// which pod goes: from signals and thresholds as the kubelet has them (--eviction-hard and the
// like), what each pod uses, and the time. Core and the ranking are pure; the conditions, the order
// and the messages are the kubelet's.
//
// Watcher is the shell around them, for the node agent: it reads the signals every second (the
// kubelet: every ten), asks for the pods' usage only when something is starved, frees unused images
// and dead containers before pods when it is disk, and evicts one pod at a time, waiting until the
// last is gone. The package imports no client.
package pressure
