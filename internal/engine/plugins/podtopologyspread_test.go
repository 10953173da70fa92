// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	config "k8s.io/kube-scheduler/config/v1"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Argument of the cases: defaults=KEY:SKEW:ACTION,… replaces the built-in default constraints.
func TestPodTopologySpreadCases(t *testing.T) {
	runCases(t, "testdata/podtopologyspread.txt", func(t *testing.T, d *datadriven.TestData) any {
		var defaults string
		d.MaybeScanArgs(t, "defaults", &defaults)
		var args *config.PodTopologySpreadArgs
		if defaults != "" {
			args = &config.PodTopologySpreadArgs{DefaultingType: config.ListDefaulting}
			for _, text := range strings.Split(defaults, ",") {
				part := strings.Split(text, ":")
				skew, _ := strconv.Atoi(part[1])
				args.DefaultConstraints = append(args.DefaultConstraints, v1.TopologySpreadConstraint{
					TopologyKey: part[0], MaxSkew: int32(skew), WhenUnsatisfiable: v1.UnsatisfiableConstraintAction(part[2]),
				})
			}
		}
		plugin, err := NewPodTopologySpread(args)
		if err != nil {
			t.Fatal(err)
		}
		return plugin
	})
}

func TestPodTopologySpreadArgumentsAreRefused(t *testing.T) {
	zone := v1.TopologySpreadConstraint{TopologyKey: "zone", MaxSkew: 1, WhenUnsatisfiable: v1.DoNotSchedule}
	with := func(change func(c *v1.TopologySpreadConstraint)) []v1.TopologySpreadConstraint {
		c := zone
		change(&c)
		return []v1.TopologySpreadConstraint{c}
	}
	for _, test := range []struct {
		args config.PodTopologySpreadArgs
		want string
	}{
		{config.PodTopologySpreadArgs{DefaultConstraints: []v1.TopologySpreadConstraint{zone}},
			`defaultingType: Invalid value: "System": when .defaultConstraints are not empty`},
		{config.PodTopologySpreadArgs{DefaultingType: "Odd"}, `defaultingType: Unsupported value: "Odd": supported values: "System", "List"`},
		{config.PodTopologySpreadArgs{DefaultingType: config.ListDefaulting, DefaultConstraints: with(func(c *v1.TopologySpreadConstraint) { c.MaxSkew = 0 })},
			`defaultConstraints[0].maxSkew: Invalid value: 0: not in valid range (0, inf)`},
		{config.PodTopologySpreadArgs{DefaultingType: config.ListDefaulting, DefaultConstraints: with(func(c *v1.TopologySpreadConstraint) { c.TopologyKey = "" })},
			`defaultConstraints[0].topologyKey: Required value: can not be empty`},
		{config.PodTopologySpreadArgs{DefaultingType: config.ListDefaulting, DefaultConstraints: with(func(c *v1.TopologySpreadConstraint) { c.WhenUnsatisfiable = "Maybe" })},
			`defaultConstraints[0].whenUnsatisfiable: Unsupported value: "Maybe": supported values: "DoNotSchedule", "ScheduleAnyway"`},
		{config.PodTopologySpreadArgs{DefaultingType: config.ListDefaulting, DefaultConstraints: with(func(c *v1.TopologySpreadConstraint) { c.LabelSelector = &metav1.LabelSelector{} })},
			`defaultConstraints[0].labelSelector: Forbidden: constraint must not define a selector, as they deduced for each pod`},
		{config.PodTopologySpreadArgs{DefaultingType: config.ListDefaulting, DefaultConstraints: []v1.TopologySpreadConstraint{zone, zone}},
			`defaultConstraints[1]: Duplicate value: "{zone, DoNotSchedule}"`},
	} {
		if _, err := NewPodTopologySpread(&test.args); err == nil || err.Error() != test.want {
			t.Errorf("got  %v\nwant %s", err, test.want)
		}
	}
}

// For any counts, a domain with fewer pods must not score lower, and the scores must be within 0 to
// 100.
func TestSpreadScoresPreferFewerPods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := SpreadConstraint{MaxSkew: rapid.Int32Range(1, 100).Draw(t, "skew")}
		weight := c.Weight(rapid.IntRange(1, 100_000).Draw(t, "domains"))
		counts := rapid.SliceOfN(rapid.Int64Range(0, 1_000_000), 2, 50).Draw(t, "counts")
		var lowest, highest int64 = math.MaxInt64, 0
		for _, count := range counts {
			score := SpreadScore(c.Part(count, weight))
			lowest, highest = min(lowest, score), max(highest, score)
		}
		for _, a := range counts {
			for _, b := range counts {
				better, worse := SpreadNormalized(SpreadScore(c.Part(a, weight)), lowest, highest), SpreadNormalized(SpreadScore(c.Part(b, weight)), lowest, highest)
				if a < b && better < worse {
					t.Fatalf("%d pods score %d, %d pods score %d", a, better, b, worse)
				}
				if better < 0 || better > MaxScore {
					t.Fatalf("%d pods score %d", a, better)
				}
			}
		}
	})
}

func TestSpreadInclusionAnswersAnewForEveryHostname(t *testing.T) {
	c := cluster.New()
	load(t, c, "node a kubernetes.io/hostname=a\nnode b kubernetes.io/hostname=b")
	p := waiting(t, c, "kind: Pod\nmetadata: {name: p}\nspec: {nodeSelector: {kubernetes.io/hostname: a}}")
	inclusion, constraint := NewSpreadInclusion(p), SpreadConstraint{NodeAffinityPolicy: v1.NodeInclusionPolicyHonor}
	if !inclusion.PerNode() {
		t.Error("nodes that differ in their host name alone are taken for the same")
	}
	if !inclusion.Includes(&constraint, c.Node("a")) || inclusion.Includes(&constraint, c.Node("b")) {
		t.Error("want node a alone to be included")
	}
}

// TestNumericTolerationsIncludeNodesWhereSwitchedOn verifies that a node with a taint tolerated
// only by a numeric comparison is counted if and only if the feature gate is enabled.
func TestNumericTolerationsIncludeNodesWhereSwitchedOn(t *testing.T) {
	c := cluster.New()
	load(t, c, "node a zone=a")
	n := c.SetNode(func() *v1.Node {
		n := c.Node("a").Object()
		n.Spec.Taints = []v1.Taint{{Key: "level", Value: "5", Effect: v1.TaintEffectNoSchedule}}
		return n
	}())
	p := waiting(t, c, `
kind: Pod
metadata: {name: p}
spec:
  tolerations: [{key: level, operator: Gt, value: "3", effect: NoSchedule}]
  topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, nodeTaintsPolicy: Honor, labelSelector: {}}]`)
	for _, on := range []bool{false, true} {
		spread, err := NewPodTopologySpread(nil)
		if err != nil {
			t.Fatal(err)
		}
		spread.Compare = on
		constraints, err := spread.Hard(c, p)
		if err != nil {
			t.Fatal(err)
		}
		if got := NewSpreadInclusion(p).Includes(&constraints[0], n); got != on {
			t.Errorf("switched on: %t, the node is included: %t", on, got)
		}
	}
}

// TestHintsKnowClassesThatComeLater verifies that the constraints of a class are read once,
// regardless of the number of earlier classes. Only a limited number of classes is cached.
func TestHintsKnowClassesThatComeLater(t *testing.T) {
	c := cluster.New()
	plugin, err := NewPodTopologySpread(nil)
	if err != nil {
		t.Fatal(err)
	}
	hint := plugin.Interests(Setting{Cluster: c, Filter: plugin})[0].Hint
	item := func(i int) *queue.Item {
		p := waiting(t, c, fmt.Sprintf("kind: Pod\nmetadata: {name: p, labels: {app: \"%d\"}}\nspec: {topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, "+
			"whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: \"%d\"}}}]}", i, i))
		return &queue.Item{Pod: &v1.Pod{}, Class: p.Class}
	}
	event := &queue.Event{Resource: queue.Pod, Action: queue.Add, Pod: cluster.NewPod(item(0).Class, "", "")}
	allocations := func(of *queue.Item) float64 { return testing.AllocsPerRun(10, func() { hint(of, event) }) }
	first := allocations(item(0))
	for i := range 3 * keep {
		hint(item(i), event)
	}
	if later := allocations(item(-1)); later != first {
		t.Errorf("a look at a class that came late takes %v allocations, %v at the first one", later, first)
	}
}

// TestInclusionSeesAnEmptyHostName verifies that a label with an empty value counts as present.
func TestInclusionSeesAnEmptyHostName(t *testing.T) {
	c := cluster.New()
	selector := &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{
		expressions(v1.NodeSelectorRequirement{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpExists}),
	}}
	i := NewSpreadInclusion(c.Pending(&v1.Pod{Spec: v1.PodSpec{Affinity: &v1.Affinity{NodeAffinity: &v1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: selector,
	}}}}))
	constraint := &SpreadConstraint{NodeAffinityPolicy: v1.NodeInclusionPolicyHonor}
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"}}}
	for _, has := range []bool{false, true, false} {
		if delete(node.Labels, v1.LabelHostname); has {
			node.Labels[v1.LabelHostname] = ""
		}
		if n := c.SetNode(node.DeepCopy()); i.Includes(constraint, n) != has {
			t.Errorf("included: %t, want %t", !has, has)
		}
	}
}
