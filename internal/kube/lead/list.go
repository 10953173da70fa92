package lead

import (
	"context"

	v1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
)

// List lists the Leases of a cluster by which leaders may be elected: all but those of nodes, of
// which a large cluster has thousands.
func List(ctx context.Context, leases coordinationv1.LeasesGetter) (all []*v1.Lease, err error) {
	list, err := leases.Leases(metav1.NamespaceAll).List(ctx,
		metav1.ListOptions{FieldSelector: "metadata.namespace!=" + corev1.NamespaceNodeLease})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all, nil
}
