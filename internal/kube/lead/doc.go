// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package lead elects one of several replicas to work, while the others stand by. It uses the same
// Lease, flags and defaults as kube-scheduler and kube-controller-manager, so that a component of
// Berth can stand by for an upstream component, and take over from it.
//
// A replica works only while no other replica can lead. Its work is cancelled when renewals have
// failed for the renew deadline, well before the Lease expires. The Lease is released only after
// the work has ended.
package lead
