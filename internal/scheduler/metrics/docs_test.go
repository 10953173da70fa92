// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics"

	"github.com/berth-k8s/berth/internal/admission/webhook"
	"github.com/berth-k8s/berth/internal/controller"
)

var update = flag.Bool("update", false, "write docs/reference/metrics.md anew")

const preface = `# Metrics

All metrics of Berth's components, at ` + "`/metrics`" + ` (see [the scheduler](../tasks/scheduler.md#endpoints) for where that is). This page is made from the
code: ` + "`go test ./internal/scheduler/metrics -update`" + ` writes it, and a test fails when it is out of date.

Where kube-scheduler or kube-controller-manager v1.37 has a metric of the same meaning, the name, the labels, the buckets and the stability are
theirs. Metrics that begin with ` + "`berth_`" + ` are Berth's own; metrics that begin with ` + "`kube_pod_overhead_`" + ` are kube-state-metrics'.

Scheduler and controller also serve those of the libraries that they share with Kubernetes' components: ` + "`leader_election_master_status`" + `
(1 for the replica that leads), ` + "`rest_client_requests_total`, `rest_client_request_duration_seconds`" + ` and the other ` + "`rest_client_*`" + `,
` + "`kubernetes_build_info`, `process_*`, `go_*`; and `kubernetes_healthcheck`, `kubernetes_healthchecks_total` at `/metrics/slis`" + `. The webhook
serves them without those of the election and without ` + "`/metrics/slis`" + `. Nodes of ` + "`berth agent`" + ` serve the kubelet's.

Metrics of pod groups are served whether or not their feature gates are on. A pod group that fails waits for an event where kube-scheduler has it back
off, so ` + "`scheduler_queued_entities`" + ` has it in another queue. A placement that a bound rules out counts as evaluated.

## Metrics of kube-scheduler that Berth does not have

The page [metrics compared with upstream's](metrics-parity.md) has every metric of kube-scheduler and of kube-controller-manager's two controllers.

| metric | why |
| --- | --- |
| ` + "`scheduler_plugin_evaluation_total`" + `, and ` + "`scheduler_plugin_execution_duration_seconds`" + ` of PreFilter to Score | plugins are not called node by node: rankings of classes answer, so there are no calls to measure |
| ` + "`scheduler_batch_attempts_total`, `scheduler_batch_cache_flushed_total`, `scheduler_get_node_hint_duration_seconds`, `scheduler_store_schedule_results_duration_seconds`" + ` | they measure kube-scheduler's batching, which Berth does not have |
| ` + "`scheduler_inflight_events`" + ` | events are handled between two pods, so none is in flight |
| ` + "`scheduler_async_api_call_*`, `scheduler_pending_async_api_calls`" + ` | they measure a queue that Berth does not have |
| ` + "`scheduler_framework_extension_point_duration_seconds`" + ` for PreFilter, Filter, PreScore and Score | these are one decision: see ` + "`scheduler_scheduling_algorithm_duration_seconds`" + ` |
| ` + "`scheduler_pending_pods`" + ` of the queues incomplete and pending | pods whose PodGroup is not there are gated, and no pod comes to a group while it is decided |
| ` + "`kube_pod_resource_request`, `kube_pod_resource_limit` at `/metrics/resources`" + ` | kube-state-metrics has them |
`

const head = "| metric | type | labels | stability | |\n| --- | --- | --- | --- | --- |\n"

// description parses the string form of a metric's description, the only access provided by
// Prometheus' library. Metrics of kube-state-metrics name no stability.
var description = regexp.MustCompile(`^Desc\{fqName: "(.*)", help: "(?:\[(\w+)\] )?(.*)", unit: "", constLabels: \{\}, variableLabels: \{(.*)\}\}$`)

func row(t *testing.T, kind string, d *prometheus.Desc) string {
	t.Helper()
	parts := description.FindStringSubmatch(d.String())
	if parts == nil {
		t.Fatalf("%s: this description is not understood", d)
	}
	labels := strings.ReplaceAll(parts[4], ",", ", ")
	return fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", parts[1], kind, labels, parts[2], strings.ReplaceAll(parts[3], `\"`, `"`))
}

// kindOf returns the name of a metric's type.
func kindOf(m metrics.Registerable) string {
	return strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%T", m), "*metrics."), "Vec"))
}

// described lists the descriptions of a collector's metrics.
func described(c prometheus.Collector) (all []*prometheus.Desc) {
	descriptions := make(chan *prometheus.Desc)
	go func() {
		defer close(descriptions)
		c.Describe(descriptions)
	}()
	for d := range descriptions {
		all = append(all, d)
	}
	return all
}

func TestMetricsPageIsCurrent(t *testing.T) {
	var page bytes.Buffer
	page.WriteString(preface)
	for _, part := range []struct {
		title   string
		metrics []metrics.Registerable
		pods    []*prometheus.Desc // kube-state-metrics'
	}{
		{"berth scheduler", newRecorded().all(), described(&overheads{})},
		{"berth controller", controller.Metrics(), nil},
		{"berth webhook", webhook.Metrics(), nil},
	} {
		metrics.NewKubeRegistry().MustRegister(part.metrics...)
		fmt.Fprintf(&page, "\n## %s\n\n%s", part.title, head)
		for _, m := range part.metrics {
			page.WriteString(row(t, kindOf(m), described(m)[0]))
		}
		for _, d := range part.pods {
			page.WriteString(row(t, "gauge", d))
		}
	}
	file := filepath.Join("..", "..", "..", "docs", "reference", "metrics.md")
	if *update {
		if err := os.WriteFile(file, page.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	written, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(written, page.Bytes()) {
		t.Error("docs/reference/metrics.md is out of date: go test ./internal/scheduler/metrics -update")
	}
}
