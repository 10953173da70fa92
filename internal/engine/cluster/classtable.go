package cluster

import (
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
	byKey  Set[PodClass]
	next   int32 // the ID of the next class; IDs are never reused
	kept   int   // how many were left when classes were last dropped
	bulk   int   // of those that came since
	left   int   // how many lost their last pod since
	shares shares
}

// classOf returns the class of a pod, and makes it if there is none. It costs a digest of the pod;
// a pod of a known class costs no more than that.
func (t *classTable) classOf(pod *v1.Pod) *PodClass {
	key, needs := classDigest(pod)
	if class := t.at(key); class != nil {
		return class
	}
	class := newPodClass(pod, key, needs, &t.shares)
	class.ID = t.next
	t.next++
	if t.byKey.Len() >= worthDropping(t.kept) || t.bulk >= MostBulk {
		t.dropUnused()
	}
	t.byKey.Add(ShortHash(key[0]), class)
	t.bulk += class.Bulk
	return class
}

// at returns the class of that key, or nil.
func (t *classTable) at(key digest) *PodClass {
	return t.byKey.Find(ShortHash(key[0]), func(class *PodClass) bool { return class.key == key })
}

// addPod counts a placed pod of the class.
func (t *classTable) addPod(class *PodClass) {
	if class.pods++; class.pods > 1 {
		return
	}
	if known := t.at(class.key); known != class { // it was dropped
		if known != nil {
			t.byKey.Remove(ShortHash(class.key[0]), func(c *PodClass) bool { return c == known })
		}
		t.byKey.Add(ShortHash(class.key[0]), class)
	}
}

// removePod is its counterpart. Where many classes have lost their last pod, they must not stay
// until new classes come.
func (t *classTable) removePod(class *PodClass) {
	if class.pods--; class.pods > 0 {
		return
	}
	const few = 1 << 10 // they often come again
	if t.left++; t.left >= few+t.byKey.Len()/2 {
		t.dropUnused()
	}
}

// dropUnused forgets the classes without pods.
func (t *classTable) dropUnused() {
	t.byKey.DeleteFunc(func(class *PodClass) bool { return class.pods == 0 })
	t.kept, t.bulk, t.left = t.byKey.Len(), 0, 0
}

// dropLarge forgets the large ones of the classes without pods.
func (t *classTable) dropLarge() {
	t.byKey.DeleteFunc(func(class *PodClass) bool { return class.pods == 0 && class.Bulk > 0 })
	t.bulk = 0
}

// worthDropping is the number of entries from which a search for unused ones pays off, given how
// many the last search left.
func worthDropping(kept int) int {
	const few = 32
	return kept + kept/8 + few
}
