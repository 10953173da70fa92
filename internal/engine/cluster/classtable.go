// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	v1 "k8s.io/api/core/v1"
)

// classTable holds the classes of the pods seen so far, by digest.
//
// Identical pods get the class in the table, so data cached for a class is valid for all of them. A
// class without placed pods is kept for a while, since such pods often recur. Classes are dropped
// in bulk: when the classes added since the last cleanup exceed an eighth of the classes it kept,
// when the added classes are too large in total, or when many classes have lost their last pod. A
// dropped class remains valid for its holders, and returns to the table if one of its pods is
// placed. In between, identical pods may have received a new class, which costs memory and work but
// changes no decision.
type classTable struct {
	byKey  Set[PodClass]
	next   int32 // the ID of the next class; IDs are never reused
	kept   int   // the number of classes after the last cleanup
	bulk   int   // total bulk of the classes added since the last cleanup
	left   int   // number of classes that have lost their last pod since the last cleanup
	shares shares
}

// classOf returns the class of a pod, and creates it if necessary. For a known class, it costs only
// a digest of the pod.
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

// at returns the class with that key, or nil.
func (t *classTable) at(key digest) *PodClass {
	return t.byKey.Find(ShortHash(key[0]), func(class *PodClass) bool { return class.key == key })
}

// addPod counts a placed pod of the class.
func (t *classTable) addPod(class *PodClass) {
	if class.pods++; class.pods > 1 {
		return
	}
	if known := t.at(class.key); known != class { // the class was dropped
		if known != nil {
			t.byKey.Remove(ShortHash(class.key[0]), func(c *PodClass) bool { return c == known })
		}
		t.byKey.Add(ShortHash(class.key[0]), class)
	}
}

// removePod subtracts a pod from the count of its class. If many classes have lost their last pod,
// removePod drops them without waiting for new classes.
func (t *classTable) removePod(class *PodClass) {
	if class.pods--; class.pods > 0 {
		return
	}
	const few = 1 << 10 // classes without pods are often needed again
	if t.left++; t.left >= few+t.byKey.Len()/2 {
		t.dropUnused()
	}
}

// dropUnused drops the classes without pods.
func (t *classTable) dropUnused() {
	t.byKey.DeleteFunc(func(class *PodClass) bool { return class.pods == 0 })
	t.kept, t.bulk, t.left = t.byKey.Len(), 0, 0
}

// dropLarge drops the large classes without pods.
func (t *classTable) dropLarge() {
	t.byKey.DeleteFunc(func(class *PodClass) bool { return class.pods == 0 && class.Bulk > 0 })
	t.bulk = 0
}

// worthDropping returns the number of entries at which a search for unused entries pays off, given
// the number kept by the last search.
func worthDropping(kept int) int {
	const few = 32
	return kept + kept/8 + few
}
