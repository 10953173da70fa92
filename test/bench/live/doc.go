// Package live measures kube-scheduler and Berth's scheduler against a real API server, in turn and
// in one run: pods per second, CPU per pod, memory, and how long one pod takes on an idle cluster.
//
// Everything runs as a process of its own, built from the same modules: etcd, an unmodified
// kube-apiserver, and one of the schedulers at a time. The nodes are objects with a healthy status
// and nobody behind them. For each mode ([Modes]) the pods wait before the scheduler starts; it is
// started, watched until the last pod is bound, given the time to write its events, and ended; what
// it took is what the kernel says of the process. [Run] measures, [Report] prints the tables. What
// the API server takes when nobody has to decide anything is measured first: no scheduler can be
// faster than that. In place of these: how soon pods run ([Startup]), or gangs are bound ([Gang]).
package live
