// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pack

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

var update = flag.Bool("update", false, "write the renders in testdata anew")

// cases pairs values of the chart with the equivalent kustomization.
var cases = []struct {
	name       string
	values     string
	overlay    string
	components []string
}{
	{"second-scheduler", "{}", "second-scheduler", nil},
	{"replace-default", "mode: replace-default", "replace-default", nil},
	{"everything", `
mode: replace-default
webhook: {enabled: true}
ui: {enabled: true}
serviceMonitor: {enabled: true}
alerts: {enabled: true}
dashboard: {enabled: true}
`, "replace-default", []string{"webhook", "ui", "monitoring"}},
	{"rebalance", `{mode: replace-default, controller: {rebalance: {enabled: true}}}`, "replace-default", []string{"rebalance"}},
	{"rebalance-surge", `{mode: replace-default, controller: {rebalance: {enabled: true, surge: true}}}`, "replace-default",
		[]string{"rebalance", "surge", "rebalance-surge"}},
	{"rebalance-cost", `{mode: replace-default, controller: {rebalance: {enabled: true, cost: {enabled: true}}}}`, "replace-default",
		[]string{"rebalance", "rebalance-cost"}},
	{"eviction-guard", `{mode: replace-default, webhook: {enabled: true}, evictionGuard: {enabled: true}}`, "replace-default",
		[]string{"webhook", "surge", "eviction-guard"}},
	{"eviction-requests", `{mode: replace-default, controller: {evictionRequests: {enabled: true}}}`, "replace-default",
		[]string{"eviction-requests"}},
	{"serve", "serve: {enabled: true}", "second-scheduler", []string{"serve"}},
	{"serve-tls", "serve: {enabled: true, tlsSecret: berth-serve-tls}", "second-scheduler", []string{"serve", "serve-tls"}},
	{"shadow", "mode: shadow", "shadow", nil},
	{"second-scheduler-with-webhook", "webhook: {enabled: true}", "second-scheduler", []string{"webhook"}},
}

// TestChartAndKustomizationAreTheSame verifies that the chart and the kustomization have the same
// objects. It ignores Helm's general additions, and the namespace, which `helm install
// --create-namespace` creates.
func TestChartAndKustomizationAreTheSame(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			fromChart := withoutHelms(t, mustRender(t, c.values))
			fromKustomization := withoutNamespace(t, kustomized(t, c.overlay, c.components...))
			if len(fromChart) < 9 {
				t.Errorf("only %d objects", len(fromChart))
			}
			if diff := cmp.Diff(asYAML(t, fromKustomization), asYAML(t, fromChart)); diff != "" {
				t.Errorf("- of the kustomization, + of the chart:\n%s", diff)
			}
		})
	}
}

func withoutHelms(t *testing.T, objects []object) []object {
	var out []object
	for _, o := range objects {
		o = clone(t, o)
		labels := o["metadata"].(map[string]any)["labels"].(map[string]any)
		for _, label := range []string{"helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version"} {
			if labels[label] == nil {
				t.Errorf("%s: has no label %s", o.id(), label)
			}
			delete(labels, label)
		}
		if o["kind"] == "Deployment" { // Kubernetes' own default
			pod := o["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)
			for _, container := range pod["containers"].([]any) {
				if container := container.(map[string]any); container["imagePullPolicy"] == "IfNotPresent" {
					delete(container, "imagePullPolicy")
				}
			}
		}
		out = append(out, o)
	}
	return sameText(out)
}

func withoutNamespace(t *testing.T, objects []object) []object {
	var out []object
	for _, o := range objects {
		if o["kind"] != "Namespace" {
			out = append(out, clone(t, o))
		}
	}
	return sameText(out)
}

// sameText removes leading and trailing white space from blocks of text.
func sameText(objects []object) []object {
	for _, o := range objects {
		if data, ok := o["data"].(map[string]any); ok {
			for key, text := range data {
				data[key] = strings.TrimSpace(text.(string))
			}
		}
	}
	return objects
}

// TestRendersAreKnown compares the renders with stored ones, so that review shows every change of
// the installed objects.
func TestRendersAreKnown(t *testing.T) {
	for _, c := range cases {
		file := filepath.Join("testdata", c.name+".yaml")
		got := asYAML(t, mustRender(t, c.values))
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (go test . -update writes it):\n%s", file, diff)
		}
	}
}

// TestMemoryIsLimited verifies that each container has a memory limit, so that a growing component
// is killed instead of its neighbours, and that GOMEMLIMIT is below that limit.
func TestMemoryIsLimited(t *testing.T) {
	for _, c := range cases {
		for name, objects := range map[string][]object{"chart": mustRender(t, c.values), "kustomization": kustomized(t, c.overlay, c.components...)} {
			deployments := 0
			for _, o := range objects {
				if o["kind"] != "Deployment" {
					continue
				}
				deployments++
				for container, m := range memory(t, o) {
					if m.limit == 0 || !m.fits() {
						t.Errorf("%s of %s: %s: %s: %+v MiB", name, c.name, o.id(), container, m)
					}
				}
			}
			if deployments == 0 {
				t.Errorf("%s of %s: no deployments", name, c.name)
			}
		}
	}
	for given, want := range map[string]int{"700Mi": 700, "3Gi": 3072} {
		for _, o := range mustRender(t, "scheduler: {resources: {limits: {memory: "+given+"}}}") {
			if o["kind"] == "Deployment" {
				if m := memory(t, o)["scheduler"]; m.limit != want || !m.fits() {
					t.Errorf("%s: %+v MiB", given, m)
				}
			}
		}
	}
	// For a limit in another unit, the kubelet sets GOMEMLIMIT. Without a limit, GOMEMLIMIT is not
	// set.
	if text := asYAML(t, mustRender(t, "scheduler: {resources: {limits: {memory: 2G}}}")); !strings.Contains(text, "resource: limits.memory") {
		t.Errorf("2G:\n%s", text)
	}
	if text := asYAML(t, mustRender(t, "scheduler: {resources: {limits: null}}")); strings.Contains(text, "GOMEMLIMIT") {
		t.Errorf("no limit:\n%s", text)
	}
}

// limits holds a container's limit and Go's, in MiB.
type limits struct{ limit, goLimit int }

func (l limits) fits() bool { return l.goLimit >= l.limit*85/100 && l.goLimit <= l.limit*95/100 }

// memory returns the memory limits of a deployment's containers.
func memory(t *testing.T, o object) map[string]limits {
	t.Helper()
	of := func(value any, keys ...string) any {
		for _, key := range keys {
			fields, _ := value.(map[string]any)
			value = fields[key]
		}
		return value
	}
	all := map[string]limits{}
	containers, _ := of(map[string]any(o), "spec", "template", "spec", "containers").([]any)
	for _, container := range containers {
		own := limits{limit: mebibytes(t, of(container, "resources", "limits", "memory"))}
		environment, _ := of(container, "env").([]any)
		for _, env := range environment {
			if of(env, "name") == "GOMEMLIMIT" {
				own.goLimit = mebibytes(t, of(env, "value"))
			}
		}
		name, _ := of(container, "name").(string)
		all[name] = own
	}
	if len(all) == 0 {
		t.Errorf("%s: no containers", o.id())
	}
	return all
}

func mebibytes(t *testing.T, amount any) int {
	t.Helper()
	text, _ := amount.(string)
	for unit, each := range map[string]int{"Gi": 1024, "Mi": 1, "MiB": 1} {
		if number, ok := strings.CutSuffix(text, unit); ok {
			n, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			return n * each
		}
	}
	return 0
}

func TestChartIsLinted(t *testing.T) {
	for _, message := range lint.RunAll(chartFolder, nil, "berth-system").Messages {
		t.Error(message)
	}
}

// TestWrongValuesAreRefused verifies that invalid values are rejected before anything reaches a
// cluster.
func TestWrongValuesAreRefused(t *testing.T) {
	for _, c := range []struct {
		values map[string]any
		says   string
	}{
		{map[string]any{"mode": "beside"}, "/mode"},
		{map[string]any{"image": map[string]any{"tag": "latest"}}, "/image/tag"},
		{map[string]any{"image": map[string]any{"digest": "sha256:short"}}, "/image/digest"},
		{map[string]any{"scheduler": map[string]any{"replicas": 0}}, "/scheduler/replicas"},
		{map[string]any{"scheduler": map[string]any{"args": []any{"v=2"}}}, "/scheduler/args"},
		{map[string]any{"webhok": map[string]any{"enabled": true}}, "webhok"},
		{map[string]any{"mode": "shadow", "controller": map[string]any{"enabled": true}}, "mode: shadow"},
		{map[string]any{"mode": "shadow", "webhook": map[string]any{"enabled": true}}, "mode: shadow"},
		{map[string]any{"mode": "shadow", "ui": map[string]any{"enabled": true}}, "mode: shadow"},
		{map[string]any{"mode": "shadow", "serve": map[string]any{"enabled": true}}, "mode: shadow"},
		{map[string]any{"controller": map[string]any{"rebalance": map[string]any{"enabled": true}}}, "controller.rebalance.enabled"},
		{map[string]any{"mode": "replace-default", "controller": map[string]any{"rebalance": map[string]any{"cost": map[string]any{"enabled": true}}}},
			"controller.rebalance.cost.enabled"},
	} {
		if _, err := render("berth", "berth-system", c.values); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: says %v, want something about %s", c.values, err, c.says)
		}
	}
}

// TestValuesHaveEffect verifies the effect of each value, with another release name and namespace.
func TestValuesHaveEffect(t *testing.T) {
	objects, err := render("blue", "team", map[string]any{
		"image":             map[string]any{"repository": "registry.example.org/b", "digest": "sha256:" + strings.Repeat("a", 64)},
		"imagePullSecrets":  []any{map[string]any{"name": "pull"}},
		"priorityClassName": "",
		"podLabels":         map[string]any{"team": "a"},
		"podAnnotations":    map[string]any{"note": "b"},
		"controller":        map[string]any{"enabled": true},
		"webhook":           map[string]any{"enabled": true, "podDisruptionBudget": map[string]any{"enabled": false, "maxUnavailable": 1}},
		"networkPolicy":     map[string]any{"enabled": false},
		"serviceMonitor":    map[string]any{"enabled": true},
		"alerts":            map[string]any{"enabled": true},
		"scheduler": map[string]any{
			"args": []any{"--v=2"}, "nodeSelector": map[string]any{"a": "b"}, "affinity": map[string]any{"podAffinity": map[string]any{}},
			"configuration": map[string]any{
				"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
				"leaderElection": map[string]any{"resourceNamespace": "elsewhere", "resourceName": "mine"},
			},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	text := asYAML(t, objects)
	for _, want := range []string{
		"image: registry.example.org/b@sha256:aaaa", "- name: pull", "team: a", "note: b", "- --v=2", "a: b", "podAffinity: {}",
		"name: blue-berth-scheduler", "--service=blue-berth-webhook", "--namespace=team", "--leader-elect-resource-name=blue-berth-controller",
		"resourceNames:\n  - mine", "namespace: elsewhere", `job="blue-berth-scheduler-metrics"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("nothing says %q", want)
		}
	}
	for _, other := range []string{"priorityClassName", "kind: NetworkPolicy", "berth-system", "\n  name: berth-"} {
		if strings.Contains(text, other) {
			t.Errorf("something says %q", other)
		}
	}
	if n := strings.Count(text, "kind: PodDisruptionBudget"); n != 2 {
		t.Errorf("%d budgets, want those of scheduler and controller", n)
	}
}

// TestAShadowTakesConfigurationAndFlags verifies that a shadow can have the configuration and the
// flags of the cluster's own components, with which it is compared.
func TestAShadowTakesConfigurationAndFlags(t *testing.T) {
	text := asYAML(t, mustRender(t, `
mode: shadow
scheduler:
  args: [--v=3]
  configuration:
    apiVersion: kubescheduler.config.k8s.io/v1
    kind: KubeSchedulerConfiguration
    profiles: [{schedulerName: ours}]
controller: {args: [--node-monitor-grace-period=40s]}
`))
	for _, want := range []string{"schedulerName: ours", "- --v=3", "- --node-monitor-grace-period=40s"} {
		if strings.Count(text, want) != 1 {
			t.Errorf("%q is there %d times, want once", want, strings.Count(text, want))
		}
	}
	if strings.Contains(text, "schedulerName: default-scheduler") {
		t.Error("the mode's configuration is still there")
	}
}

// TestAlertsAreOfWhatIsInstalled verifies that components not installed cause no alerts.
func TestAlertsAreOfWhatIsInstalled(t *testing.T) {
	for _, c := range []struct {
		values string
		groups []string
	}{
		{"alerts: {enabled: true}", []string{"berth-scheduler"}},
		{"{alerts: {enabled: true}, controller: {enabled: true}}", []string{"berth-scheduler", "berth-controller"}},
		{"{alerts: {enabled: true}, webhook: {enabled: true}}", []string{"berth-scheduler", "berth-webhook"}},
		{"{alerts: {enabled: true}, mode: shadow}", nil},
	} {
		var groups []string
		for _, o := range mustRender(t, c.values) {
			if o["kind"] != "PrometheusRule" {
				continue
			}
			for _, group := range o["spec"].(map[string]any)["groups"].([]any) {
				groups = append(groups, group.(map[string]any)["name"].(string))
			}
		}
		if diff := cmp.Diff(c.groups, groups); diff != "" {
			t.Errorf("%s: - wanted, + there:\n%s", c.values, diff)
		}
	}
}

// TestVersionsAgree verifies that the chart and the kustomization run the same version.
func TestVersionsAgree(t *testing.T) {
	chart, err := loader.LoadDir(chartFolder)
	if err != nil {
		t.Fatal(err)
	}
	image := "image: registry.example.com/berth:" + chart.Metadata.AppVersion + "\n"
	if text := asYAML(t, kustomized(t, "replace-default", "webhook")); strings.Count(text, image) != 3 {
		t.Errorf("not all three images of the kustomization are %s", image)
	}
}
