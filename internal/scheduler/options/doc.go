// Package options is what a user tells the scheduler: flags, and the file that
// they name. Flags have kube-scheduler's names and meanings; those of its that
// say nothing to Berth are taken with a note.
//
// A [Source] is where the configuration comes from (a file, a legacy Policy
// file or ConfigMap, or nothing), [Settings] is what it and the flags say of
// the process itself: how it reaches the cluster, elects and is looked into.
// A flag that is given goes before the file; with kube-scheduler most flags are
// ignored beside a file, which has surprised many.
package options
