// Command karpenter runs Karpenter's own scheduler on the pods and the instance types of its
// benchmark, and says what the nodes cost that it asks for: the other side of `berth what-if
// provision`. With -beside it asks berth, too, and prints a table of both; with -write it writes
// what it schedules, for others to read.
//
// It is a module of its own, since Karpenter is built on libraries of an older Kubernetes than
// Berth. `make bench-karpenter` runs it.
package main
