// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestSchedulerWithTheRightsOfKubeScheduler verifies that the permissions of the user
// system:kube-scheduler suffice to schedule pods, to elect a leader and to authorize readers of the
// metrics.
func TestSchedulerWithTheRightsOfKubeScheduler(t *testing.T) {
	kubectl(t, "create", "serviceaccount", "scraper")
	kubectl(t, "create", "clusterrole", "scraper", "--verb=get", "--non-resource-url=/metrics")
	kubectl(t, "create", "clusterrolebinding", "scraper", "--clusterrole=scraper", "--serviceaccount=default:scraper")
	token := strings.TrimSpace(kubectl(t, "create", "token", "scraper"))

	dir := t.TempDir()
	admin, err := os.ReadFile(filepath.Join(shared.dir, "kubeconfig"))
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, config := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "scheduler.yaml")
	user := regexp.MustCompile(`(?m)^(\s*)user:\s*$`)
	if !user.Match(admin) {
		t.Fatalf("no user in\n%s", admin)
	}
	for file, content := range map[string]string{
		kubeconfig: user.ReplaceAllString(string(admin), "${0}\n${1}  as: system:kube-scheduler"),
		config:     reloadConfig(false, "humble"),
	} {
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(content, "resourceName: reload", "resourceName: kube-scheduler")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// Nothing else listens on this test's own loopback address.
	own := fmt.Sprintf("127.%d.%d.1", 1+os.Getpid()/256%250, os.Getpid()%256)
	s := shared.schedule(t, "--config", config, "--kubeconfig", kubeconfig, "--bind-address", own, "--secure-port=10259",
		"--authentication-kubeconfig", kubeconfig, "--authorization-kubeconfig", kubeconfig)
	eventually(t, startWithin, func() error { return s.says("ready") })
	apply(t, pod("humble", "", "spec schedulerName: humble"))
	awaits(t, patience, "pod/humble", "{.status.phase}", "Running")
	apply(t, pod("too-big", "", "spec schedulerName: humble", "container resources: {requests: {cpu: 1000}}"))
	awaits(t, patience, "pod/too-big", "{.status.conditions[0].reason}", "Unschedulable")
	if holder := kubectl(t, "-n", "kube-system", "get", "lease", "kube-scheduler", "-o", "jsonpath={.spec.holderIdentity}"); holder == "" {
		t.Error("nobody holds the Lease kube-system/kube-scheduler")
	}
	if strings.Contains(s.out.String(), "forbidden") {
		t.Errorf("it lacks rights:\n%s", s.out)
	}

	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for _, row := range []struct {
		path, token string
		want        int
		words       string
	}{
		{"/livez", "", 200, "ok"},
		{"/readyz", "", 200, "ok"},
		{"/metrics", "", 403, "system:anonymous"},
		{"/metrics", "nonsense", 401, "Unauthorized"},
		{"/metrics", token, 200, `scheduler_pending_pods{queue="unschedulable"} 1`},
		{"/metrics", token, 200, `scheduler_unschedulable_pods{plugin="NodeResourcesFit",profile="humble"} 1`},
		{"/metrics", token, 200, `scheduler_schedule_attempts_total{profile="humble",result="scheduled"} 1`},
		{"/metrics", token, 200, `scheduler_pod_scheduling_sli_duration_seconds_count{attempts="1"} 1`},
		{"/metrics", token, 200, `leader_election_master_status{name="kube-scheduler"} 1`},
		{"/metrics", token, 200, `rest_client_requests_total{code="201"`},
		{"/configz", token, 403, "system:serviceaccount:default:scraper"},
	} {
		if code, body := fetch(t, client, "https://"+own+":10259"+row.path, row.token); code != row.want || !strings.Contains(body, row.words) {
			t.Errorf("%s: %d, want %d with %q:\n%.300s", row.path, code, row.want, row.words, body)
		}
	}
	kubectl(t, "delete", "pod", "humble", "too-big")
	kubectl(t, "delete", "clusterrolebinding,clusterrole", "scraper")
	kubectl(t, "delete", "serviceaccount", "scraper")
}

func fetch(t *testing.T, client *http.Client, url, token string) (int, string) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, fmt.Sprint(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body)
}

// TestSchedulerPage verifies that the commands in docs/tasks/scheduler.md work as written.
func TestSchedulerPage(t *testing.T) {
	work := t.TempDir()
	if err := os.Symlink(bin, filepath.Join(work, "bin")); err != nil {
		t.Fatal(err)
	}
	blocks := shellBlocks(t, filepath.Join("..", "..", "docs", "tasks", "scheduler.md"))
	if len(blocks) < 6 {
		t.Fatalf("only %d blocks of commands on the page: are they marked as sh?", len(blocks))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", "set -euo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"+strings.Join(blocks, "\n"))
	shell.Dir = work
	shell.Env = append(os.Environ(), "BERTH_DATA_DIR="+shared.dir)
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
