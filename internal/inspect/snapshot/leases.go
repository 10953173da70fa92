package snapshot

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/internal/kube/connect"
)

// Leases lists the Leases that schedulers may hold: all but those of nodes.
func Leases(ctx context.Context, client kubernetes.Interface) (leases []*coordinationv1.Lease, err error) {
	list, err := client.CoordinationV1().Leases(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "metadata.namespace!=" + v1.NamespaceNodeLease})
	if err != nil {
		return nil, connect.Reach(err)
	}
	for i := range list.Items {
		leases = append(leases, &list.Items[i])
	}
	return leases, nil
}
