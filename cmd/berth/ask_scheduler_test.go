// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
)

const packingConfiguration = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: NAME
  plugins: {score: {disabled: [{name: NodeResourcesBalancedAllocation}]}}
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}
`

// twoNodes is a cluster with a pod on node-1, an empty node-2, and a pending pod for each
// scheduler.
func twoNodes(t *testing.T, schedulers ...string) *apitest.Server {
	t.Helper()
	api := apitest.New(t)
	for _, name := range []string{"node-1", "node-2"} {
		api.Set("nodes", apitest.Object{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name, "uid": name},
			"status": map[string]any{"allocatable": map[string]any{"cpu": "8", "memory": "16Gi", "pods": "110"}}})
	}
	pod := func(name, node, scheduler string) {
		api.Set("pods", apitest.Object{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name, "namespace": "default", "uid": name},
			"spec": map[string]any{"nodeName": node, "schedulerName": scheduler, "containers": []any{
				map[string]any{"name": "c", "image": "i", "resources": map[string]any{"requests": map[string]any{"cpu": "1", "memory": "1Gi"}}}}}})
	}
	pod("there", "node-1", "default-scheduler")
	for _, scheduler := range schedulers {
		pod("of-"+scheduler, "", scheduler)
	}
	return api
}

// packs returns the configuration in use of a bin-packing scheduler with the given name.
func packs(t *testing.T, name, server string) *config.InUse {
	t.Helper()
	c, err := config.Parse("x", []byte(strings.Replace(packingConfiguration, "NAME", name, 1)), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	inUse, err := c.InUse(config.Added{}, groups.Gates{})
	if err != nil {
		t.Fatal(err)
	}
	inUse.Server = server
	return inUse
}

func leaseOf(namespace, name, holder, annotation string) apitest.Object {
	metadata := map[string]any{"name": name, "namespace": namespace, "uid": name}
	if annotation != "" {
		metadata["annotations"] = map[string]any{config.InUseAnnotation: annotation}
	}
	return apitest.Object{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
		"spec": map[string]any{"holderIdentity": holder, "renewTime": time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")}}
}

// schedulerThat serves a configuration in use, like a scheduler's endpoint.
func schedulerThat(t *testing.T, inUse *config.InUse) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != config.InUsePath {
			http.Error(w, "pod: unknown", http.StatusNotFound)
			return
		}
		fmt.Fprintf(w, `{"kind": %q, "server": %q, "profiles": %s}`, inUse.Kind, inUse.Server, inUse.Profiles)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// TestAnswersAreByTheConfigurationThatRuns verifies that results use the configuration reported by
// the queried scheduler, or announced in a scheduler's Lease. Otherwise the first line mentions the
// assumed configuration.
func TestAnswersAreByTheConfigurationThatRuns(t *testing.T) {
	const assumed = "Assumed: default-scheduler runs with the default configuration, because "
	for name, row := range map[string]struct {
		lease  apitest.Object
		asked  bool
		beside string // API server of the discovered scheduler
		packs  bool
		first  string
	}{
		"nobody tells":            {nil, false, "", false, assumed + "no scheduler of this name could be asked"},
		"a scheduler is asked":    {nil, true, "", true, ""},
		"one of berth up":         {nil, false, "this", true, ""},
		"one of another cluster":  {nil, false, "https://other:6443", false, assumed + "no scheduler of this name could be asked"},
		"a Lease":                 {leaseOf("kube-system", "kube-scheduler", "me", packs(t, "default-scheduler", "").OnLease("me")), false, "", true, ""},
		"a Lease taken by others": {leaseOf("kube-system", "kube-scheduler", "other", packs(t, "default-scheduler", "").OnLease("me")), false, "", false, assumed + "kube-scheduler, which leads by the Lease kube-system/kube-scheduler as other, does not publish it"},
	} {
		t.Run(name, func(t *testing.T) {
			api := twoNodes(t, "default-scheduler")
			if row.lease != nil {
				api.Set("leases", row.lease)
			}
			live := liveConfig(t, api.Config.Host).Replace("CONF")
			if row.asked {
				live += " --scheduler-url " + schedulerThat(t, packs(t, "default-scheduler", ""))
			}
			if row.beside != "" {
				inUse := packs(t, "default-scheduler", strings.Replace(row.beside, "this", api.Config.Host, 1))
				_, kubeconfig, _ := strings.Cut(live, " ")
				if err := os.WriteFile(filepath.Join(filepath.Dir(kubeconfig), query.AddressFile), []byte(schedulerThat(t, inUse)+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			where := map[bool]string{true: "node-1", false: "node-2"}[row.packs]
			for question, node := range map[string]string{
				"explain pod/of-default-scheduler -n default":    where,
				"what-if add-pods 4 --like pod/there -n default": map[bool]string{true: "4  node-1", false: "on 2 nodes"}[row.packs],
				"pending -A": "", "rebalance spread": "", "capacity --like pod/there -n default": "",
			} {
				code, out, errs := command(t, strings.Fields(question+" "+live)...)
				first, rest, _ := strings.Cut(out, "\n")
				if row.first == "" {
					rest = out
				}
				if code != 0 || !strings.HasPrefix(first, row.first) || strings.Contains(rest, "Assumed") || !strings.Contains(out, node) {
					t.Errorf("%s: exit code %d, want %q first and %s\n%s%s", question, code, row.first, node, out, errs)
				}
			}
			code, _, errs := command(t, strings.Fields("rebalance spread --execute "+live)...)
			if refused := strings.Contains(errs, "no pod is evicted on an assumption"); refused != (row.first != "") {
				t.Errorf("--execute: %d %s", code, errs)
			}
		})
	}
}

// TestPodsOfASecondSchedulerAreServed verifies that pods of a scheduler that announces its
// configuration in a Lease are served, and that the output reports pods of other schedulers as not
// served.
func TestPodsOfASecondSchedulerAreServed(t *testing.T) {
	api := twoNodes(t, "berth-scheduler", "unknown")
	api.Set("leases", leaseOf("berth-system", "berth-scheduler", "me", packs(t, "berth-scheduler", "").OnLease("me")))
	live := liveConfig(t, api.Config.Host).Replace("CONF")
	code, out, errs := command(t, strings.Fields("explain pod/of-berth-scheduler -n default --node node-2 "+live)...)
	if code != 0 || !strings.Contains(out, "Schedulable") || !strings.Contains(out, "node-2") || !strings.HasPrefix(out, "Assumed: default-scheduler ") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
	code, out, errs = command(t, strings.Fields("explain pod/of-unknown -n default --node node-2 "+live)...)
	if code != 0 || !strings.Contains(out, "Unserved") || !strings.Contains(out, "No plugin was asked about node-2: ") {
		t.Errorf("exit code %d\n%s%s", code, out, errs)
	}
}

// TestAStoppedSchedulerIsTheFirstLine verifies that results begin with a line about the scheduler's
// released or expired Lease, whatever the source of the configuration, and do not predict when a
// pod is scheduled.
func TestAStoppedSchedulerIsTheFirstLine(t *testing.T) {
	const long, turn = "2026-01-01T10:00:00.000000Z", "when its turn comes"
	text := packs(t, "default-scheduler", "").OnLease("me")
	profile := filepath.Join(t.TempDir(), "profile.yaml")
	if err := os.WriteFile(profile, []byte(strings.Replace(packingConfiguration, "NAME", "default-scheduler", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		holder, published, flags, renewed string
		want                              string
	}{
		"released":              {"", text, "", long, "the Lease kube-system/kube-scheduler was released at 2026-01-01 10:00:00Z."},
		"not renewed":           {"me", text, "", long, "me has not renewed the Lease kube-system/kube-scheduler since 2026-01-01 10:00:00Z."},
		"kube-scheduler's":      {"cp_1", "", "", long, "cp_1 has not renewed the Lease kube-system/kube-scheduler since 2026-01-01 10:00:00Z."},
		"with a named file":     {"me", text, " --config " + profile, long, "me has not renewed"},
		"renewed":               {"me", text, "", "", ""},
		"another one responds":  {"me", text, " --scheduler-url " + schedulerThat(t, packs(t, "default-scheduler", "")), long, ""},
		"of another scheduler":  {"me", packs(t, "other", "").OnLease("me"), "", long, ""},
		"no Lease of elections": {"-", "", "", long, ""},
	} {
		t.Run(name, func(t *testing.T) {
			api := twoNodes(t, "default-scheduler")
			lease := leaseOf("kube-system", "kube-scheduler", row.holder, row.published)
			if row.renewed != "" {
				lease["spec"].(map[string]any)["renewTime"] = row.renewed
			}
			if row.holder != "-" {
				api.Set("leases", lease)
			}
			live := liveConfig(t, api.Config.Host).Replace("CONF") + row.flags
			for _, question := range []string{"explain pod/of-default-scheduler -n default", "pending -A", "what-if cordon node/node-2", "capacity --like pod/there -n default"} {
				code, out, errs := command(t, strings.Fields(question+" "+live)...)
				first, _, _ := strings.Cut(out, "\n")
				stopped := strings.HasPrefix(first, "No scheduler is running for default-scheduler: ") &&
					strings.HasSuffix(first, " The answer below applies once one is running.")
				if code != 0 || stopped != (row.want != "") || !strings.Contains(first, row.want) {
					t.Errorf("%s: exit code %d, want %q first\n%s%s", question, code, row.want, out, errs)
				}
				if row.want != "" && (strings.Contains(out, turn) || strings.HasPrefix(question, "explain") && !strings.Contains(out, "would be chosen. No scheduler is running to place it.")) {
					t.Errorf("%s: it is told to wait for its turn\n%s", question, out)
				}
			}
			if _, out, _ := command(t, strings.Fields("pending -A "+live)...); row.want == "" && !strings.Contains(out, turn) && name != "of another scheduler" {
				t.Errorf("it is not told to wait for its turn\n%s", out)
			}
			_, out, _ := command(t, strings.Fields("explain pod/of-default-scheduler -n default -o jsonpath={.source.stopped[0].names[0]} "+live)...)
			if want := map[bool]string{true: "default-scheduler"}[row.want != ""]; name != "of another scheduler" && strings.TrimSpace(out) != want {
				t.Errorf("JSON: %q, want %q", out, want)
			}
		})
	}
}

// TestARecordingIsNoEvidenceOfItsPast verifies that a stopped scheduler is reported at the end of a
// recording, but not at earlier times: the recording holds only the last renewal of each Lease.
func TestARecordingIsNoEvidenceOfItsPast(t *testing.T) {
	const item = `{"items":[%s]}`
	machine := fmt.Sprintf(item, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n","uid":"n"},"status":{"allocatable":{"cpu":"4","pods":"10"}}}`)
	leases := fmt.Sprintf(item, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"kube-scheduler","namespace":"kube-system","uid":"l"},`+
		`"spec":{"holderIdentity":"cp_1","renewTime":"2026-11-20T12:00:00.000000Z"}}`)
	dir := t.TempDir()
	for name, text := range map[string]string{
		"recording.index": `{"apiVersion":"berth.dev/v1alpha1","kind":"Recording","source":{"from":"x","asOf":"2026-11-20T12:10:00Z"},` +
			`"sessions":[{"folder":"sessions/a","began":"2026-11-20T12:00:00.000000Z","until":"2026-11-20T12:10:00.000000Z"}]}`,
		"nodes.json": machine, "leases.json": leases, "sessions/a/nodes.json": machine, "sessions/a/leases.json": leases,
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for at, want := range map[string]bool{"": true, " --at -1m": false} {
		code, out, errs := command(t, strings.Fields("pending -A -f "+dir+at)...)
		if code != 0 || strings.HasPrefix(out, "No scheduler is running for default-scheduler: cp_1 ") != want {
			t.Errorf("%q: exit code %d, want it stopped: %v\n%s%s", at, code, want, out, errs)
		}
	}
}
