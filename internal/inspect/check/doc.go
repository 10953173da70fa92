// Package check examines a cluster before Berth is installed there, and whether an installation can
// work: versions, permissions, the flags of kube-scheduler and kube-controller-manager where they
// can be seen, other components that decide about pods, budgets that block, webhooks that
// interfere.
//
// Judge decides from plain facts and sees no cluster; internal/inspect/check/live reads the facts.
// Each finding says in one line what was found and, if something should be done about it, what.
package check
