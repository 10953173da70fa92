// Package policy reads DeschedulerPolicy files (descheduler/v1alpha2) into policies for package
// rebalance.
//
// What the descheduler refuses is refused, with file and line. What it silently ignores (unknown
// keys outside of args, presort, sort, disabled), and what has no equivalent here, is listed in the
// policy's notes.
//
// A plugin becomes a goal, or two if its arguments ask for what hard constraints and what
// preferences want. read.go has the file, plugins.go the plugins' arguments, evictor.go those of
// DefaultEvictor, which say what may be moved at all, and status.go what plugins look at in a pod's
// status.
package policy
