// Package options reads the scheduler's flags and the configuration file that they name. Flags have
// kube-scheduler's names and meanings; those that have no effect in Berth are accepted with a note.
//
// A [Source] is where the configuration comes from (a file, a legacy Policy file or ConfigMap, or
// nothing). [Settings] is what it and the flags say about the process itself: how it reaches the
// cluster, elects a leader and is observed. A flag that is given overrides the file; kube-scheduler
// ignores most flags beside a file, which has surprised many.
package options
