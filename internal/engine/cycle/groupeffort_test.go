package cycle

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestAGroupOfTwoSizesIsNotDecidedAgainAndAgain: on full nodes, one member of each size is looked
// at in each pass, not all of them in turn; and once it is known which pods leave, the members are
// not all placed anew for each pod that might stay, if there is not so much room.
func TestAGroupOfTwoSizesIsNotDecidedAgainAndAgain(t *testing.T) {
	const nodes, members = 100, 200
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Seed: 1, Groups: groups.Gates{Generic: true, Gang: true}})
	if err != nil {
		t.Fatal(err)
	}
	core.Step(churnBegins, Follows{})
	core.Step(churnBegins, Led{})
	for i := range nodes {
		n := churnNode(fmt.Sprint("n", i), "4")
		core.Step(churnBegins, Seen{Nodes, n})
		for k := range 4 {
			p := churnPod(fmt.Sprintf("low-%d-%d", i, k), "1")
			p.Spec.NodeName = n.Name
			core.Step(churnBegins, Seen{Pods, p})
		}
	}
	g := &groups.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "g", UID: "g"}}
	g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: members}
	core.Step(churnBegins, Seen{PodGroups, g})
	for i := range members {
		p := churnPod(fmt.Sprint("m", i), []string{"1", "500m"}[i%2])
		*p.Spec.Priority, p.Spec.SchedulingGroup = 10, &v1.PodSchedulingGroup{PodGroupName: new("g")}
		core.Step(churnBegins, Seen{Pods, p})
	}
	a, foreign := core.attempts.newGroup(core.groups.Get(cluster.Name{Namespace: "default", Name: "g"}), core.queue.Sorted())
	if foreign != nil || len(a.members) != members || a.need != members {
		t.Fatal(foreign, len(a.members), a.need)
	}
	if err := a.decide(); err != nil || len(a.placed) > 0 {
		t.Fatal(err, len(a.placed))
	}
	if decisions := a.effort / costOfDecision; decisions > 40 {
		t.Errorf("%d decisions about members that fit nowhere", decisions)
	}
	plan := a.planRoom()
	if plan == nil || len(plan.places) != members || len(plan.victims) != members*3/4 {
		t.Fatalf("%+v", plan)
	}
	if decisions := a.effort / costOfDecision; decisions > 12*members {
		t.Errorf("what it took to plan is worth %d decisions", decisions)
	}
}
