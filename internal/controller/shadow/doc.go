// Package shadow compares what kube-controller-manager's node-lifecycle and taint-eviction
// controllers do with what Berth's would have done. It writes nothing, and reads only pods, nodes
// and Leases.
//
// Evictions follows the cluster as it is and, with the core of package eviction, keeps when each
// pod would have to go. Nodes runs the core of package nodehealth on a copy of the nodes on which
// Berth's own writes have been made and the other controller's have not, so that each side decides
// for itself. Both report to a Ledger what each side decided and when. A decision of one side that
// the other does not follow within Patience is a difference.
package shadow
