// Package supervisor keeps the parts of `berth up` running: child processes, started one after the
// other as each becomes ready, restarted with back-off when they die, stopped in reverse order.
//
// Nothing is left behind, however the supervisor ends: children are stopped as process groups, and
// on Linux the kernel kills them when the supervisor itself is killed.
package supervisor
