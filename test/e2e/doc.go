// Package e2e tests the built binaries as a user meets them: `berth up` in
// front, stock kubectl (the one built in, and the system's if there is one)
// against it, and whatever can go wrong from wrong flags to kill -9.
//
// TestMain builds berth and berth-controlplane, or takes them from the folder
// that BERTH_BIN names, and starts one cluster that most tests share; a test
// that breaks nodes brings its own simulated ones to it.
package e2e
