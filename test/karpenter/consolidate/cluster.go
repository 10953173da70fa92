// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
	v1 "sigs.k8s.io/karpenter/pkg/apis/v1"
)

const deployments = 40

// cluster is a live cluster with Karpenter.
type cluster struct {
	options
	kubeconfig string
	// controllerConfig is the kubeconfig of berth controller, with the permissions of the
	// manifests.
	controllerConfig string

	client     kubernetes.Interface
	processes  []*process
	controller *process // berth controller
	prices     map[offering]float64
}

// offering names what a node is: its instance type, zone and capacity type.
type offering struct{ name, zone, capacity string }

// stop ends all programs, the last one first.
func (c *cluster) stop() {
	for i := len(c.processes) - 1; i >= 0; i-- {
		c.processes[i].end(syscall.SIGTERM)
	}
}

func (c *cluster) start(ctx context.Context) error {
	if err := c.readPrices(); err != nil {
		return err
	}
	dir := filepath.Dir(c.kubeconfig)
	if _, err := c.spawn("up", nil, c.berth, "up", "--nodes", "0", "--data-dir", dir, "--ui-port", "-1"); err != nil {
		return err
	}
	err := c.until(ctx, "the cluster", func() (string, bool) {
		out, err := c.kubectl(ctx, "", "get", "--raw", "/readyz")
		return out, err == nil
	})
	if err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.ContentType = -1, "application/vnd.kubernetes.protobuf"
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}

	if err := c.authorize(ctx); err != nil {
		return err
	}
	if err := c.startKarpenter(ctx); err != nil {
		return err
	}
	_, err = c.spawn("kwok", nil, c.kwok, "--kubeconfig", c.kubeconfig, "--manage-all-nodes=false",
		"--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake", "--node-lease-duration-seconds=40",
		"--config", filepath.Join(c.dir, "stages.yaml"))
	return err
}

// authorize installs the permissions of berth controller as the manifests do for its
// ServiceAccount, and writes a kubeconfig with them.
func (c *cluster) authorize(ctx context.Context) error {
	manifests, err := filepath.Abs(c.manifests)
	if err != nil {
		return err
	}
	folder := filepath.Join(c.dir, "manifests")
	if err := os.CopyFS(folder, os.DirFS(manifests)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	kustomization := "resources: [base]\ncomponents: [components/controller, components/rebalance, components/rebalance-cost]\n"
	if err := os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(kustomization), 0o644); err != nil {
		return err
	}
	all, err := c.kubectl(ctx, "", "kustomize", folder)
	if err != nil {
		return fmt.Errorf("%w: %s", err, all)
	}
	permissions := regexp.MustCompile(`(?m)^kind: (Namespace|ServiceAccount|(Cluster)?Role(Binding)?)$`)
	objects := slices.DeleteFunc(strings.Split(all, "\n---\n"), func(text string) bool { return !permissions.MatchString(text) })
	if err := c.apply(ctx, strings.Join(objects, "\n---\n")); err != nil {
		return err
	}
	token, err := c.kubectl(ctx, "", "create", "token", "berth-controller", "--namespace=berth-system", "--duration=24h")
	if err != nil {
		return fmt.Errorf("%w: %s", err, token)
	}
	config, err := clientcmd.LoadFromFile(c.kubeconfig)
	if err != nil {
		return err
	}
	for user := range config.AuthInfos {
		config.AuthInfos[user] = &api.AuthInfo{Token: strings.TrimSpace(token)}
	}
	c.controllerConfig = filepath.Join(c.dir, "controller.kubeconfig")
	return clientcmd.WriteToFile(*config, c.controllerConfig)
}

func (c *cluster) startKarpenter(ctx context.Context) error {
	for _, folder := range []string{"pkg/apis/crds", "kwok/apis/crds"} {
		if out, err := c.kubectl(ctx, "", "apply", "--server-side", "-f", filepath.Join(c.crds, folder)); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
	}
	var stages []byte
	for _, name := range []string{"node/fast/node-initialize.yaml", "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
		"pod/fast/pod-ready.yaml", "pod/fast/pod-complete.yaml", "pod/fast/pod-delete.yaml"} {
		text, err := os.ReadFile(filepath.Join(c.stages, name))
		if err != nil {
			return err
		}
		stages = append(append(stages, "---\n"...), text...)
	}
	stages = append(stages, kwokConfig...)
	if err := os.WriteFile(filepath.Join(c.dir, "stages.yaml"), stages, 0o644); err != nil {
		return err
	}
	_, err := c.spawn("karpenter", []string{
		"DISABLE_LEADER_ELECTION=true", "SYSTEM_NAMESPACE=kube-system", "HEALTH_PROBE_PORT=18481", "METRICS_PORT=18480",
	}, c.karpenter)
	if err != nil {
		return err
	}
	return c.apply(ctx, nodePool)
}

// kwokConfig lets kwok serve more pods at a time than by default, which takes minutes for a
// thousand pods. Its stage makes a pod ready again, as a kubelet does: the node controller reports
// it as not ready when kwok is late to renew its node's Lease on a busy machine.
const kwokConfig = `---
apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options: {podPlayStageParallelism: 32, nodePlayStageParallelism: 16, nodeLeaseParallelism: 16}
---
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {name: pod-ready-again}
spec:
  resourceRef: {apiGroup: v1, kind: Pod}
  selector:
    matchExpressions:
    - {key: .metadata.deletionTimestamp, operator: DoesNotExist}
    - {key: .status.phase, operator: In, values: [Running]}
    - {key: '.status.conditions.[] | select( .type == "Ready" ) | .status', operator: In, values: ["False"]}
  delay: {durationMilliseconds: 5000}
  next:
    statusTemplate: |
      conditions:
      - lastTransitionTime: {{ Now | Quote }}
        status: "True"
        type: Ready
`

// nodePool buys nodes with 4, 8 or 16 CPUs. Its consolidation begins when the pods have been scaled
// down.
const nodePool = `
apiVersion: karpenter.kwok.sh/v1alpha1
kind: KWOKNodeClass
metadata: {name: default}
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: default, annotations: {berth.dev/consolidate-after: 0s}}
spec:
  disruption: {consolidationPolicy: WhenEmptyOrUnderutilized, consolidateAfter: Never, budgets: [{nodes: "100%"}]}
  template:
    spec:
      expireAfter: Never
      nodeClassRef: {group: karpenter.kwok.sh, kind: KWOKNodeClass, name: default}
      requirements:
      - {key: karpenter.kwok.sh/instance-cpu, operator: In, values: ["4", "8", "16"]}
      - {key: kubernetes.io/os, operator: In, values: [linux]}
      - {key: kubernetes.io/arch, operator: In, values: [amd64]}
`

// fill creates the Deployments, waits until Karpenter has bought nodes for them, and scales them to
// half.
func (c *cluster) fill(ctx context.Context) error {
	replicas := max(2, 30*c.nodes/52)
	var text strings.Builder
	for i := range deployments {
		c.describe(&text, i, replicas)
	}
	if err := c.apply(ctx, text.String()); err != nil {
		return err
	}
	log.Printf("waiting for %d pods", deployments*replicas)
	if err := c.allReady(ctx, deployments*replicas); err != nil {
		return err
	}
	if c.mix {
		if err := c.protect(ctx); err != nil {
			return err
		}
	}

	log.Printf("scaling to %d pods", deployments*(replicas/2))
	out, err := c.kubectl(ctx, "", "scale", "deployment", "--all", "--replicas", fmt.Sprint(replicas/2))
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return c.allReady(ctx, deployments*(replicas/2))
}

// describe writes a Deployment. Requests are 150m to 1200m of CPU, and 400Mi to 2000Mi of memory.
func (c *cluster) describe(text *strings.Builder, i, replicas int) {
	spread := ""
	if c.mix && i%3 == 1 {
		spread = fmt.Sprintf(`
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: topology.kubernetes.io/zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: a%d}}}`, i)
	}
	fmt.Fprintf(text, `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: a%[1]d, namespace: default}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: a%[1]d}}
  template:
    metadata: {labels: {app: a%[1]d}}
    spec:
      terminationGracePeriodSeconds: 1%[5]s
      containers: [{name: c, image: registry.k8s.io/pause, resources: {requests: {cpu: %[3]dm, memory: %[4]dMi}}}]
`, i, replicas, 150+i*7%deployments*1050/(deployments-1), 400+i*11%deployments*1600/(deployments-1), spread)
	if c.mix && i%3 == 0 {
		fmt.Fprintf(text, `---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: a%[1]d, namespace: default}
spec: {maxUnavailable: %[2]s, selector: {matchLabels: {app: a%[1]d}}}
`, i, []string{"1", "10%"}[i%2])
	}
}

// protect annotates every fiftieth pod so that neither side may disrupt it.
func (c *cluster) protect(ctx context.Context) error {
	pods, err := c.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	patch := []byte(`{"metadata": {"annotations": {"karpenter.sh/do-not-disrupt": "true", "controller.kubernetes.io/pod-deletion-cost": "1000"}}}`)
	for i := 0; i < len(pods.Items); i += 50 {
		if _, err := c.client.CoreV1().Pods("default").Patch(ctx, pods.Items[i].Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) allReady(ctx context.Context, want int) error {
	return c.until(ctx, "all pods", func() (string, bool) {
		s, err := c.sample(ctx, nil)
		if err != nil {
			return err.Error(), false
		}
		return fmt.Sprintf("%d of %d ready, %d pending, %d nodes", s.ready, want, s.pending, s.nodes), s.ready == want && s.pods == want
	})
}

// until waits for at most 40 minutes. It pauses for twice the time of done, which may list many
// pods.
func (c *cluster) until(ctx context.Context, what string, done func() (string, bool)) error {
	end, said := time.Now().Add(40*time.Minute), time.Now()
	for {
		began := time.Now()
		how, ok := done()
		switch {
		case ok:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("waiting for %s: %s; see %s", what, how, c.dir)
		case time.Since(said) > 20*time.Second:
			log.Printf("%s: %s", what, how)
			said = time.Now()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(time.Second, 2*time.Since(began))):
		}
	}
}

func (c *cluster) apply(ctx context.Context, text string) error {
	return c.until(ctx, "kubectl apply", func() (string, bool) {
		out, err := c.kubectl(ctx, text, "apply", "-f", "-")
		return out, err == nil
	})
}

func (c *cluster) kubectl(ctx context.Context, input string, words ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "kubectl", words...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	cmd.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// readPrices reads the prices of kwok's instance types.
func (c *cluster) readPrices() error {
	text, err := os.ReadFile(c.options.types)
	if err != nil {
		return err
	}
	var list []struct {
		Name      string `json:"name"`
		Offerings []struct {
			Price        float64
			Requirements []corev1.NodeSelectorRequirement
		} `json:"offerings"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return err
	}
	c.prices = map[offering]float64{}
	for _, one := range list {
		for _, o := range one.Offerings {
			of := offering{name: one.Name}
			for _, r := range o.Requirements {
				switch r.Key {
				case corev1.LabelTopologyZone:
					of.zone = r.Values[0]
				case v1.CapacityTypeLabelKey:
					of.capacity = r.Values[0]
				}
			}
			c.prices[of] = o.Price
		}
	}
	return nil
}
