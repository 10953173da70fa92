// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package clusterfacts

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/check"
)

// TestLeadersByTheirLeases verifies that a Lease no longer renewed has no holder, and that Berth
// leads by the Lease with its own document.
func TestLeadersByTheirLeases(t *testing.T) {
	document := (&config.InUse{Kind: config.InUseKind}).OnLease("berth-1")
	for name, row := range map[string]struct {
		holder, document string
		age              time.Duration
		leads, stopped   bool
	}{
		"Berth leads":          {"berth-1", document, 0, true, false},
		"kube-scheduler leads": {"cp_1", document, 0, false, false},
		"Berth was killed":     {"berth-1", document, time.Hour, false, true},
		"Berth ended":          {"", document, time.Second, false, true},
	} {
		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-scheduler",
				Annotations: map[string]string{config.InUseAnnotation: row.document}},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &row.holder, RenewTime: &metav1.MicroTime{Time: time.Now().Add(-row.age)}},
		}
		r := &reader{client: fake.NewClientset(lease), facts: &check.Facts{Leases: map[string]string{}}}
		r.leases(t.Context())
		f := r.facts
		if f.BerthLeads != row.leads || (f.Leases[check.UpstreamLease] == "") != row.stopped || (len(f.Stopped) == 1) != row.stopped {
			t.Errorf("%s: Berth leads: %v, Leases %v, stopped %v", name, f.BerthLeads, f.Leases, f.Stopped)
		}
	}
}
