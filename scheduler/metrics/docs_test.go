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

	"github.com/berth-k8s/berth/controller"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

const preface = `# Metrics

All metrics of Berth's parts, at ` + "`/metrics`" + ` (see [scheduler.md](scheduler.md#endpoints) for where that is). This page is made from the
code: ` + "`go test ./scheduler/metrics -update`" + ` writes it, and a test fails when it is out of date.

Where kube-scheduler or kube-controller-manager v1.36 has a metric of the same meaning, the name, the labels, the buckets and the stability are
theirs. Metrics that begin with ` + "`berth_`" + ` are Berth's own.

Each part also serves those of the libraries that it shares with Kubernetes' components: ` + "`leader_election_master_status`" + `
(1 for the replica that leads), ` + "`rest_client_requests_total`, `rest_client_request_duration_seconds`" + ` and the other ` + "`rest_client_*`" + `,
` + "`kubernetes_build_info`, `process_*`, `go_*`; and `kubernetes_healthcheck`, `kubernetes_healthchecks_total` at `/metrics/slis`" + `.

## What kube-scheduler has and Berth has not

| metric | why |
| --- | --- |
| ` + "`scheduler_plugin_evaluation_total`" + `, and ` + "`scheduler_plugin_execution_duration_seconds`" + ` of PreFilter to Score | plugins are not asked node by node: classes of nodes and rankings answer, and there is nothing to measure a plugin by |
| ` + "`scheduler_batch_attempts_total`, `scheduler_batch_cache_flushed_total`, `scheduler_get_node_hint_duration_seconds`, `scheduler_store_schedule_results_duration_seconds`" + ` | of kube-scheduler's batching, which rankings take the place of |
| ` + "`scheduler_inflight_events`" + ` | events are taken in between two pods; none is in flight |
| ` + "`scheduler_async_api_call_*`, `scheduler_pending_async_api_calls`" + ` | of a queue that Berth does not have |
| ` + "`scheduler_framework_extension_point_duration_seconds`" + ` for PreFilter, Filter, PreScore and Score | these are one decision: see ` + "`scheduler_scheduling_algorithm_duration_seconds`" + ` |
| ` + "`kube_pod_resource_request`, `kube_pod_resource_limit` at `/metrics/resources`" + ` | kube-state-metrics tells them |
`

// description is what Prometheus' library says of a metric; it has no other way
// to ask.
var description = regexp.MustCompile(`^Desc\{fqName: "(.*)", help: "\[(\w+)\] (.*)", constLabels: \{\}, variableLabels: \{(.*)\}\}$`)

func row(t *testing.T, m metrics.Registerable) string {
	t.Helper()
	descriptions := make(chan *prometheus.Desc, 1)
	m.Describe(descriptions)
	parts := description.FindStringSubmatch((<-descriptions).String())
	if parts == nil {
		t.Fatalf("%s: its description is not understood", m.FQName())
	}
	kind := strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%T", m), "*metrics."), "Vec"))
	labels := strings.ReplaceAll(parts[4], ",", ", ")
	return fmt.Sprintf("| `%s` | %s | %s | %s | %s |\n", parts[1], kind, labels, parts[2], strings.ReplaceAll(parts[3], `\"`, `"`))
}

func TestMetricsPageIsCurrent(t *testing.T) {
	var page bytes.Buffer
	page.WriteString(preface)
	for _, part := range []struct {
		title   string
		metrics []metrics.Registerable
	}{
		{"berth scheduler", newRecorded().all()},
		{"berth controller", controller.Metrics()},
	} {
		metrics.NewKubeRegistry().MustRegister(part.metrics...)
		fmt.Fprintf(&page, "\n## %s\n\n| metric | type | labels | stability | |\n| --- | --- | --- | --- | --- |\n", part.title)
		for _, m := range part.metrics {
			page.WriteString(row(t, m))
		}
	}
	file := filepath.Join("..", "..", "docs", "metrics.md")
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
		t.Error("docs/metrics.md is out of date: go test ./scheduler/metrics -update")
	}
}
