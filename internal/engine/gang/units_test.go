// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// TestUnitsAreAsImportantAsUpstreamHasThem verifies the order of units. A unit has the priority of
// its group. Among units of equal priority, units below a composite disrupted as a whole precede
// other groups, which precede lone pods. Remaining ties are broken by size, then by running time.
func TestUnitsAreAsImportantAsUpstreamHasThem(t *testing.T) {
	c, all := cluster.New(), groups.New()
	all.Nested = true
	c.SetNode(newNode("n", "64"))

	root := &groups.CompositePodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: "root", UID: "root"}}
	root.Spec.Priority = new(int32(10))
	root.Spec.DisruptionMode = &schedulingv1alpha3.CompositeDisruptionMode{All: &schedulingv1alpha3.AllCompositeDisruptionMode{}}
	all.SetComposite(root)
	for name, priority := range map[string]int32{"below": 0, "beside": 10, "important": 20} {
		g := &groups.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceDefault, Name: name, UID: types.UID(name)}}
		g.Spec.Priority = &priority
		if name == "below" {
			g.Spec.ParentCompositePodGroupName = &root.Name
		}
		all.SetObject(g)
	}

	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	unit := func(group string, minutes ...int) (unit []*cluster.Pod) {
		for _, after := range minutes {
			p := newPod(fmt.Sprintf("%s-%d-%d", group, 99-after, len(unit)), "1", 10)
			p.Status.StartTime = &metav1.Time{Time: begin.Add(time.Duration(after) * time.Minute)}
			if group != "" {
				p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
			}
			all.SetPod(p, true)
			unit = append(unit, c.Pending(p))
		}
		return unit
	}
	want := [][]*cluster.Pod{
		unit("important", 5), unit("below", 4), unit("beside", 9, 9), unit("beside", 1), unit("beside", 3), unit("", 0), unit("", 2),
	}

	got := slices.Clone(want)
	slices.Reverse(got)
	units := Units{Cluster: c, Groups: all}
	slices.SortFunc(got, units.compareImportance)
	for i := range want {
		if got[i][0] != want[i][0] {
			t.Errorf("unit %d is that of %q, want %q", i, got[i][0].Name(), want[i][0].Name())
		}
	}
}
