// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"testing"

	"github.com/cockroachdb/datadriven"
	config "k8s.io/kube-scheduler/config/v1"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Arguments of the cases: hard=WEIGHT is hardPodAffinityWeight, ignore is
// ignorePreferredTermsOfExistingPods.
func TestInterPodAffinityCases(t *testing.T) {
	runCases(t, "testdata/interpodaffinity.txt", func(t *testing.T, d *datadriven.TestData) any {
		args := &config.InterPodAffinityArgs{IgnorePreferredTermsOfExistingPods: d.HasArg("ignore")}
		if d.HasArg("hard") {
			var weight int32
			d.ScanArgs(t, "hard", &weight)
			args.HardPodAffinityWeight = &weight
		}
		plugin, err := NewInterPodAffinity(args)
		if err != nil {
			t.Fatal(err)
		}
		return plugin
	})
}

func TestInterPodAffinityWeightIsRefusedOutOfRange(t *testing.T) {
	for weight, want := range map[int32]string{
		-1:  "hardPodAffinityWeight: Invalid value: -1: not in valid range [0, 100]",
		101: "hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]",
	} {
		if _, err := NewInterPodAffinity(&config.InterPodAffinityArgs{HardPodAffinityWeight: &weight}); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	plugin, err := NewInterPodAffinity(nil)
	if err != nil || plugin.HardWeight != 1 || plugin.IgnoreOthers {
		t.Errorf("defaults are %+v, %v", plugin, err)
	}
}

// TestAffinityDetailSkipsNodesWithoutTheLabel requires a node without the topology key to be
// outside all domains of the pod's own anti-affinity, in particular the domain of nodes with an
// empty value.
func TestAffinityDetailSkipsNodesWithoutTheLabel(t *testing.T) {
	c := cluster.New()
	load(t, c, `
node empty zone=
node none host=none
pod other on=empty app=web
---
kind: Pod
metadata: {name: theirs, namespace: default, uid: theirs}
spec:
  nodeName: none
  containers: [{name: c}]
  affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [
    {topologyKey: host, labelSelector: {matchLabels: {app: api}}}]}}
`)
	p := waiting(t, c, `
kind: Pod
metadata: {name: p, labels: {app: api}}
spec:
  affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [
    {topologyKey: zone, labelSelector: {matchLabels: {app: web}}}]}}
`)
	detail := (&InterPodAffinity{}).Detail(c, p)
	for node, want := range map[string]string{
		"empty": "default/other in zone= matches app=web",
		"none":  "default/theirs in host=none keeps it away",
	} {
		if got := detail(c.Node(node)); got != want {
			t.Errorf("%s: %q, want %q", node, got, want)
		}
	}
}

// The lowest node must score 0 and the highest 100, and the order of nodes must not change.
func TestAffinityScoresKeepOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := rapid.Int64Range(-1_000_000, 1_000_000)
		lowest := draw.Draw(t, "lowest")
		highest := lowest + rapid.Int64Range(1, 1_000_000).Draw(t, "span")
		a, b := rapid.Int64Range(lowest, highest).Draw(t, "a"), rapid.Int64Range(lowest, highest).Draw(t, "b")
		if AffinityNormalized(lowest, lowest, highest) != 0 || AffinityNormalized(highest, lowest, highest) != MaxScore {
			t.Fatal("the ends are not 0 and 100")
		}
		if a < b && AffinityNormalized(a, lowest, highest) > AffinityNormalized(b, lowest, highest) {
			t.Fatalf("%d scores higher than %d", a, b)
		}
	})
}
