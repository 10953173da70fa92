// Package policy reads DeschedulerPolicy files (descheduler/v1alpha2) into policies for package
// rebalance.
//
// What the descheduler refuses is refused, with file and line. What it silently ignores (unknown
// keys outside of args, presort, sort, disabled), and what has no equivalent here, is listed in the
// policy's notes.
package policy
