// Package lead elects one of several replicas to work while the others stand by, with a Lease as
// kube-scheduler and kube-controller-manager use it: same Lease, same flags, same defaults, so that
// Berth's components can stand by beside upstream's and take over from them.
//
// A replica works only while no other one can. Its work is cancelled when renewing has failed for
// the renew deadline, well before the Lease expires, and the Lease is released after the work has
// ended, never before. The package knows nothing about the work.
package lead
