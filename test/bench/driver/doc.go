// Package driver is what the benches have in common: a folder to work in and the programs that run
// there ([Run]), a cluster with its objects ([Cluster]), the schedulers that are compared
// ([Schedulers]), what a watch shows of pods ([Follow]), and tables ([Table]).
//
// A bench is a workload and the rows of its table. Everything that is measured runs as a process of
// its own, and what it takes is what the kernel says of the process.
package driver
