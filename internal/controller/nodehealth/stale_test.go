// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/response"
)

// TestWatchBehindOwnWriteIsIgnored verifies that if the watch delivers an older state after the
// response to the write of an evicting taint, the taint does not count as removed by another
// client.
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
	actions = answer("10") // the NoSchedule taint is written; the NoExecute taint is next
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

// readyNode returns a core with a healthy node and its Lease.
func readyNode(now time.Time) *nodehealth.Core {
	core := nodehealth.New(nodehealth.Defaults())
	core.Step(now, nodehealth.NodesListing{})
	ready := []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
	core.Step(now, nodehealth.NodeSeen{Node: nodehealth.Node{Name: "n", UID: "n", ResourceVersion: "9", Conditions: ready}})
	core.Step(now, nodehealth.NodesListed{})
	core.Step(now, nodehealth.LeaseSeen{Name: "n", ResourceVersion: "20", Renewed: now})
	core.Step(now, nodehealth.LeasesListed{})
	return core
}

// TestOlderLeaseIsNoSignOfLife verifies that old versions of a Lease are no signs of life. They may
// be delivered by outdated lists, for example of a newly started API server.
func TestOlderLeaseIsNoSignOfLife(t *testing.T) {
	now := begin
	core := readyNode(now)
	for i := range 6 {
		now = now.Add(10 * time.Second)
		version, renewed := "19", begin.Add(-10*time.Second)
		if i%2 == 1 {
			version, renewed = "20", begin
		}
		core.Step(now, nodehealth.LeaseSeen{Name: "n", ResourceVersion: version, Renewed: renewed})
		core.Step(now, nodehealth.Tick{})
	}
	if z := core.Zones(); z[0].Unhealthy != 1 {
		t.Error("a node that has been silent for a minute counts as well")
	}
}

// TestNewNodeHasItsGraceWhateverTheClock verifies that a new node has the usual time to report,
// even if its creation time is ten minutes in the past because the API server's clock is behind.
func TestNewNodeHasItsGraceWhateverTheClock(t *testing.T) {
	now := begin
	core := readyNode(now)
	core.Step(now, nodehealth.NodeSeen{Node: nodehealth.Node{Name: "new", UID: "new", ResourceVersion: "30", Created: now.Add(-10 * time.Minute)}})
	written := func(wait time.Duration) bool {
		for _, action := range core.Step(begin.Add(wait), nodehealth.Tick{}) {
			if w, ok := action.(nodehealth.WriteStatus); ok && w.Node == "new" {
				return true
			}
		}
		return false
	}
	if written(55 * time.Second) {
		t.Error("unknown before its grace of 60 s was over")
	}
	if !written(65 * time.Second) {
		t.Error("not unknown after its grace of 60 s")
	}
}

// TestLeasesCountAfterARestore verifies that renewals are signs of life after the API server is
// restored from a backup, which makes resource versions start over from a smaller number.
func TestLeasesCountAfterARestore(t *testing.T) {
	now := begin
	core := readyNode(now)
	core.Step(now, nodehealth.LeaseSeen{Name: "n", ResourceVersion: "5", Renewed: begin.Add(-time.Hour)})
	for i := range 12 {
		now = now.Add(10 * time.Second)
		core.Step(now, nodehealth.LeaseSeen{Name: "n", ResourceVersion: fmt.Sprint(6 + i), Renewed: now})
		core.Step(now, nodehealth.Tick{})
		if z := core.Zones(); z[0].Unhealthy != 0 {
			t.Fatalf("silent after %v, though it renews its lease", now.Sub(begin))
		}
	}
}

// TestPodsStayReadyWhenTheirNodeIsBack verifies that a failed marking of a silent node's pods is
// not retried if the node has recovered in the meantime.
func TestPodsStayReadyWhenTheirNodeIsBack(t *testing.T) {
	core, now := readyNode(begin), begin.Add(time.Minute)
	node := nodehealth.Node{Name: "n", UID: "n"}
	marks, version := []nodehealth.MarkPods(nil), 30
	var carryOut func(actions []nodehealth.Action)
	answer := func(ticket response.Ticket) {
		version++
		node.ResourceVersion = fmt.Sprint(version)
		written := node
		carryOut(core.Step(now, nodehealth.Answered{Ticket: ticket, Node: &written}))
	}
	carryOut = func(actions []nodehealth.Action) {
		for _, action := range actions {
			switch a := action.(type) {
			case nodehealth.WriteStatus:
				node.Conditions = a.Conditions
				answer(a.Ticket)
			case nodehealth.WriteNode:
				node.Taints = a.Taints
				answer(a.Ticket)
			case nodehealth.MarkPods:
				marks = append(marks, a)
			}
		}
	}
	carryOut(core.Step(now, nodehealth.Tick{}))
	if len(marks) != 1 {
		t.Fatalf("marked %d times, want once", len(marks))
	}
	version++
	node.ResourceVersion = fmt.Sprint(version)
	node.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(now)}}
	carryOut(core.Step(now, nodehealth.NodeSeen{Node: node}))
	carryOut(core.Step(now, nodehealth.Answered{Ticket: marks[0].Ticket, Outcome: response.Failed}))
	now = now.Add(time.Second)
	carryOut(core.Step(now, nodehealth.Tick{}))
	if len(marks) != 1 {
		t.Error("the pods of a node that is ready are marked NotReady")
	}
}

// TestReplacedNodeIsNotWrittenBeforeItIsSeen verifies that if a write finds another node of the
// same name, no further writes are sent until the watch delivers that node, because they would be
// refused as well.
func TestReplacedNodeIsNotWrittenBeforeItIsSeen(t *testing.T) {
	core := nodehealth.New(nodehealth.Defaults())
	node := nodehealth.Node{Name: "n", UID: "n", ResourceVersion: "9", Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionFalse}}}
	actions := core.Step(begin, nodehealth.NodeSeen{Node: node})
	write := actions[len(actions)-1].(nodehealth.WriteNode)
	node.UID, node.ResourceVersion = "other", "10"
	if more := core.Step(begin, nodehealth.Answered{Ticket: write.Ticket, Outcome: response.Conflict, Node: &node}); len(more) > 0 {
		t.Errorf("writes again: %v", more)
	}
	if more := core.Step(begin.Add(time.Second), nodehealth.NodeSeen{Node: node}); len(more) != 1 {
		t.Errorf("the node that is there now: %v, want its taint", more)
	}
}

// TestMarkingPodsDoesNotHoldUpTheNode verifies that if a node recovers while its pods are being
// marked, its taints are removed immediately, although the marking may take minutes.
func TestMarkingPodsDoesNotHoldUpTheNode(t *testing.T) {
	core, now := readyNode(begin), begin.Add(time.Minute)
	node := nodehealth.Node{Name: "n", UID: "n", ResourceVersion: "30"}
	only := func(actions []nodehealth.Action) nodehealth.Action {
		t.Helper()
		if len(actions) == 0 {
			t.Fatal("nothing is done")
		}
		return actions[len(actions)-1]
	}
	status := only(core.Step(now, nodehealth.Tick{})).(nodehealth.WriteStatus)
	node.Conditions = status.Conditions
	written := node
	write := only(core.Step(now, nodehealth.Answered{Ticket: status.Ticket, Node: &written})).(nodehealth.WriteNode)
	node.Taints, node.ResourceVersion = write.Taints, "31"
	tainted := node
	marks := only(core.Step(now, nodehealth.Answered{Ticket: write.Ticket, Node: &tainted})).(nodehealth.MarkPods)

	node.ResourceVersion = "32"
	node.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, LastHeartbeatTime: metav1.NewTime(now)}}
	write = only(core.Step(now, nodehealth.NodeSeen{Node: node})).(nodehealth.WriteNode)
	if len(write.Taints) > 0 {
		t.Errorf("it keeps %v", write.Taints)
	}
	if more := core.Step(now, nodehealth.Answered{Ticket: marks.Ticket}); len(more) > 0 {
		t.Errorf("written twice at once: %v", more)
	}
}

// TestMarkingEndsWhenTheNodeIsBack verifies that the marking of a recovered node's pods is stopped
// exactly once, although the node is also written meanwhile.
func TestMarkingEndsWhenTheNodeIsBack(t *testing.T) {
	options := nodehealth.Defaults()
	c := newCluster(options)
	for _, name := range []string{"a-1", "a-2", "a-3", "a-4"} {
		c.add(name, "a")
	}
	var marks, stops []response.Ticket
	c.process.Observe = func(_ nodehealth.Event, actions []nodehealth.Action) {
		for _, action := range actions {
			switch a := action.(type) {
			case nodehealth.MarkPods:
				marks = append(marks, a.Ticket)
			case nodehealth.StopMarking:
				stops = append(stops, a.Ticket)
			}
		}
	}
	c.Run(time.Minute)
	c.silence("a", 1)
	c.marks = 30 * time.Second
	c.Run(time.Minute)
	if len(marks) != 1 || len(stops) != 0 {
		t.Fatalf("marked %v, stopped %v, want one marking", marks, stops)
	}
	c.speak()
	c.Run(15 * time.Second)
	if !slices.Equal(stops, marks) {
		t.Errorf("marked %v, stopped %v, want that one stopped", marks, stops)
	}
	c.Run(time.Minute)
	if len(marks) != 1 || len(stops) != 1 {
		t.Errorf("marked %v, stopped %v after the node was back", marks, stops)
	}
}
