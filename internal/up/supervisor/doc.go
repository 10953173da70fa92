// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package supervisor keeps the parts of `berth up` running: child processes, started one after the
// other as each becomes ready, restarted with back-off when they die, stopped in reverse order.
//
// It leaves no processes behind, however it ends: children are stopped as process groups, and on
// Linux the kernel kills them when the supervisor itself is killed.
package supervisor
