// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// silentNode opens a cluster with a silent node-0, whose pod tolerates the silence for 20 hours.
func silentNode(t *testing.T) *World {
	t.Helper()
	var text strings.Builder
	for i := range 6 {
		renewed := "2026-11-20T10:00:00.000000Z"
		if i == 0 {
			renewed = "2026-11-20T09:59:15.000000Z"
		}
		fmt.Fprintf(&text, `---
apiVersion: v1
kind: Node
metadata: {name: node-%[1]d, labels: {topology.kubernetes.io/zone: z%[2]d}}
status:
  allocatable: {cpu: "8", memory: 32Gi, pods: "110"}
  conditions: [{type: Ready, status: "True"}]
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: node-%[1]d, namespace: kube-node-lease}
spec: {renewTime: %[3]q, leaseDurationSeconds: 40}
---
apiVersion: v1
kind: Pod
metadata: {name: pod-%[1]d}
spec:
  nodeName: node-%[1]d
  containers: [{name: c, image: i}]
  tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 72000}]
`, i, i%3, renewed)
	}
	set, err := manifest.Read([]string{"-"}, strings.NewReader(text.String()), manifest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := Open(set, Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.Settle()
	w.BeginHealth()
	return w
}

// TestTimeInWhichNothingHappensCostsNothing verifies that the cost of a forecast depends on the
// number of events, not on the time span.
func TestTimeInWhichNothingHappensCostsNothing(t *testing.T) {
	w := silentNode(t)
	w.Advance(24 * time.Hour)
	if got := w.Departures(); len(got) != 1 || got[0].Name != "pod-0" || time.Duration(got[0].After).Round(time.Minute) != 20*time.Hour {
		t.Fatalf("departures: %+v, want that of pod-0 after 20 hours", got)
	}
	if passes := w.health.core.Passes(); passes > 50 {
		t.Errorf("all nodes were examined %d times in a day in which one fell silent", passes)
	}
}

// TestWavesThatAreLeftOutChangeNothing verifies that skipping waves changes nothing: a world too
// busy to skip any wave has the same timeline, to the second.
func TestWavesThatAreLeftOutChangeNothing(t *testing.T) {
	const day = 24 * time.Hour
	story := func(busy bool) []Event {
		w := silentNode(t)
		if busy {
			for at := time.Duration(0); at < day; at += 20 * time.Second {
				w.clock.callAt(at, func() {})
			}
		}
		for i, at := range []time.Duration{3*time.Hour + 7*time.Second, 10*time.Hour + 12*time.Second, 10*time.Hour + 95*time.Second} {
			node := fmt.Sprintf("node-%d", i+1)
			w.clock.callAt(at, func() { w.health.silenceNode(node) })
			w.clock.callAt(at+2*time.Hour+3*time.Second, func() { w.health.reviveNode(node) })
		}
		w.Advance(day)
		return w.report.timeline
	}
	calm := story(false)
	if len(calm) < 20 {
		t.Errorf("%d events: want those of four nodes", len(calm))
	}
	if diff := cmp.Diff(story(true), calm); diff != "" {
		t.Errorf("with waves left out (+): %s", diff)
	}
}
