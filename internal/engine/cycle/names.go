// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// nameOf returns the key of an object in the cluster model's tables; for a cluster-scoped object,
// the namespace is empty.
func nameOf(object metav1.Object) cluster.Name {
	return cluster.Name{Namespace: object.GetNamespace(), Name: object.GetName()}
}

// compareNames orders by namespace, then by name.
func compareNames(a, b cluster.Name) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// sameVersion reports whether a and b are the same version of the same object. It returns false for
// objects without a resource version.
func sameVersion(a, b metav1.Object) bool {
	return a.GetUID() == b.GetUID() && a.GetResourceVersion() == b.GetResourceVersion() && a.GetResourceVersion() != ""
}

// podName returns a pod's name in messages and printed actions.
func podName(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name }
