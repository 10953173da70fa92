package kubelet

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// inOrder is the order in which a kubelet looks at pods that it finds: running ones first, since
// they are not admitted again, then by age. The result is new, so that pods may come and go while
// it is gone through.
func inOrder(pods map[types.UID]*pod) []*pod {
	list := make([]*pod, 0, len(pods))
	for _, p := range pods {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *pod) int { return olderFirst(a.object, b.object) })
	return list
}

// olderFirst compares two pods for inOrder; no two are equal, so that the order is the same each
// time.
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

// isNewer compares versions of one object. Versions that cannot be compared count as newer, since
// the watch is in order. A watch event and the answer to a write of the same object can arrive in
// either order.
func isNewer(is, than string) bool {
	order, err := resourceversion.CompareResourceVersion(is, than)
	return err != nil || order > 0
}

// olderThan reports whether a list at this version would include the object. If it is not known,
// the answer is no: an object is not taken for gone without proof.
func olderThan(object, list string) bool {
	order, err := resourceversion.CompareResourceVersion(object, list)
	return err == nil && order <= 0
}
