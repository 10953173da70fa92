// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// The leader-election Lease of kube-scheduler, also used by Berth's scheduler when it replaces
// kube-scheduler.
const (
	leaderNamespace = metav1.NamespaceSystem
	leaderName      = "kube-scheduler"
)

// leadsFor is the age of the last renewal up to which a leader counts as active. It exceeds any
// lease duration in use (kube-scheduler's default is 15 s), because clocks may differ.
const leadsFor = time.Minute

// otherPlacer returns the program that places the pods of these profiles, if it is not Berth, or
// "". The program is identified by the field manager that renews the leader-election Lease; Berth's
// field managers begin with "berth". otherPlacer returns "" without a Lease, as without leader
// election, or without the permission to read it.
//
// The program matters because only Berth's scheduler honors reservations. Managed fields are more
// precise than the holder identity, which is a host name: they name the program that wrote
// renewTime.
func otherPlacer(ctx context.Context, client kubernetes.Interface, profiles []*plugins.Profile) string {
	if !slices.ContainsFunc(profiles, func(p *plugins.Profile) bool { return p.SchedulerName == v1.DefaultSchedulerName }) {
		return "" // other scheduler names are served by Berth, with another Lease
	}
	ctx, cancel := context.WithTimeout(ctx, reserveWithin)
	defer cancel()
	lease, err := client.CoordinationV1().Leases(leaderNamespace).Get(ctx, leaderName, metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" ||
		lease.Spec.RenewTime == nil || time.Since(lease.Spec.RenewTime.Time) > leadsFor {
		return ""
	}
	for i := range lease.ManagedFields {
		f := &lease.ManagedFields[i]
		if f.FieldsV1 != nil && strings.Contains(f.FieldsV1.GetRawString(), `"f:renewTime"`) && !strings.HasPrefix(f.Manager, "berth") {
			return fmt.Sprintf("no room is kept for successors: %s places pods (by the Lease "+
				"%s/%s); each arrival is checked", f.Manager, leaderNamespace, leaderName)
		}
	}
	return ""
}
