package nodehealth_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/nodehealth"
)

// TestWatchBehindOwnWriteIsIgnored answers the write of a taint that evicts
// before the watch shows what was before: the node must not look as if somebody
// had taken the taint off.
func TestWatchBehindOwnWriteIsIgnored(t *testing.T) {
	core, now := nodehealth.New(nodehealth.Defaults()), begin
	core.Step(now, nodehealth.NodesListing{})
	node := nodehealth.Node{Name: "n", UID: "n", ResourceVersion: "9", Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionFalse}}}
	other := nodehealth.Node{Name: "o", UID: "o", ResourceVersion: "9", Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}}
	actions := core.Step(now, nodehealth.NodeSeen{Node: node})
	core.Step(now, nodehealth.NodeSeen{Node: other})
	core.Step(now, nodehealth.NodesListed{})
	core.Step(now, nodehealth.LeasesListed{})

	answer := func(version string) []nodehealth.Action {
		write := actions[len(actions)-1].(nodehealth.WriteNode)
		written := node
		written.Taints, written.ResourceVersion = write.Taints, version
		return core.Step(now, nodehealth.Answered{Ticket: write.Ticket, Node: &written})
	}
	actions = answer("10") // NoSchedule; its turn for NoExecute has come
	now = now.Add(time.Second)
	if more := core.Step(now, nodehealth.Tick{}); len(more) > 0 {
		actions = more
	}
	actions = answer("11")
	if len(actions) > 0 {
		t.Fatalf("still to do: %v", actions)
	}
	for _, late := range []string{"9", "10"} {
		node.ResourceVersion = late
		if actions := core.Step(now, nodehealth.NodeSeen{Node: node}); len(actions) > 0 {
			t.Errorf("version %s, late, made it %v", late, actions)
		}
	}
	if z := core.Zones(); z[0].Evictions != 1 {
		t.Errorf("%d evictions counted, want 1", z[0].Evictions)
	}
}
