// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/controller/controllershadow"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
)

func parse(t *testing.T, args ...string) Options {
	t.Helper()
	o := DefaultOptions()
	flags := pflag.NewFlagSet("controller", pflag.ContinueOnError)
	o.AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestControllersAreSelectedAsInKubeControllerManager(t *testing.T) {
	for _, row := range []struct {
		arg              string
		eviction, health bool
		moves            bool
		refused          string
	}{
		{"*", true, true, false, ""},
		{"taint-eviction-controller", true, false, false, ""},
		{"node-lifecycle-controller", false, true, false, ""},
		{"*,-node-lifecycle-controller", true, false, false, ""},
		{"-taint-eviction-controller,*", false, true, false, ""},
		{"*,-nodelifecycle", true, false, false, ""}, // its former name
		{"nodelifecycle", false, true, false, ""},
		{"*,-taint-eviction-controller,taint-eviction-controller", false, true, false, ""}, // the first mention counts
		{"nodelifecycle,-node-lifecycle-controller", false, true, false, ""},
		{"rebalance", false, false, true, ""},
		{"*,rebalance", true, true, true, ""},
		{"device-taint-eviction-controller", false, false, false, ""},
		{"-taint-eviction-controller", false, false, false, "selects none"},
		{"taint-eviction", false, false, false, `"taint-eviction": must be *, or of taint-eviction-controller, device-taint-eviction-controller, node-lifecycle-controller, rebalance`},
	} {
		o := parse(t, "--controllers="+row.arg)
		err := o.Validate()
		if row.refused != "" {
			if err == nil || !strings.Contains(err.Error(), row.refused) {
				t.Errorf("%s: %v, want %q", row.arg, err, row.refused)
			}
			continue
		}
		if err != nil || o.isEnabled("taint-eviction-controller") != row.eviction ||
			o.isEnabled("device-taint-eviction-controller") != strings.Contains(","+strings.ReplaceAll(row.arg, "*", "device-taint"), ",device-taint") || o.isEnabled("node-lifecycle-controller") != row.health || o.isEnabled("rebalance") != row.moves {
			t.Errorf("%s: %v, eviction %v, health %v", row.arg, err, o.isEnabled("taint-eviction-controller"), o.isEnabled("node-lifecycle-controller"))
		}
	}
}

func TestBadOptionsAreRefusedByFlag(t *testing.T) {
	for _, row := range [][2]string{
		{"--node-monitor-period=0s", "--node-monitor-period: 0s: must be greater than zero"},
		{"--node-monitor-grace-period=-1s", "--node-monitor-grace-period: -1s"},
		{"--unhealthy-zone-threshold=NaN", "--unhealthy-zone-threshold: NaN"},
		{"--concurrent-evictions=0", "--concurrent-evictions: 0"},
		{"--eviction-deadline=-5m", "--eviction-deadline: -5m0s"},
		{"--journal-size=2Gi", "--journal-size: requires --journal"},
		{"--journal-age=1h", "--journal-age: requires --journal"},
		{"--goals=heal", "--policy, --goals and --surge: require --controllers=rebalance"},
		{"--controllers=rebalance --goals=heel", `--goals: goal "heel": must be one of heal, spread`},
		{"--controllers=rebalance --policy=p.yaml --goals=heal", "--policy: cannot be used with --goals"},
		{"--controllers=rebalance --policy=nowhere.yaml", "--policy: open nowhere.yaml"},
		{"--controllers=rebalance --scheduler-config=nowhere.yaml", "--scheduler-config: open nowhere.yaml"},
		{"--controllers=rebalance --every=1s", "--every: 1s: must be at least 10s"},
		{"--controllers=*,rebalance --shadow", "rebalance cannot be used with --shadow"},
	} {
		o := parse(t, strings.Fields(row[0])...)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), row[1]) {
			t.Errorf("%s: %v, want %q", row[0], err, row[1])
		}
	}
	o := parse(t, "--health-bind-address=nowhere:70000")
	if _, err := New(&rest.Config{}, o); err == nil || !strings.Contains(err.Error(), "--health-bind-address") {
		t.Errorf("bad address: %v", err)
	}
}

func TestEndpointsTellTheConfiguration(t *testing.T) {
	o := parse(t, "--health-bind-address=127.0.0.1:0", "--node-monitor-grace-period=20s", "--leader-elect=false")
	c, err := New(&rest.Config{}, o)
	if err != nil {
		t.Fatal(err)
	}
	endpoints := c.newEndpoints().Handler()
	for path, want := range map[string]string{
		"/configz": `"nodeMonitorGracePeriod":"20s"`,
		"/flagz":   "node-monitor-grace-period=20s",
		"/statusz": "berth-controller",
		"/livez":   "ok",
		"/metrics": "# TYPE berth_rebalance_evictions_total counter",
	} {
		answer := httptest.NewRecorder()
		endpoints.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		if body := answer.Body.String(); answer.Code != http.StatusOK || !strings.Contains(strings.ReplaceAll(body, ": ", ":"), want) {
			t.Errorf("%s: %d, no %s in\n%s", path, answer.Code, want, body)
		}
	}
	answer := httptest.NewRecorder()
	endpoints.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/debug/pprof/heap", nil))
	if answer.Code == http.StatusOK {
		t.Error("profiles are served without --profiling")
	}
}

// TestMovesCountComparingTolerations verifies that tolerations with the operator Gt are supported,
// as in berth rebalance, whether the scheduler's configuration is a file or the default.
func TestMovesCountComparingTolerations(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scheduler.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", file} {
		read, err := (&RebalanceOptions{Config: path}).readConfig()
		if err != nil {
			t.Fatal(err)
		}
		c := cluster.New()
		c.SetNode(&v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n"},
			Spec:       v1.NodeSpec{Taints: []v1.Taint{{Key: "level", Value: "5", Effect: v1.TaintEffectNoSchedule}}},
			Status:     v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourcePods: resource.MustParse("10")}},
		})
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p"}, Spec: v1.PodSpec{
			Tolerations: []v1.Toleration{{Key: "level", Operator: "Gt", Value: "3", Effect: v1.TaintEffectNoSchedule}},
		}}
		if e := decide.NewPlain(c, read.Profiles[0]).Evaluate(c.Pending(pod)); e.Feasible != 1 {
			t.Errorf("with the file %q: %d nodes take the pod, want 1", path, e.Feasible)
		}
	}
}

// TestAShadowReportThatCannotBeWrittenLeavesNothing verifies that a failed write leaves no
// temporary file.
func TestAShadowReportThatCannotBeWrittenLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "report.json")
	if err := writeReport(path, &controllershadow.Report{}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Fatalf("%v, %v", info, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeReport(path, &controllershadow.Report{}); err == nil {
		t.Error("a folder was replaced")
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}
