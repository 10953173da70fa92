package cluster

import (
	"maps"

	v1 "k8s.io/api/core/v1"
)

// classTable has the classes of the pods that were seen, by what their pods share.
//
// Pods that are alike get the class that is in the table, so what is remembered of a class holds
// for all of them. A class without placed pods is kept for a while, since its like often come
// again, and dropped in bulk: when an eighth more have come than were left, when those that came
// are too large together, or when many have lost their last pod. A dropped class stays valid for
// whoever holds it, and placing a pod of it puts it back. Until then its like may have got a new
// class: that costs memory and work, and changes no decision.
type classTable struct {
	byKey  map[digest]*PodClass
	next   int32 // the ID of the next class; IDs are never reused
	most   int   // of byKey; see Shrunk
	kept   int   // how many were left when classes were last dropped
	bulk   int   // of those that came since
	left   int   // how many lost their last pod since
	shares shares
}

// classOf returns the class of a pod, and makes it if there is none. It costs a digest of the pod;
// a pod of a known class costs no more than that.
func (t *classTable) classOf(pod *v1.Pod) *PodClass {
	key, needs := classDigest(pod)
	if class, ok := t.byKey[key]; ok {
		return class
	}
	class := newPodClass(pod, key, needs, &t.shares)
	class.ID = t.next
	t.next++
	if len(t.byKey) >= worthDropping(t.kept) || t.bulk >= MostBulk {
		t.dropUnused()
	}
	t.byKey[key] = class
	t.bulk += class.Bulk
	return class
}

// addPod counts a placed pod of the class.
func (t *classTable) addPod(class *PodClass) {
	if class.pods++; class.pods == 1 {
		t.byKey[class.key] = class // it may have been dropped
	}
}

// removePod is its counterpart. Where many classes have lost their last pod, they must not stay
// until new classes come.
func (t *classTable) removePod(class *PodClass) {
	if class.pods--; class.pods > 0 {
		return
	}
	const few = 1 << 10 // they often come again
	if t.left++; t.left >= few+len(t.byKey)/2 {
		t.dropUnused()
	}
}

// dropUnused forgets the classes without pods.
func (t *classTable) dropUnused() {
	t.byKey = Shrunk(t.byKey, &t.most)
	maps.DeleteFunc(t.byKey, func(_ digest, class *PodClass) bool { return class.pods == 0 })
	t.byKey = Shrunk(t.byKey, &t.most)
	t.kept, t.bulk, t.left = len(t.byKey), 0, 0
}

// worthDropping is the number of entries from which a search for unused ones pays off, given how
// many the last search left.
func worthDropping(kept int) int {
	const few = 32
	return kept + kept/8 + few
}
