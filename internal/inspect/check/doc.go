// Package check says of a cluster what is worth knowing before Berth is installed there, and
// whether what is installed can work: versions, rights, the flags of kube-scheduler and
// kube-controller-manager where they can be seen, who else decides about pods, which budgets block,
// which webhooks stand in the way.
//
// Judge decides from plain facts and sees no cluster; internal/inspect/check/live reads the facts.
// Each finding says in a line what is so, and if something is to be done about it, what.
package check
