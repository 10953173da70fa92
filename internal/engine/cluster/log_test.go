// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestTheLogKeepsLittleOfLargePods verifies that the log retains at most a few megabytes of classes
// of deleted pods, even if these are large, and that a reader not far behind misses no change.
func TestTheLogKeepsLittleOfLargePods(t *testing.T) {
	c := New()
	c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}})
	var words []string
	for i := range 5000 { // pods of 100 KB each
		words = append(words, fmt.Sprintf("a-word-of-18-%05d", i))
	}
	pod := func(i int) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: types.UID(fmt.Sprint(i)), Labels: map[string]string{"i": fmt.Sprint(i)}},
			Spec: v1.PodSpec{NodeName: "n", Affinity: &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{
					MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: words}},
				}}},
			}}}}
	}
	for i := range 300 {
		before := c.Log.Len()
		c.SetPod(pod(i))
		c.RemovePod(types.UID(fmt.Sprint(i)))
		if changes, known := c.Log.Since(before); !known || len(changes) != 2 || changes[0].Kind != PodAdded || changes[1].Kind != PodRemoved {
			t.Fatalf("pod %d: %v, %v", i, changes, known)
		}
	}
	kept := 0
	for _, change := range c.Log.entries {
		if change.Class != nil {
			kept += change.Class.Bulk
		}
	}
	if kept > 9<<20 || kept < 1<<20 {
		t.Errorf("the log keeps specs of %d KiB", kept>>10)
	}
	if _, known := c.Log.Since(0); known {
		t.Error("the oldest changes are still there")
	}
	before, bulk := c.Log.Len(), c.Log.bulk
	c.SetPod(pod(-1))
	c.Log.Rewind(before)
	if c.Log.Len() != before || c.Log.bulk != bulk {
		t.Errorf("after a step back the log is at %d with %d bytes, want %d with %d", c.Log.Len(), c.Log.bulk, before, bulk)
	}
}

// TestTheLogKeepsAboutAsMuchAtAnyTime verifies that the number of retained changes varies little
// over time, although the oldest changes are dropped at intervals.
func TestTheLogKeepsAboutAsMuchAtAnyTime(t *testing.T) {
	var log Log
	for i := range 5 * leastKept {
		log.add(Change{Node: int32(i)}, 1)
		if n := len(log.entries); i > leastKept && (n < leastKept || n > leastKept+leastKept/8) {
			t.Fatalf("after %d changes there are %d", i, n)
		}
	}
}
