// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package lead

import (
	"context"
	"os"
	"strings"

	v1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/berth-k8s/berth/deploy"
)

// NamespaceFile holds the namespace of this process's pod.
const NamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// Trusted returns the Leases that are trusted to announce a scheduler's configuration, each as
// NAMESPACE/NAME, or as NAMESPACE for all Leases in it: kube-system, Berth's namespace, the given
// ones, and the namespace of this process's pod.
func Trusted(named ...string) []string {
	all := append([]string{metav1.NamespaceSystem, deploy.Namespace}, named...)
	if own, err := os.ReadFile(NamespaceFile); err == nil {
		all = append(all, strings.TrimSpace(string(own)))
	}
	return all
}

// List returns the Leases that may be used for leader election: all Leases except for those in
// kube-node-lease, which has a Lease for every node.
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
