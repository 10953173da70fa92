// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/internal/nightly"
)

const (
	packingScheduler = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {score: {disabled: [{name: NodeResourcesBalancedAllocation}, {name: PodTopologySpread}]}}
  pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}
`
	defaultScheduler = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
`
	spreadingPolicy = `apiVersion: descheduler/v1alpha2
kind: DeschedulerPolicy
profiles:
- name: p
  pluginConfig:
  - {name: LowNodeUtilization, args: {thresholds: {pods: 3}, targetThresholds: {pods: 5}}}
  plugins: {balance: {enabled: [LowNodeUtilization]}}
`
	packedDeployment = `apiVersion: apps/v1
kind: Deployment
metadata: {name: packed}
spec:
  replicas: 9
  selector: {matchLabels: {app: packed}}
  template:
    metadata: {labels: {app: packed}}
    spec: {containers: [{name: c, image: nginx, resources: {requests: {cpu: 500m}}}]}
`
)

// configured is a cluster with a custom scheduler configuration.
type configured struct {
	*testing.T
	*cluster
	file string
	env  []string
}

func (c *configured) ask(args ...string) result {
	c.Helper()
	return execute(c.T, c.env, "", filepath.Join(bin, "berth"), args...)
}

func (c *configured) write(file, text string) string {
	c.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		c.Fatal(err)
	}
	return file
}

// where waits until the given number of pods are bound, and returns the number of pods on each of
// their nodes.
func (c *configured) where(pods int) map[string]int {
	c.Helper()
	nodes := map[string]int{}
	eventually(c.T, patience, func() error {
		clear(nodes)
		list, err := c.client.CoreV1().Pods("default").List(background(), metav1.ListOptions{LabelSelector: "app=packed"})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if node := list.Items[i].Spec.NodeName; node != "" {
				nodes[node]++
			}
		}
		sum := 0
		for _, n := range nodes {
			sum += n
		}
		return differ(sum, pods)
	})
	return nodes
}

// page returns the summary of the dashboard's explanation for a pod.
func (c *configured) page(pod string) string {
	c.Helper()
	link := regexp.MustCompile(`(http://127\.0\.0\.1:\d+/)\?token=(\S+)`).FindStringSubmatch(c.out.String())
	if link == nil {
		c.Fatalf("no link to the dashboard: %s", c.out.String())
	}
	request, err := http.NewRequest(http.MethodPost, link[1]+"berth.v1alpha1.QueryService/Explain", strings.NewReader(`{"name": "`+pod+`"}`))
	if err != nil {
		c.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+link[2])
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		c.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	var said struct{ Summary string }
	if err == nil {
		err = json.Unmarshal(text, &said)
	}
	if err != nil {
		c.Fatalf("%v: %s", err, text)
	}
	return said.Summary
}

// TestAnswersAreByTheConfigurationThatRuns verifies, in a bin-packing cluster, that the results of
// all commands follow the scheduler's current configuration, also after a reload. Without a
// reachable scheduler, the first line of each result must state the assumed configuration, and no
// pod may be evicted.
func TestAnswersAreByTheConfigurationThatRuns(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	file := filepath.Join(t.TempDir(), "scheduler.yaml")
	c := &configured{T: t, file: file}
	c.write(file, packingScheduler)
	c.cluster = start(t, filepath.Join(t.TempDir(), "configured"), "--nodes", "4", "--ui-port", "0", "--config", file)
	c.env = []string{"BERTH_DATA_DIR=" + c.dir}
	policy := c.write(filepath.Join(t.TempDir(), "policy.yaml"), spreadingPolicy)

	c.ask("kubectl", "apply", "-f", c.write(filepath.Join(t.TempDir(), "packed.yaml"), packedDeployment)).wants(t, 0)
	nodes := c.where(9)
	if len(nodes) != 1 {
		t.Fatalf("the scheduler has not packed: %v", nodes)
	}
	node := ""
	for node = range nodes {
	}
	list, err := c.client.CoreV1().Pods("default").List(background(), metav1.ListOptions{LabelSelector: "app=packed"})
	if err != nil {
		t.Fatal(err)
	}
	pod := list.Items[0].Name

	const best = ", which has the highest score"
	c.ask("explain", "pod/"+pod).wants(t, 0, "on node "+node+best)
	c.ask("explain", "deployment/packed").wants(t, 0, "on node "+node+best, "The same holds for")
	if text := c.page(pod); !strings.Contains(text, best) {
		t.Errorf("the page: %s", text)
	}
	c.ask("pending", "-A").wants(t, 0, "No pod is pending")
	c.ask("rebalance", "--policy", policy).wants(t, 0, "Nothing can be moved")
	c.ask("rebalance", "--policy", policy, "--execute").wants(t, 0, "done: 0 moves")
	c.ask("capacity", "--like", "deployment/packed").wants(t, 0, "more pods like deployment/packed fit")

	forecast := c.ask("what-if", "scale", "deployment/packed", "--replicas", "12", "-o", "jsonpath={.placed[*].node}")
	c.ask("kubectl", "scale", "deployment/packed", "--replicas=12").wants(t, 0)
	if nodes = c.where(12); len(nodes) != 1 || slices.ContainsFunc(strings.Fields(forecast.stdout), func(n string) bool { return n != node }) || forecast.stdout == "" {
		t.Errorf("the forecast is %q (%s), and pods are on %v", forecast.stdout, forecast.stderr, nodes)
	}

	c.elsewhere(pod, policy)
	c.reload(pod, policy)
	c.drained(node)
}

// elsewhere runs the commands with a kubeconfig that has no scheduler address in its folder.
func (c *configured) elsewhere(pod, policy string) {
	c.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, "kubeconfig"))
	if err != nil {
		c.Fatal(err)
	}
	kubeconfig := c.write(filepath.Join(c.T.TempDir(), "kubeconfig"), string(text))
	for _, question := range []string{"explain pod/" + pod, "what-if scale deployment/packed --replicas 13", "pending -A", "rebalance spread", "drain node-1 --dry-run"} {
		r := c.ask(append(strings.Fields(question), "--kubeconfig", kubeconfig)...)
		if r.code != 0 || !strings.HasPrefix(r.stdout, "Assumed: default-scheduler runs with the default configuration") {
			c.Errorf("%s: exit code %d: %s%s", question, r.code, r.stdout, r.stderr)
		}
	}
	c.ask("rebalance", "--policy", policy, "--execute", "--kubeconfig", kubeconfig).wants(c.T, 1, "no pod is evicted on an assumption")
	c.ask("drain", "node-1", "--kubeconfig", kubeconfig).wants(c.T, 1, "no pod is evicted on an assumption")
}

// reload replaces the scheduler's configuration by the defaults, with which the pods would be
// placed differently.
func (c *configured) reload(pod, policy string) {
	c.Helper()
	c.write(c.file, defaultScheduler)
	eventually(c.T, patience, func() error {
		if r := c.ask("explain", "pod/"+pod); !strings.Contains(r.stdout, "would be chosen with") {
			return fmt.Errorf("after the reload: %s%s", r.stdout, r.stderr)
		}
		return nil
	})
	if text := c.page(pod); !strings.Contains(text, "would be chosen with") {
		c.Errorf("the page after the reload: %s", text)
	}
	c.ask("rebalance", "--policy", policy, "--fail-on", "moves").wants(c.T, 3, "moves: ")
}

// drained drains the node with all pods. Each successor must be placed on its planned node, or on
// an equally good one.
func (c *configured) drained(node string) {
	c.Helper()
	r := c.ask("drain", node, "--timeout", "2m")
	r.wants(c.T, 0, "node/"+node+" drained")
	if strings.Contains(r.stdout, ", expected on") {
		c.Errorf("successors landed elsewhere:\n%s", r.stdout)
	}
}
