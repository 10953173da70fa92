// Package shadow compares what kube-controller-manager's node-lifecycle and
// taint-eviction controllers do with what Berth's would have done. It writes
// nothing and needs to read pods, nodes and Leases only.
//
// Evictions follows the cluster as it is and keeps, with the core of package
// eviction, when each pod would have to go. Nodes runs the core of package
// nodehealth on a copy of the nodes on which Berth's own writes have been made
// and the other controller's have not, so that each side decides for itself.
// Both tell a Ledger what each side decided and when; what one side decided and
// the other did not follow within Patience is a difference.
package shadow
