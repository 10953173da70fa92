// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package schedulershadow

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// judged returns a pod and an evaluation of nodes. Each element of rooms is the number of pods with
// one CPU that fit on a node.
func judged(rooms ...int) (*v1.Pod, *decide.Evaluation) {
	c := cluster.New()
	for i, room := range rooms {
		c.SetNode(&v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)},
			Status: v1.NodeStatus{Allocatable: v1.ResourceList{
				v1.ResourceCPU: *resource.NewQuantity(int64(room), resource.DecimalSI), v1.ResourceMemory: resource.MustParse("8Gi"), v1.ResourcePods: resource.MustParse("110"),
			}},
		})
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: types.UID("u")}}
	pod.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}}}
	return pod, decide.NewPlain(c, plugins.Default()).Evaluate(c.Pending(pod))
}

func TestChoicesAreComparedWithTheBest(t *testing.T) {
	r := New(time.Unix(0, 0))
	pod, verdicts := judged(8, 2, 0, 8)
	for _, node := range []string{"node-0", "node-3", "node-1", "node-2", "gone"} {
		r.Bound(pod, node, verdicts, false)
	}
	report := r.Report(time.Unix(60, 0))
	if report.Pods != 5 || report.Best != 2 || report.Worse != 1 || report.Rejected != 2 {
		t.Errorf("%s", report.Line())
	}
	if gap := report.Widest; len(gap) != 1 || gap[0].Node != "node-1" || gap[0].Best == "node-1" || gap[0].Gain() <= 0 || gap[0].Gain() != report.MaxGain {
		t.Errorf("widest %+v", gap)
	}
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
	if !near(report.MeanBestTotal-report.MeanTotal, report.MeanGain) || !near(report.MeanGain*3, report.MeanGainWorse) || report.MeanGain == 0 {
		t.Errorf("mean totals %v and %v, gain %v, of those that were worse %v", report.MeanTotal, report.MeanBestTotal, report.MeanGain, report.MeanGainWorse)
	}
	if why := report.Refused[0].Why; why != "NodeResourcesFit: Insufficient cpu" {
		t.Errorf("why %q", why)
	}
	var text strings.Builder
	if err := report.Write(&text, ""); err != nil || !strings.Contains(text.String(), "on a best node, of those judged   2 of 5 (40.0%)") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

// TestWhatCannotBeJudgedIsCounted verifies that a placement possibly decided in an unknown state is
// not a difference. The best placement in a known state is judged.
func TestWhatCannotBeJudgedIsCounted(t *testing.T) {
	r := New(time.Unix(0, 0))
	pod, verdicts := judged(8, 2, 0)
	for _, node := range []string{"node-0", "node-1", "node-2"} {
		r.Bound(pod, node, verdicts, true)
	}
	report := r.Report(time.Unix(60, 0))
	if report.Best != 1 || report.Worse+report.Rejected != 0 || report.Unclear != 2 || report.MeanGain != 0 {
		t.Errorf("%s", report.Line())
	}
	var text strings.Builder
	if err := report.Write(&text, ""); err != nil || !strings.Contains(text.String(), "could not be judged               2 of 3 (66.7%)") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

func TestTheWidestGapsAreKept(t *testing.T) {
	var list []decision.Placement
	for i := range 100 {
		list = widest(list, decision.Placement{Name: fmt.Sprint(i), Outcome: decision.Worse, BestTotal: int64(i * 37 % 100)})
	}
	for i, c := range list {
		if c.Gain() != int64(99-i) {
			t.Fatalf("place %d has gain %d", i, c.Gain())
		}
	}
	if len(list) != 10 {
		t.Errorf("%d kept", len(list))
	}
}

func TestNothingBoundIsNoReportToDivideBy(t *testing.T) {
	var text strings.Builder
	if err := New(time.Now()).Report(time.Now()).Write(&text, ""); err != nil || !strings.HasPrefix(text.String(), "0 pods bound by others") {
		t.Errorf("%v %s", err, text.String())
	}
}
