// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func replicaSet(name string) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}
}

// TestATableDoesNotGrowWithWhatIsDropped verifies that a table does not grow with the workloads
// added and dropped over time, and that callers iterating over it meanwhile see the remaining
// workloads.
func TestATableDoesNotGrowWithWhatIsDropped(t *testing.T) {
	var table Table
	for _, name := range []string{"first", "kept", "last"} {
		table.Put(replicaSet(name))
	}
	var listed []string
	for l := range table.All() {
		listed = append(listed, l.Object.GetName())
		for i := range 1000 {
			old := replicaSet(fmt.Sprint("web-", i))
			table.Put(old)
			table.Drop(Of(old))
		}
		table.Drop(Of(replicaSet("last")))
	}

	if len(listed) != 2 || listed[0] != "first" || listed[1] != "kept" {
		t.Errorf("listed %q, want first and kept", listed)
	}
	if len(table.list) > 100 {
		t.Errorf("the table has %d places for 2 workloads", len(table.list))
	}
	if kept := Of(replicaSet("kept")); table.OwnedBy(kept.Owner()) == nil || table.OwnedBy(kept.Owner()).Object.GetName() != "kept" {
		t.Error("a workload that stayed is not found any more")
	}
}
