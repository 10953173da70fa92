// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simnodes

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
)

func threeNodes() *fake.Clientset {
	node := func(name, zone string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			simkubelet.LabelSimulated: "true", v1.LabelTopologyZone: zone}}}
	}
	return fake.NewClientset(node("a", "z1"), node("b", "z1"), node("c", "z10"),
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "machine"}})
}

func annotations(t *testing.T, client *fake.Clientset, name string) map[string]string {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return node.Annotations
}

func TestNodesFailAndRecoverByZone(t *testing.T) {
	client := threeNodes()
	f := Faults{Client: client}
	names, err := f.Fail(t.Context(), Selection{Zones: []string{"z1"}}, 2*time.Minute)
	if err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Fatalf("failed %v, %v", names, err)
	}
	got := annotations(t, client, "a")
	until, err := time.Parse(time.RFC3339, got[simkubelet.AnnotationHeartbeatUntil])
	if got[simkubelet.AnnotationHeartbeat] != simkubelet.HeartbeatStopped || err != nil || time.Until(until) > 2*time.Minute {
		t.Errorf("annotations %v", got)
	}
	// A second Fail without a duration removes the end of the first.
	if _, err := f.Fail(t.Context(), Selection{Names: []string{"a"}}, 0); err != nil {
		t.Fatal(err)
	}
	if _, still := annotations(t, client, "a")[simkubelet.AnnotationHeartbeatUntil]; still {
		t.Error("the end of the failure before is left")
	}
	if _, err := f.Recover(t.Context(), Selection{Zones: []string{"z1"}}); err != nil {
		t.Fatal(err)
	}
	if left := annotations(t, client, "a"); len(left) != 0 {
		t.Errorf("left after recovery: %v", left)
	}
}

// TestNodeThatIsSelectedTwiceIsAnnotatedOnce verifies that a node selected both by name and by
// zone, or twice in the same way, is annotated once.
func TestNodeThatIsSelectedTwiceIsAnnotatedOnce(t *testing.T) {
	client := threeNodes()
	f := Faults{Client: client}
	names, err := f.Fail(t.Context(), Selection{Names: []string{"b", "b"}, Zones: []string{"z1", "z1", "z10"}}, 0)
	if err != nil || !slices.Equal(names, []string{"b", "a", "c"}) {
		t.Errorf("failed %v, %v", names, err)
	}
	patches := 0
	for _, a := range client.Actions() {
		if a.GetVerb() == "patch" {
			patches++
		}
	}
	if patches != 3 {
		t.Errorf("%d patches", patches)
	}
}

func TestConditionsAddUpAndAreTakenBack(t *testing.T) {
	client := threeNodes()
	f := Faults{Client: client}
	set := func(c simkubelet.Conditions) string {
		t.Helper()
		if _, err := f.SetConditions(t.Context(), Selection{Names: []string{"c"}}, c); err != nil {
			t.Fatal(err)
		}
		return annotations(t, client, "c")[simkubelet.AnnotationConditions]
	}
	if got := set(simkubelet.Conditions{v1.NodeReady: v1.ConditionFalse}); got != "Ready=False" {
		t.Error(got)
	}
	if got := set(simkubelet.Conditions{v1.NodeMemoryPressure: v1.ConditionTrue}); got != "MemoryPressure=True,Ready=False" {
		t.Error(got)
	}
	if got := set(simkubelet.Conditions{v1.NodeReady: ""}); got != "MemoryPressure=True" {
		t.Error(got)
	}
	if got := set(simkubelet.Conditions{v1.NodeMemoryPressure: ""}); got != "" {
		t.Error(got)
	}
}

func TestASelectionThatIsWrongSaysWhatThereIs(t *testing.T) {
	f := Faults{Client: threeNodes()}
	for _, c := range []struct {
		which Selection
		says  string
	}{
		{Selection{Names: []string{"x"}}, "node x: not found"},
		{Selection{Names: []string{"machine"}}, "is not a simulated node"},
		{Selection{Zones: []string{"z2"}}, "zone z2: no simulated node is in it; there are z1, z10"},
	} {
		if _, err := f.Fail(t.Context(), c.which, 0); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v", c.which, err)
		}
	}
}
