// Package lead has one of several replicas work while the others stand by,
// agreed on by a Lease as with kube-scheduler and kube-controller-manager: same
// Lease, same flags, same defaults, so that Berth's parts can stand by beside
// upstream's and take over from them.
//
// A replica works only while nobody else can: its work is told to end when a
// renewal was tried in vain for the renew deadline, well before the Lease ends,
// and the Lease is given away after the work has ended, never before. The
// package knows nothing of the work.
package lead
