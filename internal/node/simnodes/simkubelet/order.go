// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"cmp"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// inOrder returns pods in the order of a kubelet after a restart: started pods first, since they
// are not admitted again, then by age. The result is new, so that pods may be added and removed
// during an iteration.
func inOrder(pods map[types.UID]*pod) []*pod {
	return slices.SortedFunc(maps.Values(pods), func(a, b *pod) int { return olderFirst(a.object, b.object) })
}

// olderFirst compares two pods for inOrder. The order is total and thus reproducible.
func olderFirst(a, b *v1.Pod) int {
	if started := a.Status.StartTime != nil; started != (b.Status.StartTime != nil) {
		if started {
			return -1
		}
		return 1
	}
	return cmp.Or(
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
	)
}

// isNewer compares versions of one object. Incomparable versions count as newer, since the watch is
// in order. A watch event and the response to a write of the same object can arrive in either
// order.
func isNewer(is, than string) bool {
	order, err := resourceversion.CompareResourceVersion(is, than)
	return err != nil || order > 0
}

// olderThan reports whether a list at this version is recent enough to include the object at its
// version. If the versions are incomparable, it returns false: an object is not considered deleted
// without proof.
func olderThan(object, list string) bool {
	order, err := resourceversion.CompareResourceVersion(object, list)
	return err == nil && order <= 0
}
