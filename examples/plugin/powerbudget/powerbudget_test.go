// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package powerbudget

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/scheduler/plugintest"
)

func drawing(name, watts string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	if watts != "" {
		pod.Annotations = map[string]string{wattsAnnotation: watts}
	}
	return pod
}

func inRack(name, rack string, pods ...*v1.Pod) fwk.NodeInfo {
	return plugintest.NodeInfo(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{rackLabel: rack}}}, pods...)
}

func made(t *testing.T) *PowerBudget {
	plugin, err := New(t.Context(), &runtime.Unknown{Raw: []byte(`{"racks": {"r1": 1000, "r2": 800}}`)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return plugin.(*PowerBudget)
}

func TestARackIsNotOverdrawn(t *testing.T) {
	p := made(t)
	nodes := []fwk.NodeInfo{inRack("n1", "r1", drawing("a", "600")), inRack("n2", "r1", drawing("b", "100")), inRack("n3", "r2"), inRack("n4", "r3")}
	for watts, want := range map[string]string{
		"300":  "n1:  30; n2:  30; n3:  100; n4:  100",
		"301":  "n1: rack(s) had not enough power left; n2: rack(s) had not enough power left; n3:  100; n4:  100",
		"900":  "n1: rack(s) had not enough power left; n2: rack(s) had not enough power left; n3: rack(s) can never draw what the pod needs; n4:  100",
		"":     "skipped",
		"lots": `annotation example.com/watts is "lots": want a whole number of watts`,
	} {
		if got := judge(t, p, drawing("p", watts), nodes); got != want {
			t.Errorf("%s watts:\n got %s\nwant %s", watts, got, want)
		}
	}
}

// judge calls the plugin as a scheduler does.
func judge(t *testing.T, p *PowerBudget, pod *v1.Pod, nodes []fwk.NodeInfo) string {
	state := plugintest.CycleState()
	_, status := p.PreFilter(t.Context(), state, pod, nodes)
	if status.IsSkip() {
		return "skipped"
	}
	if !status.IsSuccess() {
		return status.Message()
	}
	var words []string
	for _, node := range nodes {
		word := node.Node().Name + ": "
		if status := p.Filter(t.Context(), state, pod, node); !status.IsSuccess() {
			word += status.Message()
		} else {
			score, _ := p.Score(t.Context(), state, pod, node)
			word += fmt.Sprint(" ", score)
		}
		words = append(words, word)
	}
	return strings.Join(words, "; ")
}

func TestPowerOfVictimsCounts(t *testing.T) {
	p, victim := made(t), drawing("victim", "900")
	node := inRack("n1", "r1", victim)
	state, pod := plugintest.CycleState(), drawing("p", "500")
	if _, status := p.PreFilter(t.Context(), state, pod, []fwk.NodeInfo{node}); !status.IsSuccess() {
		t.Fatal(status)
	}
	supposed := state.Clone()
	if status := p.RemovePod(t.Context(), supposed, pod, node.GetPods()[0], node); !status.IsSuccess() {
		t.Fatal(status)
	}
	if status := p.Filter(t.Context(), supposed, pod, node); !status.IsSuccess() {
		t.Errorf("without the victim: %v", status)
	}
	if status := p.Filter(t.Context(), state, pod, node); status.IsSuccess() {
		t.Error("what is only supposed has changed what is")
	}
}
