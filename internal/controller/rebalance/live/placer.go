package live

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

// The Lease by which kube-scheduler elects its leader, and Berth's scheduler where it takes its
// place.
const (
	leaderNamespace = metav1.NamespaceSystem
	leaderName      = "kube-scheduler"
)

// leadsFor is how long a leader counts as such after it has renewed its Lease: more than any lease
// duration in use (kube-scheduler's default is 15 s), and clocks may differ.
const leadsFor = time.Minute

// otherPlacer says which program places the pods of these profiles if it is not Berth, or "". It is
// known by who renews the Lease of the leader; Berth's scheduler says that it is Berth's, whatever
// the program is called. Without a Lease, as where no leader is elected, or without the permission
// to read it, nothing is said.
//
// It matters because only Berth's scheduler reads the Lease by which room is kept. Managed fields
// tell more than the holder identity, which is a host name: they name the program that wrote
// renewTime.
func otherPlacer(ctx context.Context, client kubernetes.Interface, profiles []*plugins.Profile) string {
	if !slices.ContainsFunc(profiles, func(p *plugins.Profile) bool { return p.SchedulerName == v1.DefaultSchedulerName }) {
		return "" // those that Berth places beside kube-scheduler are led by another Lease
	}
	ctx, cancel := context.WithTimeout(ctx, roomWithin)
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
