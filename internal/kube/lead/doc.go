// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package lead elects one of several replicas to work, with the rest on standby, using a Lease like
// kube-scheduler and kube-controller-manager: same Lease, same flags, same defaults, so that
// Berth's components can run on standby for upstream's and take over from them.
//
// A replica works only while no other one can. Its work is cancelled when renewing has failed for
// the renew deadline, well before the Lease expires, and the Lease is released after the work has
// ended, never before. The package is independent of the work.
package lead
