// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package claimcontrollers

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// longestGrace bounds grace periods. Some grace periods have more seconds than a Duration holds,
// and would become negative by overflow.
const longestGrace = 10 * 365 * 24 * time.Hour

// GraceOf returns the time a pod takes to terminate. This is its whole grace period, 30 seconds by
// default, because an earlier end cannot be predicted.
func GraceOf(p *v1.Pod) time.Duration {
	seconds := ptr.Deref(p.Spec.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds)
	return time.Duration(min(seconds, int64(longestGrace/time.Second))) * time.Second
}
