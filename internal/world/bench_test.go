// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package world_test

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/world"
)

// large returns 5,000 nodes, and 50,000 pods of 500 ReplicaSets on them.
func large() (list []metav1.Object) {
	for i := range 5000 {
		list = append(list, node(fmt.Sprint("n", i), 0))
	}
	yes := true
	for app := range 500 {
		name := fmt.Sprint("a", app)
		set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
		list = append(list, set)
		for i := range 100 {
			p := pod(fmt.Sprint(name, "-", i), "ns", types.UID(fmt.Sprint(name, "/", i)), fmt.Sprint("n", (app*100+i)%5000))
			p.Labels = map[string]string{"app": name}
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name, UID: set.UID, Controller: &yes}}
			list = append(list, p)
		}
	}
	return list
}

// BenchmarkOpen measures opening a world and building its cluster.
func BenchmarkOpen(b *testing.B) {
	list := large()
	for b.Loop() {
		world.Open(list).Cluster()
	}
}

// BenchmarkFork measures forking a world after 5,000 pods were moved.
func BenchmarkFork(b *testing.B) {
	w := world.Open(large())
	moveAll(w, 2)
	for b.Loop() {
		w.Fork()
	}
}

// BenchmarkUndo measures moving 100 pods and undoing the moves.
func BenchmarkUndo(b *testing.B) {
	w := world.Open(large())
	w.Cluster()
	for b.Loop() {
		mark := w.Mark()
		moveAll(w, 50)
		w.Undo(mark)
	}
}

// moveAll moves one or two pods from every n-th node to the next node.
func moveAll(w *world.World, every int) {
	c := w.Cluster()
	for i := 0; i+1 < len(c.Nodes); i += every {
		for range min(len(c.Nodes[i].Pods), max(1, 4/every)) {
			p := c.Nodes[i].Pods[0]
			object, _ := world.Get[*v1.Pod](w, p.Namespace(), p.Name())
			w.Remove(p)
			w.Place(object, p, c.Nodes[i+1])
		}
	}
}
