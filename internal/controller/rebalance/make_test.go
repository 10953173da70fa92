// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"maps"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	objects "github.com/berth-k8s/berth/internal/world"
)

// TestSiblingsOfAPinnedPodArePinned verifies that pinPods also pins the siblings of a pod, because
// one of them would only take its place.
func TestSiblingsOfAPinnedPodArePinned(t *testing.T) {
	state := &State{World: objects.Open(nil)}
	for uid, owner := range map[types.UID]types.UID{"a-1": "a", "a-2": "a", "b-1": "b", "b-2": "b", "alone": ""} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: string(uid), UID: uid}}
		if owner != "" {
			pod.OwnerReferences = []metav1.OwnerReference{{UID: owner, Controller: new(true)}}
		}
		state.World.Put(pod)
	}

	pinned := map[types.UID]bool{"b-1": true}
	pinPods(state, []types.UID{"a-2", "alone"}, pinned)
	if got := slices.Sorted(maps.Keys(pinned)); !slices.Equal(got, []types.UID{"a-1", "a-2", "alone", "b-1"}) {
		t.Errorf("pinned are %v", got)
	}
}
