// Package pressure decides when a node is short of memory, disk or PIDs, how that is reported, and
// which pod is evicted: from signals and thresholds like the kubelet's (--eviction-hard and so on),
// the usage of each pod, and the time. Core and the ranking are pure. Conditions, order and
// messages are the kubelet's.
//
// Watcher is their shell, for the node agent: it reads the signals every second (the kubelet: every
// ten), measures the pods only when something is starved, frees unused images and dead containers
// first if that is disk, and evicts one pod at a time, waiting until the previous one is gone. The
// package imports no client.
package pressure
