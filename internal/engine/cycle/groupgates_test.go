package cycle_test

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestAGangWithoutItsGateIsABasicGroup: minCount means nothing then, for the condition either.
func TestAGangWithoutItsGateIsABasicGroup(t *testing.T) {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true}})
	if err != nil {
		t.Fatal(err)
	}
	core.Step(begin, Follows{})
	core.Step(begin, Led{})
	core.Step(begin, Seen{Nodes, aNode("n", "4")})
	core.Step(begin, Seen{PodGroups, gangOf("g", 3)})
	p := aPod("a", "1")
	p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
	core.Step(begin, Seen{Pods, p})
	said := metav1.ConditionUnknown
	for _, action := range core.Step(begin, Tick{}) {
		if bind, is := action.(Bind); is {
			for _, action := range core.Step(begin, Answered{Ticket: bind.Ticket}) {
				if a, is := action.(WriteGroup); is {
					said = a.Condition.Status
				}
			}
		}
	}
	if said != metav1.ConditionTrue {
		t.Errorf("the group is said to be scheduled: %s", said)
	}
}

// TestAGroupWithoutPodsOnNodesWakesNobody: it changes nothing about which pods may be preempted.
func TestAGroupWithoutPodsOnNodesWakesNobody(t *testing.T) {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true, Gang: true, Preemption: true}})
	if err != nil {
		t.Fatal(err)
	}
	core.Step(begin, Follows{})
	core.Step(begin, Led{})
	core.Step(begin, Seen{Nodes, aNode("n", "4")})
	p := aPod("waits", "8")
	core.Step(begin, Seen{Pods, p})
	core.Step(begin, Tick{})
	for i := range 10 {
		now := begin.Add(time.Duration(i+1) * time.Minute / 10)
		g := gangOf(fmt.Sprint("g", i), 2)
		g.Spec.DisruptionMode = asOne()
		core.Step(now, Seen{PodGroups, g})
		core.Step(now, Tick{})
	}
	if n := core.View().Queue.Get(p.UID).Attempts; n != 1 {
		t.Errorf("the pod was tried %d times", n)
	}
}
