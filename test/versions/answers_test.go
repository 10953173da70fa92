// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-k8s/berth/internal/inspect/check"
	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

func (c *cluster) check() {
	var said check.Answer
	c.answers(&said, "check", "--fail-on", "problem")
	if !slices.Contains(said.Findings, check.Finding{Level: check.OK, Topic: "version", Message: "the API server is " + c.release}) {
		c.Errorf("it does not name the version: %+v", said.Findings)
	}
	for _, finding := range said.Findings {
		if finding.Level == check.Warning {
			c.note("it warns: " + finding.Message)
		}
	}
}

// checkAsKubeScheduler verifies that, according to berth check, the permissions of kube-scheduler
// suffice for Berth's scheduler.
func (c *cluster) checkAsKubeScheduler() {
	out, code := c.tryBerth("", "check", "--for", "scheduler", "--fail-on", "problem", "--kubeconfig", c.kubeconfigOf(kubeScheduler, c.token(kubeScheduler)))
	if code != 0 {
		c.Errorf("exit code %d\n%s", code, out)
	}
}

func (c *cluster) checkMissesDevices() {
	c.check()
	if out := c.berthSays("check"); !strings.Contains(out, "pods cannot claim devices here") {
		c.Errorf("it does not miss resource.k8s.io:\n%s", out)
	}
}

// explain verifies that a pod runs after a suggestion of berth explain is followed.
func (c *cluster) explain() {
	c.apply(pod("shy", "", "nodeSelector: {disk: "+c.namespace+"}"))
	c.waits("shy", "didn't match Pod's node affinity/selector")
	var explanation explain.Explanation
	c.answers(&explanation, "explain", "pod/shy", "-n", c.namespace, "--scheduler-url", c.parts.scheduler.says(`health and metrics on (http://\S+)`))
	if explanation.LastDecision == nil || !explanation.LastDecision.Holds {
		c.Errorf("of the scheduler's last decision it says %+v", explanation.LastDecision)
	}
	for _, suggestion := range explanation.Suggestions {
		change := suggestion.Changes[0]
		if strings.Contains(suggestion.Text, "with the label disk="+c.namespace+" (or label an existing node, if the label is true of it)") {
			c.kubectl("label", "--overwrite", change.Object, "disk="+c.namespace)
			c.runs("shy")
			return
		}
	}
	c.Errorf("no label is suggested: %+v", explanation.Suggestions)
}

// whatIf verifies that the pods in a forecast of berth what-if leave the node after the operation,
// and not before.
func (c *cluster) whatIf() {
	c.apply(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  replicas: 4
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec: {nodeSelector: {topology.kubernetes.io/zone: z2}, containers: [{name: c, image: nginx}]}
`)
	c.kubectl("rollout", "status", "deployment/shop", "--timeout=90s")
	there := strings.Fields(c.kubectl("get", "pods", "--field-selector", "spec.nodeName=node-2", "-o", "jsonpath={.items[*].metadata.name}"))
	var said whatif.Forecast
	c.answers(&said, "what-if", "taint", "node/node-2", "maintenance:NoExecute", "-n", c.namespace)
	var leaving []string
	for _, one := range said.Leaving {
		if one.Namespace == c.namespace { // pods of other checks may be terminating
			leaving = append(leaving, one.Name)
		}
	}
	slices.Sort(leaving)
	if !slices.Equal(leaving, there) || len(there) == 0 {
		c.Errorf("%v are said to leave, %v are there", leaving, there)
	}
	for _, one := range said.Pending {
		if one.Namespace == c.namespace {
			c.Errorf("%s is said to wait: %s", one.Name, one.Message)
		}
	}
	c.awaitTaints("node-2")
	c.berthSays("what-if", "drain", "--choose", "1")
	c.tainted("node-2", "maintenance:NoExecute")
	for _, name := range there {
		c.gone("pod/" + name)
	}
	c.kubectl("rollout", "status", "deployment/shop", "--timeout=90s")
}

func (c *cluster) record() {
	c.apply(pod("shy", "", "nodeSelector: {disk: nowhere}"))
	c.waits("shy", "didn't match Pod's node affinity/selector")
	folder := filepath.Join(c.T.TempDir(), "recording")
	c.berthSays("record", "-o", folder, "--once")
	var explanation explain.Explanation
	c.answers(&explanation, "explain", "pod/shy", "-n", c.namespace, "-f", folder)
	if !strings.Contains(explanation.Message, "6 node(s) didn't match Pod's node affinity/selector") {
		c.Errorf("of the recording it is said: %s", explanation.Message)
	}
	c.berthSays("simulate", "-f", folder)
}

func (c *cluster) page() {
	ui := c.begin("ui-"+c.namespace, filepath.Join(c.berth, "berth"), "ui", "--port", "0")
	defer ui.stop()
	url, token, _ := strings.Cut(ui.says(`ready (http://\S+)`), "?token=")
	c.eventually(func() error {
		if body := c.read(url+"api/nodes/node-1", token); !strings.Contains(body, `"podList"`) {
			return fmt.Errorf("of a node it says %s", body)
		}
		return nil
	})
}

// metrics verifies that the scheduler serves its metrics only to users whom the API server
// authorizes.
func (c *cluster) metrics() {
	body := c.read(c.parts.schedulerURL+"/metrics", c.token(administrator))
	if !strings.Contains(body, "scheduler_schedule_attempts_total") {
		c.Errorf("the administrator is shown %.300s", body)
	}
	if body := c.read(c.parts.schedulerURL+"/metrics", c.token(controllerManager)); strings.Contains(body, "scheduler_schedule_attempts_total") {
		c.Error("who may not see them is shown the metrics")
	}
}

var unverified = &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}

func (c *cluster) read(url, token string) string {
	c.Helper()
	request, err := http.NewRequestWithContext(c.Context(), http.MethodGet, url, nil)
	if err != nil {
		c.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := unverified.Do(request)
	if err != nil {
		c.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		c.Fatal(err)
	}
	return string(body)
}

// handOver verifies that schedulers take over the Lease from each other: a Berth scheduler from
// another Berth scheduler that is stopped, the release's kube-scheduler from a Berth scheduler that
// is killed, and a Berth scheduler with kube-scheduler's kubeconfig from that kube-scheduler. Each
// holder must place a pod.
func (c *cluster) handOver() {
	berth := c.beginScheduler("scheduler-2")
	c.knowsTheCluster(berth)
	if code := c.parts.scheduler.stop(); code != 0 {
		c.Errorf("SIGTERM: exit code %d", code)
	}
	c.places("berth-2", "Berth after Berth")
	upstream := c.begin("kube-scheduler", filepath.Join(c.bin, "kube-scheduler"), "--kubeconfig", c.kubeconfigOf(kubeScheduler, c.token(kubeScheduler)), "--secure-port=0")
	upstream.says(`(?i)attempting to acquire leader lease`)
	berth.kill()
	c.places("upstream", "kube-scheduler after Berth's kill -9")
	c.apply(pod("says-upstream", "", "nodeSelector: {there: is-none}"))
	c.waits("says-upstream", "didn't match Pod's node affinity/selector")
	berth = c.beginSchedulerAs("scheduler-3", c.kubeconfigOf(kubeScheduler, c.token(kubeScheduler)))
	c.knowsTheCluster(berth)
	upstream.stop() // kube-scheduler exits with code 1 after SIGTERM
	c.places("berth-3", "Berth after kube-scheduler")
	c.apply(pod("says-berth", "", "nodeSelector: {there: is-none}"))
	c.waits("says-berth", "didn't match Pod's node affinity/selector")
	if ours, theirs := c.get("pod/says-berth", whyNot), c.get("pod/says-upstream", whyNot); ours != theirs {
		c.note(fmt.Sprintf("of a pod that fits nowhere kube-scheduler says %q, Berth %q", theirs, ours))
	}
	c.parts.scheduler = berth
}

// knowsTheCluster waits until a component's caches are synced.
func (c *cluster) knowsTheCluster(scheduler *process) {
	c.Helper()
	url := scheduler.says(`health and metrics on (http://\S+)`)
	c.eventually(func() error {
		if body := c.read(url+"/readyz", ""); body != "ok" {
			return fmt.Errorf("/readyz: %s", body)
		}
		return nil
	})
}

// places creates a pod, waits until it runs, and notes the time.
func (c *cluster) places(name, what string) {
	c.Helper()
	began := time.Now()
	c.apply(pod(name, ""))
	c.runs(name)
	c.note(fmt.Sprintf("%s: a pod runs after %.1f s", what, time.Since(began).Seconds()))
}
