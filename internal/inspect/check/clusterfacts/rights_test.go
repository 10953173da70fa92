// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package clusterfacts

import (
	"context"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/berth-k8s/berth/deploy"
)

// TestRightsOfALease verifies that the configuration renames only the leader election Lease; the
// rebalance controller's Lease, which shows rooms to keep, keeps its name.
func TestRightsOfALease(t *testing.T) {
	none := func(context.Context, *authorizationv1.ResourceAttributes) (bool, error) { return false, nil }
	leases := func(lease string) []string {
		denied, err := Denied(t.Context(), none, deploy.Scheduler, "v1.37.2", lease)
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(denied, func(right string) bool { return !strings.Contains(right, " leases.") })
	}
	for lease, want := range map[string][]string{
		"": {"get leases.coordination.k8s.io berth-scheduler in berth-system", "list leases.coordination.k8s.io berth-rebalance in kube-system"},
		"kube-system/kube-scheduler": {
			"get leases.coordination.k8s.io kube-scheduler in kube-system", "list leases.coordination.k8s.io berth-rebalance in kube-system",
		},
	} {
		asked := leases(lease)
		for _, right := range want {
			if !slices.Contains(asked, right) {
				t.Errorf("Lease %q: %q is not asked, but %q", lease, right, asked)
			}
		}
		for _, right := range asked {
			if strings.HasPrefix(right, "list") && !strings.Contains(right, "berth-rebalance") {
				t.Errorf("Lease %q: %q is asked", lease, right)
			}
		}
	}
}

// TestRightsByVersion verifies that DeviceTaintRules, absent from Kubernetes' roles before v1.37,
// are not reported as missing there.
func TestRightsByVersion(t *testing.T) {
	for version, want := range map[string]bool{"v1.35.4": false, "v1.36.3": false, "v1.37.2": true, "unknown": true} {
		asked := false
		_, err := Denied(t.Context(), func(_ context.Context, a *authorizationv1.ResourceAttributes) (bool, error) {
			if a.Resource == "devicetaintrules" && a.Verb == "list" {
				asked = true
			}
			return true, nil
		}, deploy.Scheduler, version, "")
		if err != nil || asked != want {
			t.Errorf("%s: DeviceTaintRules are asked about: %t, %v", version, asked, err)
		}
	}
}
