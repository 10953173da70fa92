// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package flagparity

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/reference/metrics-parity.md anew")

// absent lists, by prefix, the metrics of kube-scheduler and of the two controllers that Berth does
// not have, with the reasons.
var absent = []struct{ begins, why string }{
	{"scheduler_async_api_call_", "of a queue of API calls that Berth does not have"},
	{"scheduler_pending_async_api_calls", "of a queue of API calls that Berth does not have"},
	{"scheduler_batch_", "of kube-scheduler's batching, which rankings take the place of"},
	{"scheduler_get_node_hint_duration_seconds", "of kube-scheduler's batching, which rankings take the place of"},
	{"scheduler_store_schedule_results_duration_seconds", "of kube-scheduler's batching, which rankings take the place of"},
	{"scheduler_inflight_events", "events are taken in between two pods; none is in flight"},
	{"scheduler_plugin_evaluation_total", "plugins are not asked node by node, so there is nothing to count"},
	{"scheduler_volume_binder_cache_requests_total", "of a cache of the volume binder that Berth does not have"},
	{"kube_pod_resource_", "kube-state-metrics exports them"},
	{"informer_", "of client-go's shared informers; Berth's feeds keep no objects and no queue"},
	{"workqueue_", "of client-go's work queues, of which Berth has none"},
	{"rest_client_dns_resolution_duration_seconds", "declared by the library and registered by none of its users"},
	{"rest_client_exec_plugin_policy_call_total", "declared by the library and registered by none of its users"},
	{"version_info", "of components that emulate an earlier version, which Berth does not"},
	{"running_managed_controllers", "of kube-controller-manager's frame; leader_election_master_status shows the leader"},
}

const served = "served, by the same library"

// libraries lists, by prefix, the metrics that Berth's components register from Kubernetes'
// libraries.
var libraries = []string{
	"rest_client_", "leader_election_", "kubernetes_build_info", "kubernetes_healthcheck", "kubernetes_feature_enabled",
	"disabled_metrics_total", "hidden_metrics_total", "registered_metrics_total",
}

type documented struct {
	Name, Namespace, Subsystem, Type, StabilityLevel string
	Labels                                           []string
}

func (d *documented) fullName() string {
	return strings.Join(slices.DeleteFunc([]string{d.Namespace, d.Subsystem, d.Name}, func(s string) bool { return s == "" }), "_")
}

var metricRow = regexp.MustCompile("(?m)^\\| `([a-z0-9_]+)` \\| (\\w+) \\| ([a-z_, ]*) \\| (\\w*) \\|")

// TestEveryMetricIsThereOrAccountedFor verifies that Berth has every metric of kube-scheduler and
// of the replaced controllers, so that dashboards work with Berth, or that absent gives the reason
// why it does not. Berth's metrics come from docs/reference/metrics.md, which is generated from the
// code.
func TestEveryMetricIsThereOrAccountedFor(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	berth := map[string][]string{}
	for _, row := range metricRow.FindAllStringSubmatch(string(text), -1) {
		berth[row[1]] = row[2:]
	}
	var page bytes.Buffer
	page.WriteString(parityPreface)
	used := map[string]bool{}
	all := declared(t)
	if len(all) < 60 {
		t.Errorf("only %d metrics: are these all?", len(all))
	}
	slices.SortFunc(all, func(a, b documented) int { return strings.Compare(a.fullName(), b.fullName()) })
	for _, theirs := range all {
		name := theirs.fullName()
		slices.Sort(theirs.Labels)
		answer := ""
		if ours, ok := berth[name]; ok {
			answer = "the same"
			labels := strings.Split(ours[1], ", ")
			slices.Sort(labels)
			if got, want := strings.Join(labels, ", "), strings.Join(theirs.Labels, ", "); got != want || ours[2] != theirs.StabilityLevel || kind(theirs.Type) != ours[0] {
				t.Errorf("%s is %s, %s, with labels %q; upstream %s, %s, %q", name, ours[0], ours[2], got, kind(theirs.Type), theirs.StabilityLevel, want)
			}
		}
		for _, a := range absent {
			if !strings.HasPrefix(name, a.begins) {
				continue
			}
			used[a.begins] = true
			if answer != "" {
				t.Errorf("%s is there, and said to be absent: %s", name, a.why)
			}
			answer = "no: " + a.why
		}
		if answer == "" && slices.ContainsFunc(libraries, func(begins string) bool { return strings.HasPrefix(name, begins) }) {
			answer = served
		}
		if answer == "" {
			t.Errorf("%s is not there, and nothing says why", name)
		}
		fmt.Fprintf(&page, "| `%s` | %s | %s | %s |\n", name, kind(theirs.Type), strings.Join(theirs.Labels, ", "), answer)
	}
	for _, a := range absent {
		if !used[a.begins] {
			t.Errorf("upstream has no %s any more", a.begins)
		}
	}
	keepPage(t, page.Bytes())
}

func keepPage(t *testing.T, page []byte) {
	t.Helper()
	const file = "../../docs/reference/metrics-parity.md"
	if *update {
		if err := os.WriteFile(file, page, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if kept, err := os.ReadFile(file); err != nil || !bytes.Equal(kept, page) {
		t.Errorf("docs/reference/metrics-parity.md is out of date (%v): cd test && go test ./flagparity -run Metric -update", err)
	}
}

// kind returns a metric's type as shown in a scrape.
func kind(theirs string) string {
	switch theirs {
	case "TimingRatioHistogram":
		return "histogram"
	case "Custom":
		return "gauge"
	}
	return strings.ToLower(theirs)
}

const parityPreface = `# Metrics of kube-scheduler and kube-controller-manager

Every metric of kube-scheduler v1.37, and of kube-controller-manager's node-lifecycle and taint-eviction controllers, and what Berth has in
its place. *The same*: name, type, labels and stability are upstream's. This page is made by a test from upstream's code
and from [metrics.md](metrics.md): ` + "`cd test && go test ./flagparity -run Metric -update`" + ` writes it.

| metric | type | labels | in Berth |
| --- | --- | --- | --- |
`
