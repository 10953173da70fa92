// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// parse parses flags like a command line.
func parse(t *testing.T, args ...string) *Flags {
	t.Helper()
	set := pflag.NewFlagSet("scheduler", pflag.ContinueOnError)
	f := Add(set)
	if err := set.Parse(args); err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return f
}

// settings reads the configuration named by the flags.
func settings(t *testing.T, f *Flags) (Settings, *config.Config) {
	t.Helper()
	source := f.Source()
	data, err := source.Read()
	if err != nil {
		t.Fatal(err)
	}
	c, err := source.Parse(data, config.Options{CompareTolerations: f.CompareTolerations()})
	if err != nil {
		t.Fatal(err)
	}
	s, err := f.Settings(c, data)
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

func write(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "scheduler.yaml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const file = `
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: /from/the/file, qps: 7, contentType: application/json}
leaderElection: {leaseDuration: 30s, renewDeadline: 20s, resourceName: mine}
enableProfiling: false
`

func TestDefaultsAreUpstreams(t *testing.T) {
	s, _ := settings(t, parse(t))
	want := "{true 15s 10s 2s kube-system kube-scheduler }" // the identity is empty
	if got := fmt.Sprint(s.Lead); got != want {
		t.Errorf("election %s, want %s", got, want)
	}
	if s.QPS != 0 || s.ContentType != "application/vnd.kubernetes.protobuf" || !strings.Contains(s.Accept, "application/json") {
		t.Errorf("client: %+v", s)
	}
	if !s.Profiling || s.PlainProfiling || s.ContentionProfiling {
		t.Errorf("profiling: %+v", s)
	}
}

func TestFileSaysHowToConnectAndElect(t *testing.T) {
	s, _ := settings(t, parse(t, "--config", write(t, file)))
	if s.Lead.LeaseDuration != 30*time.Second || s.Lead.Name != "mine" || s.Lead.RetryPeriod != 2*time.Second {
		t.Errorf("election: %+v", s.Lead)
	}
	if s.Cluster.Kubeconfig != "/from/the/file" || s.QPS != 7 || s.Burst != 14 || s.Accept != "application/json" || s.Profiling {
		t.Errorf("%+v", s)
	}
}

// TestBackoffOfAnyLength verifies that a back-off of centuries becomes the longest Duration, not a
// negative one.
func TestBackoffOfAnyLength(t *testing.T) {
	s, _ := settings(t, parse(t, "--config", write(t, file+"podInitialBackoffSeconds: 10000\npodMaxBackoffSeconds: 10000000000\n")))
	if s.FirstBackoff != 10000*time.Second || s.LastBackoff != math.MaxInt64 {
		t.Errorf("from %v to %v", s.FirstBackoff, s.LastBackoff)
	}
}

// TestTheLeadersLeaseSaysThatItIsBerths verifies that the Lease identifies Berth regardless of the
// program's name, which is a test's here. The managed fields name the client up to the first slash.
func TestTheLeadersLeaseSaysThatItIsBerths(t *testing.T) {
	kubeconfig := write(t, `{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], users: [{name: u, user: {token: x}}]}`)
	s, _ := settings(t, parse(t, "--kubeconfig", kubeconfig))
	c, err := s.Election()
	if err != nil {
		t.Fatal(err)
	}
	if manager, _, _ := strings.Cut(c.UserAgent, "/"); manager != "berth-scheduler" || !strings.Contains(c.UserAgent, "/leader-election") || c.QPS != -1 {
		t.Errorf("user agent %q, %v requests a second", c.UserAgent, c.QPS)
	}
}

func TestFlagsThatAreGivenGoBeforeTheFile(t *testing.T) {
	s, _ := settings(t, parse(t, "--config", write(t, file), "--kubeconfig", "/from/a/flag", "--kube-api-qps=50", "--kube-api-burst=100",
		"--leader-elect=false", "--leader-elect-resource-name=other", "--profiling"))
	if s.Cluster.Kubeconfig != "/from/a/flag" || s.QPS != 50 || s.Burst != 100 {
		t.Errorf("client: %+v", s)
	}
	if s.Lead.Elect || s.Lead.Name != "other" || s.Lead.LeaseDuration != 30*time.Second {
		t.Errorf("election: %+v", s.Lead)
	}
	if !s.Profiling || !s.PlainProfiling {
		t.Errorf("profiling: %+v", s)
	}
}

func TestWhatOnlyANewStartCanChangeIsNamed(t *testing.T) {
	before, _ := settings(t, parse(t, "--config", write(t, file)))
	for change, want := range map[string][]string{
		"enableProfiling: false": nil,
		"enableProfiling: true":  {"enableProfiling"},
		"enableProfiling: false\nprofiles: [{schedulerName: other}]": nil,
		"enableProfiling: false\nenableContentionProfiling: true":    {"enableContentionProfiling"},
	} {
		after, _ := settings(t, parse(t, "--config", write(t, strings.Replace(file, "enableProfiling: false", change, 1))))
		if got := before.Changed(after); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, want %v", change, got, want)
		}
	}
	after, _ := settings(t, parse(t))
	if got := before.Changed(after); !reflect.DeepEqual(got, []string{"leaderElection", "clientConnection", "enableProfiling"}) {
		t.Errorf("%v", got)
	}
}

func TestFlagsOfOldAreTranslated(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(policy, []byte(`{"kind": "Policy", "apiVersion": "v1",
		"predicates": [{"name": "PodFitsResources"}, {"name": "PodToleratesNodeTaints"}],
		"priorities": [{"name": "LeastRequestedPriority", "weight": 2}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		args      []string
		scheduler string
		follow    bool
		scorers   int
	}{
		{[]string{"--policy-config-file", policy}, "default-scheduler", true, 1},
		{[]string{"--policy-config-file", policy, "--scheduler-name", "mine"}, "mine", true, 1},
		{[]string{"--algorithm-provider", "ClusterAutoscalerProvider"}, "default-scheduler", false, 9},
		{[]string{"--scheduler-name", "mine"}, "mine", false, 9},
		{nil, "default-scheduler", false, 9},
	} {
		f := parse(t, row.args...)
		_, c := settings(t, f)
		if source := f.Source(); source.Follow != row.follow {
			t.Errorf("%v: followed: %v", row.args, source.Follow)
		}
		if p := c.Profiles[0]; p.SchedulerName != row.scheduler || len(p.Scorers) != row.scorers {
			t.Errorf("%v: profile %s with %d scorers, want %s with %d", row.args, p.SchedulerName, len(p.Scorers), row.scheduler, row.scorers)
		}
	}
}

func TestEarlierNamesOfTheLeaseCount(t *testing.T) {
	s, _ := settings(t, parse(t, "--lock-object-name=mine", "--lock-object-namespace=here"))
	if s.Lead.Name != "mine" || s.Lead.Namespace != "here" {
		t.Errorf("%+v", s.Lead)
	}
	if s, _ = settings(t, parse(t, "--lock-object-name=mine", "--leader-elect-resource-name=other")); s.Lead.Name != "other" {
		t.Errorf("%+v", s.Lead)
	}
}

func TestWeightOfAffinityIsTranslated(t *testing.T) {
	_, c := settings(t, parse(t, "--hard-pod-affinity-symmetric-weight=7"))
	printed, err := c.YAML()
	if err != nil || !strings.Contains(string(printed), "hardPodAffinityWeight: 7") {
		t.Errorf("%v\n%s", err, printed)
	}
}

func TestBadFlagsAreRefusedByName(t *testing.T) {
	for want, args := range map[string][]string{
		"--config, --policy-config-file, --policy-configmap and --algorithm-provider: give one": {"--config", "a", "--policy-config-file", "b"},
		"--scheduler-name: cannot be used with --config":                                        {"--config", "a", "--scheduler-name", "b"},
		`--leader-elect-resource-lock "endpoints": must be leases`:                              {"--leader-elect-resource-lock", "endpoints"},
		"--binders 0":         {"--binders=0"},
		"--kube-api-qps -1":   {"--kube-api-qps=-1"},
		"--secure-port 70000": {"--secure-port=70000"},
		`--bind-address "nowhere": must be an IP address`: {"--bind-address=nowhere"},
		"--tls-cert-file and --tls-private-key-file":      {"--tls-cert-file=x"},
		`--tls-min-version "VersionTLS10"`:                {"--tls-min-version=VersionTLS10"},
		`--health-bind-address "nowhere"`:                 {"--health-bind-address=nowhere"},
		"--pod-max-in-unschedulable-pods-duration 0s":     {"--pod-max-in-unschedulable-pods-duration=0s"},
	} {
		if err := parse(t, args...).Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	if err := parse(t).Validate(); err != nil {
		t.Errorf("defaults are refused: %v", err)
	}
}

// TestCommandLinesOfKubeSchedulerAreTaken verifies that command lines of manifests are accepted: of
// kubeadm's static pod, of a manifest from before 1.20, and of kops.
func TestCommandLinesOfKubeSchedulerAreTaken(t *testing.T) {
	for _, row := range []struct{ line, notes string }{
		{"--authentication-kubeconfig=/etc/kubernetes/scheduler.conf --authorization-kubeconfig=/etc/kubernetes/scheduler.conf " +
			"--bind-address=127.0.0.1 --kubeconfig=/etc/kubernetes/scheduler.conf --leader-elect=true",
			"--authentication-kubeconfig --authorization-kubeconfig"},
		{"--address=127.0.0.1 --port=0 --use-legacy-policy-config --policy-configmap=p --policy-configmap-namespace=kube-system --v=2",
			"--address --port --use-legacy-policy-config"},
		{"--feature-gates=TaintTolerationComparisonOperators=true,InformerResourceVersion=true --tls-cert-file=/a --tls-private-key-file=/b " +
			"--client-ca-file=/c --authorization-always-allow-paths=/healthz,/metrics --logging-format=json --profiling=false",
			"--feature-gates: InformerResourceVersion:"},
		{"--feature-gates=SchedulerAsyncPreemption=false,OpportunisticBatching=true,StorageCapacityScoring=false,AllAlpha=true,AllBeta=false",
			"SchedulerAsyncPreemption: OpportunisticBatching: AllAlpha=true: AllBeta=false:"},
		{"--permit-port-sharing --disable-http2-serving --emulated-version=1.35 --vmodule=a=1 --disabled-metrics=a",
			"--disable-http2-serving --emulated-version --permit-port-sharing"},
	} {
		f := parse(t, strings.Fields(row.line)...)
		if err := f.Validate(); err != nil {
			t.Errorf("%s: %v", row.line, err)
		}
		notes := strings.Join(f.Notes(), "\n")
		for _, want := range strings.Split(row.notes, " ") {
			if !strings.Contains(notes, want) {
				t.Errorf("%s: no note about %s in:\n%s", row.line, want, notes)
			}
		}
		if len(f.Notes()) != len(strings.Fields(strings.ReplaceAll(row.notes, "gates: ", "gates:"))) {
			t.Errorf("%s: more notes than wanted:\n%s", row.line, notes)
		}
	}
}

// TestGatesThatAreHonoured verifies that gates take effect if set by name or by the name of a
// group, and otherwise have upstream's defaults.
func TestGatesThatAreHonoured(t *testing.T) {
	for _, row := range []struct {
		gates                                                                 string
		compare, noScores, allowMissing, waitOut, noExpectation, noTaintRules bool
	}{
		{gates: ""},
		{gates: "TaintTolerationComparisonOperators=true", compare: true},
		{gates: "AllAlpha=true", compare: true},
		{gates: "AllAlpha=true,TaintTolerationComparisonOperators=false"},
		{gates: "SchedulerPopFromBackoffQ=false", waitOut: true},
		{gates: "NominatedNodeNameForExpectation=false", noExpectation: true},
		{gates: "StorageCapacityScoring=false", noScores: true},
		{gates: "VolumeLimitScaling=false", allowMissing: true},
		{gates: "DRADeviceTaintRules=false", noTaintRules: true},
		{gates: "AllBeta=false,StorageCapacityScoring=true", allowMissing: true, waitOut: true, noExpectation: true},
		{gates: "AllBeta=true,AllAlpha=false"},
		{gates: "kube:StorageCapacityScoring=false, kube: AllAlpha=true", compare: true, noScores: true},
	} {
		f := parse(t, "--feature-gates="+row.gates)
		if err := f.Validate(); err != nil {
			t.Errorf("%s: %v", row.gates, err)
		}
		h := f.JournalHeader() // used by berth replay
		if f.CompareTolerations() != row.compare || h.CompareTolerations != row.compare ||
			f.WithoutStorageScores() != row.noScores || h.WithoutStorageScores != row.noScores ||
			f.AllowMissingDrivers() != row.allowMissing || h.AllowMissingDrivers != row.allowMissing || h.Disabled != f.Disabled() ||
			f.Disabled() != (cycle.Disabled{PopFromBackoff: row.waitOut, Expectation: row.noExpectation, DeviceTaintRules: row.noTaintRules}) {
			t.Errorf("%s: tolerations compared %t, storage unscored %t, drivers may be missing %t, disabled %+v; %+v", row.gates,
				f.CompareTolerations(), f.WithoutStorageScores(), f.AllowMissingDrivers(), f.Disabled(), h)
		}
	}
}

// TestGatesThatBerthCannotFollowAreRefused verifies that a gate is never silently accepted with a
// value that Berth does not support.
func TestGatesThatBerthCannotFollowAreRefused(t *testing.T) {
	for _, g := range Gates() {
		asDefault, other := fmt.Sprintf("--feature-gates=%s=%t", g.Name, g.On), fmt.Sprintf("--feature-gates=%s=%t", g.Name, !g.On)
		if err := parse(t, asDefault).Validate(); err != nil {
			t.Errorf("%s, the default: %v", asDefault, err)
		}
		f := parse(t, other)
		err := f.Validate()
		switch {
		case g.Treatment == Fixed:
			if err == nil || !strings.Contains(err.Error(), g.Name) || g.Locked != (g.Why == "") || !strings.HasSuffix(err.Error(), g.Why) {
				t.Errorf("%s: %v", other, err)
			}
		case err != nil && !strings.Contains(err.Error(), "needs"): // a gate of pod groups needs another one
			t.Errorf("%s: %v", other, err)
		case (g.Treatment == WithoutEffect) != (len(f.Notes()) == 1):
			t.Errorf("%s: noted %q", other, f.Notes())
		}
	}
}

// TestGatesThatAreGone verifies that gates unknown to kube-scheduler v1.37 are refused with its
// message.
func TestGatesThatAreGone(t *testing.T) {
	for _, name := range []string{"GangScheduling", "WorkloadAwarePreemption", "SchedulerQueueingHints", "SidecarContainers"} {
		err := parse(t, "--feature-gates="+name+"=true").Validate()
		if want := "--feature-gates: unrecognized feature gate: " + name; err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}

	err := parse(t, "--feature-gates=NodeDeclaredFeatures=false").Validate()
	if want := "--feature-gates: cannot set feature gate NodeDeclaredFeatures to false, feature is locked to true"; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// TestGatesAreDocumented verifies that docs/reference/feature-gates.md names every gate.
func TestGatesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/feature-gates.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range Gates() {
		if !strings.Contains(string(text), "`"+g.Name+"`") {
			t.Errorf("docs/reference/feature-gates.md does not name %s", g.Name)
		}
	}
}

func TestFullConfigurationCanBeReadAgain(t *testing.T) {
	f := parse(t, "--config", write(t, file+`
profiles:
- schedulerName: mine
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated}}
`), "--leader-elect=false")
	s, c := settings(t, f)
	printed, err := YAML(s.Full(c))
	if err != nil {
		t.Fatal(err)
	}
	again := parse(t, "--config", write(t, string(printed)))
	s2, c2 := settings(t, again)
	if s2.Lead != s.Lead || s2.Cluster != s.Cluster || s2.QPS != s.QPS {
		t.Errorf("settings %+v became %+v", s, s2)
	}
	if !reflect.DeepEqual(c2.Profiles[0].At, c.Profiles[0].At) {
		t.Errorf("profiles differ:\n%s", printed)
	}
	for _, want := range []string{"kind: NodeResourcesFitArgs", "type: MostAllocated", "podMaxBackoffSeconds: 10", "leaderElect: false"} {
		if !strings.Contains(string(printed), want) {
			t.Errorf("no %q in\n%s", want, printed)
		}
	}
}
