// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/admission/webhook"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
)

// TestRightsArePlain verifies that roles do not use wildcards for verbs, groups or resources, and
// that the rules of each role begin with a comment on their purpose.
func TestRightsArePlain(t *testing.T) {
	for _, part := range Parts() {
		rights, err := RightsOf(part)
		if err != nil || len(rights) < 10 {
			t.Fatalf("%s: %v (%v)", part, rights, err)
		}
		seen := map[Right]bool{}
		for _, right := range rights {
			if strings.Contains(right.Verb+right.Group+right.Resource, "*") || seen[right] {
				t.Errorf("%s: %v", part, right)
			}
			seen[right] = true
		}
		text, err := manifests.ReadFile(files[part])
		if err != nil {
			t.Fatal(err)
		}
		for _, rules := range regexp.MustCompile(`(?m)^rules:\n(.*)\n`).FindAllStringSubmatch(string(text), -1) {
			if !strings.HasPrefix(rules[1], "# ") {
				t.Errorf("%s: nothing says what the rule %q is for", files[part], rules[1])
			}
		}
	}
	if _, err := RightsOf("nobody"); err == nil {
		t.Error("there are rights of nobody")
	}
}

func TestRightsReadAsASentence(t *testing.T) {
	for want, right := range map[string]Right{
		"get pods": {Verb: "get", Resource: "pods"},
		"update leases.coordination.k8s.io x in ns":   {Verb: "update", Group: "coordination.k8s.io", Resource: "leases", Name: "x", Namespace: "ns"},
		"patch resourceclaims.resource.k8s.io/status": {Verb: "patch", Group: "resource.k8s.io", Resource: "resourceclaims/status"},
	} {
		if right.String() != want {
			t.Errorf("%q, want %q", right, want)
		}
	}
}

// TestViewIsWhatTheCommandsRead verifies that berth-view permits reading exactly the kinds read by
// explain, what-if and record, events for the dashboard, NodePools and CapacityBuffers for plans,
// and webhooks to detect the eviction guard.
func TestViewIsWhatTheCommandsRead(t *testing.T) {
	rights, err := RightsOf(View)
	if err != nil {
		t.Fatal(err)
	}
	var have, want []string
	for _, right := range rights {
		if right.Verb == "list" {
			have = append(have, right.Group+"/"+right.Resource)
		}
	}
	for _, kind := range snapshot.Kinds() {
		want = append(want, kind.GroupVersion.Group+"/"+kind.Resource)
	}
	want = append(want, "/events", "admissionregistration.k8s.io/validatingwebhookconfigurations",
		"karpenter.sh/nodepools", "autoscaling.x-k8s.io/capacitybuffers", "/podtemplates")
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("it may list\n%v, and what is read is\n%v", have, want)
	}
}

// TestPrintedWebhookHasTheSameRights verifies that the manifests of `berth webhook
// --print-manifests` grant the same permissions as the kustomization.
func TestPrintedWebhookHasTheSameRights(t *testing.T) {
	options := webhook.DefaultOptions()
	var printed strings.Builder
	if err := options.WriteManifests(&printed, "registry.example.com/berth:v1"); err != nil {
		t.Fatal(err)
	}
	there, err := Granted(printed.String(), Namespace, "berth-webhook")
	if err != nil {
		t.Fatal(err)
	}
	here, err := RightsOf(Webhook)
	if err != nil {
		t.Fatal(err)
	}
	byText := func(a, b Right) int { return strings.Compare(a.String(), b.String()) }
	slices.SortFunc(there, byText)
	slices.SortFunc(here, byText)
	if !slices.Equal(here, there) {
		t.Errorf("the manifests grant\n%v, what is printed\n%v", here, there)
	}
}

var metricName = regexp.MustCompile(`\b(?:scheduler|berth|taint_eviction_controller|node_collector|leader_election|rest_client|process)_[a-z0-9_]+`)

// TestMetricsExist verifies that the metrics in the dashboard and in alerts are in the
// documentation, which is generated from the code.
func TestMetricsExist(t *testing.T) {
	var documented string
	for _, page := range []string{"reference/metrics.md"} {
		text, err := os.ReadFile(filepath.Join("../docs", page))
		if err != nil {
			t.Fatal(err)
		}
		documented += string(text)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	text, err := os.ReadFile("kustomize/components/monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	looked := 0
	look := func(where, expression string) {
		for _, name := range metricName.FindAllString(expression, -1) {
			looked++
			base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
			switch {
			case strings.Contains(documented, "`"+name+"`"), strings.Contains(documented, "`"+base+"`"):
			case strings.HasPrefix(name, "process_") && strings.Contains(documented, "`process_*`"):
			default:
				t.Errorf("%s: there is no metric %s", where, name)
			}
		}
	}
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			look(panel.Title, target.Expr)
		}
	}
	for _, rule := range alertRules(t) {
		look(rule.Alert, rule.Expr)
	}
	if looked < 30 {
		t.Errorf("only %d metrics were looked at", looked)
	}
}

// alertRule is one alert of the component monitoring.
type alertRule struct {
	Alert, Expr string
	Annotations map[string]string
}

func alertRules(t *testing.T) (all []alertRule) {
	t.Helper()
	var alerts struct {
		Spec struct {
			Groups []struct{ Rules []alertRule }
		}
	}
	text, err := os.ReadFile("kustomize/components/monitoring/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &alerts); err != nil {
		t.Fatal(err)
	}
	for _, group := range alerts.Spec.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// TestAlertsAreAboutBerthAlone verifies that alerts exclude kube-scheduler and
// kube-controller-manager: Prometheus may scrape them as well, and their metrics have the same
// names.
func TestAlertsAreAboutBerthAlone(t *testing.T) {
	looked := 0
	for _, rule := range alertRules(t) {
		for _, at := range metricName.FindAllStringIndex(rule.Expr, -1) {
			name, rest := rule.Expr[at[0]:at[1]], rule.Expr[at[1]:]
			if strings.HasPrefix(name, "berth_") {
				continue
			}
			looked++
			if !strings.HasPrefix(rest, `{job="berth-`) {
				t.Errorf("%s: %s is of every component that has it", rule.Alert, name)
			}
		}
	}
	if looked < 5 {
		t.Errorf("only %d metrics were looked at", looked)
	}
}

// TestEveryAlertHasARunbook verifies that each alert has a section with the remedy, and that each
// section has an alert.
func TestEveryAlertHasARunbook(t *testing.T) {
	page, err := os.ReadFile("../docs/tasks/runbooks.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]bool{}
	for _, title := range regexp.MustCompile(`(?m)^## (.+)$`).FindAllStringSubmatch(string(page), -1) {
		sections[title[1]] = true
	}
	const runbooks = "https://github.com/berth-k8s/berth/blob/main/docs/tasks/runbooks.md#"
	for _, rule := range alertRules(t) {
		if link := rule.Annotations["runbook_url"]; link != runbooks+strings.ToLower(rule.Alert) || !sections[rule.Alert] {
			t.Errorf("%s: runbook_url %q, and a section of docs/tasks/runbooks.md: %v", rule.Alert, link, sections[rule.Alert])
		}
		delete(sections, rule.Alert)
	}
	for section := range sections {
		t.Errorf("docs/tasks/runbooks.md has a section %q and there is no such alert", section)
	}
}

// TestShadowReadsWhatTheOthersRead verifies that the overlay's account can list and watch exactly
// the scheduler's and the controller's resources, and can do nothing else.
func TestShadowReadsWhatTheOthersRead(t *testing.T) {
	text, err := manifests.ReadFile("kustomize/overlays/shadow/shadow-rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	have, err := Granted(string(text), Namespace, "berth-shadow")
	if err != nil {
		t.Fatal(err)
	}
	var want []Right
	for _, part := range []Part{Scheduler, Controller} {
		rights, err := RightsOf(part)
		if err != nil {
			t.Fatal(err)
		}
		for _, right := range rights {
			// The scheduler being compared does not keep room for pods moved by Berth.
			if isRoom := right.Resource == "leases" && right.Name == "berth-rebalance"; !isRoom && (right.Verb == "list" || right.Verb == "watch") {
				want = append(want, right)
			}
		}
	}
	byText := func(a, b Right) int { return strings.Compare(a.String(), b.String()) }
	slices.SortFunc(have, byText)
	slices.SortFunc(want, byText)
	want = slices.Compact(want)
	if !slices.Equal(have, want) || len(want) < 20 {
		t.Errorf("a shadow may\n%v, and the others list and watch\n%v", have, want)
	}
}

// TestPatchesAreOneDocument verifies that each patch of a kustomization is a single document: with
// two deletions in one patch, kustomize 5.5 and 5.6 crash (kubectl 1.32).
func TestPatchesAreOneDocument(t *testing.T) {
	files, err := filepath.Glob("kustomize/*/*/kustomization.yaml")
	if err != nil || len(files) < 8 {
		t.Fatal(files, err)
	}
	patches := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var k struct {
			Patches []struct{ Path, Patch string }
		}
		if err := yaml.Unmarshal(text, &k); err != nil {
			t.Fatal(err)
		}
		for _, p := range k.Patches {
			if p.Path != "" {
				text, err := os.ReadFile(filepath.Join(filepath.Dir(file), p.Path))
				if err != nil {
					t.Fatal(err)
				}
				p.Patch = string(text)
			}
			if patches++; strings.Contains("\n"+strings.TrimSpace(p.Patch)+"\n", "\n---\n") {
				t.Errorf("%s: a patch has several documents:\n%s", file, p.Patch)
			}
		}
	}
	if patches < 4 {
		t.Errorf("only %d patches were found", patches)
	}
}
