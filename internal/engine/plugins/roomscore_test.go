// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	config "k8s.io/kube-scheduler/config/v1"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// TestRoomScoreIsTheScore requires the fast path, which reads only a node's room, to compute the
// plugin's score.
func TestRoomScoreIsTheScore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := cluster.New()
		node := c.SetNode(&v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node"},
			Status: v1.NodeStatus{Allocatable: v1.ResourceList{
				v1.ResourceCPU:    *resource.NewMilliQuantity(rapid.Int64Range(0, 9000).Draw(t, "cpu"), resource.DecimalSI),
				v1.ResourceMemory: *resource.NewQuantity(rapid.Int64Range(0, 64<<30).Draw(t, "memory"), resource.BinarySI),
				"example.com/gpu": resource.MustParse("8"),
			}},
		})
		for i := range rapid.IntRange(0, 4).Draw(t, "placed") {
			placed := drawPod(t, fmt.Sprint("placed-", i))
			placed.Spec.NodeName = node.Name
			c.SetPod(placed)
		}
		pod, room := c.Pending(drawPod(t, "waiting")), &c.Rooms[node.Index]

		for _, scorer := range []RoomScorer{drawFit(t), drawBalanced(t)} {
			score, scoring := scorer.ScoreByRoom(c, pod), scorer.Score(c, pod, nil)
			if score.Skips != (scoring.Node == nil) {
				t.Errorf("%s: skips %t, scores %t", scorer.Name(), score.Skips, scoring.Node != nil)
			}
			if score.Skips || !score.Only {
				continue
			}
			want, _ := scoring.Node(node)
			if got := score.Score(room, score.CPU, score.Memory); got != want {
				t.Errorf("%s: by room %d, Score %d", scorer.Name(), got, want)
			}
			if len(pod.Class.Requests.Scalars) > 0 || score.Rule == NoRule {
				continue
			}
			if cpu, memory, skips := score.Rule.Amounts(pod.Class); cpu != score.CPU || memory != score.Memory || skips {
				t.Errorf("%s: by its rule %d and %d count, skips %t; by itself %d and %d", scorer.Name(), cpu, memory, skips, score.CPU, score.Memory)
			}
		}
	})
}

func drawPod(t *rapid.T, name string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	for i := range rapid.IntRange(1, 2).Draw(t, "containers") {
		requests := v1.ResourceList{}
		if rapid.Bool().Draw(t, "asks cpu") {
			requests[v1.ResourceCPU] = *resource.NewMilliQuantity(rapid.Int64Range(0, 4000).Draw(t, "cpu"), resource.DecimalSI)
		}
		if rapid.Bool().Draw(t, "asks memory") {
			requests[v1.ResourceMemory] = *resource.NewQuantity(rapid.Int64Range(0, 16<<30).Draw(t, "memory"), resource.BinarySI)
		}
		if rapid.Bool().Draw(t, "asks gpu") {
			requests["example.com/gpu"] = resource.MustParse("1")
		}
		pod.Spec.Containers = append(pod.Spec.Containers, v1.Container{Name: fmt.Sprint(i), Resources: v1.ResourceRequirements{Requests: requests}})
	}
	return pod
}

func drawSpecs(t *rapid.T, maxWeight int64) (specs []config.ResourceSpec) {
	names := rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"cpu", "memory", "example.com/gpu"}), 0, 3, rapid.ID[string]).Draw(t, "resources")
	for _, name := range names {
		specs = append(specs, config.ResourceSpec{Name: name, Weight: rapid.Int64Range(1, maxWeight).Draw(t, "weight")})
	}
	return specs
}

func drawFit(t *rapid.T) *NodeResourcesFit {
	strategy := &config.ScoringStrategy{
		Type:      rapid.SampledFrom([]config.ScoringStrategyType{config.LeastAllocated, config.MostAllocated, config.RequestedToCapacityRatio}).Draw(t, "strategy"),
		Resources: drawSpecs(t, 100),
	}
	if strategy.Type == config.RequestedToCapacityRatio {
		strategy.RequestedToCapacityRatio = &config.RequestedToCapacityRatioParam{Shape: []config.UtilizationShapePoint{
			{Utilization: 0, Score: rapid.Int32Range(0, 10).Draw(t, "at 0")}, {Utilization: 60, Score: rapid.Int32Range(0, 10).Draw(t, "at 60")},
			{Utilization: 100, Score: rapid.Int32Range(0, 10).Draw(t, "at 100")},
		}}
	}
	fit, err := NewNodeResourcesFit(&config.NodeResourcesFitArgs{ScoringStrategy: strategy})
	if err != nil {
		t.Fatal(err)
	}
	return fit
}

func drawBalanced(t *rapid.T) *NodeResourcesBalancedAllocation {
	balanced, err := NewNodeResourcesBalancedAllocation(&config.NodeResourcesBalancedAllocationArgs{Resources: drawSpecs(t, 1)})
	if err != nil {
		t.Fatal(err)
	}
	return balanced
}

// usualScores returns the two room scorers with default arguments, and a node's room.
func usualScores() (fit, balanced func(*cluster.Room, int64, int64) int64, room *cluster.Room) {
	f, _ := NewNodeResourcesFit(nil)
	b, _ := NewNodeResourcesBalancedAllocation(nil)
	room = &cluster.Room{CPU: 4000, Memory: 8 << 30, NonZeroCPU: 200, NonZeroMemory: 1 << 30, RequestedCPU: 200, RequestedMemory: 1 << 30}
	return f.roomScore, b.roomScore, room
}

func TestRoomScoreAllocatesNothing(t *testing.T) {
	fit, balanced, room := usualScores()
	var sum int64
	allocs := testing.AllocsPerRun(100, func() { sum += fit(room, 100, 2<<30) + balanced(room, 100, 2<<30) })
	if allocs != 0 {
		t.Errorf("%v allocations a node", allocs)
	}
}

func BenchmarkRoomScore(b *testing.B) {
	fit, balanced, room := usualScores()
	var sum int64
	for i := range int64(b.N) {
		sum += fit(room, 100+i%7, 2<<30) + balanced(room, 100+i%7, 2<<30)
	}
	if sum == 0 {
		b.Fatal("no score")
	}
}
