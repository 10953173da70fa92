// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// queues is the number of queues.
const queues = 3

const (
	// kueueFolder exists during a measurement.
	kueueFolder = "/etc/kueue"
	// metricsCertificates is the folder in which Kueue expects its certificates for metrics.
	metricsCertificates = kueueFolder + "/metrics/certs"
)

var workloadResource = schema.GroupVersionResource{Group: "kueue.x-k8s.io", Version: "v1beta2", Resource: "workloads"}

// bench is a cluster of berth up with Kueue.
type bench struct {
	*driver.Cluster
	*options
	dynamic dynamic.Interface
	cpus    float64 // of all nodes
}

// measure runs the jobs on a new cluster.
func measure(ctx context.Context, r *driver.Run, o *options, check bool) (*result, error) {
	if err := os.Mkdir(kueueFolder, 0o700); err != nil {
		return nil, err
	}
	defer os.RemoveAll(kueueFolder)
	c, err := r.StartUp(ctx, "--nodes", strconv.Itoa(o.nodes), "--ui-port", "-1", "--serve-port", "8423")
	if err != nil {
		return nil, err
	}
	defer c.Stop()
	b := &bench{Cluster: c, options: o}
	nodes, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range nodes.Items {
		b.cpus += nodes.Items[i].Status.Allocatable.Cpu().AsApproximateFloat64()
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	if b.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, err
	}
	if err := b.startKueue(ctx); err != nil {
		return nil, err
	}
	if check {
		if err := b.startCheck(ctx); err != nil {
			return nil, err
		}
	}
	if err := b.createQueues(ctx, check); err != nil {
		return nil, err
	}
	return b.play(ctx)
}

const kueueConfig = `apiVersion: config.kueue.x-k8s.io/v1beta2
kind: Configuration
health: {healthProbeBindAddress: "127.0.0.1:0"}
metrics: {bindAddress: "0"}
webhook: {host: 127.0.0.1, port: %d, certDir: %q}
leaderElection: {leaderElect: false}
internalCertManagement: {enable: false}
clientConnection: {qps: 500, burst: 1000}
integrations: {frameworks: [batch/job]}
featureGates: {VisibilityOnDemand: false}
`

// startKueue starts Kueue with its webhooks for Jobs and for its own objects.
func (b *bench) startKueue(ctx context.Context) error {
	pair, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return err
	}
	certificates := filepath.Join(b.Dir, "certificates")
	for _, dir := range []string{certificates, metricsCertificates} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		for name, text := range map[string][]byte{"tls.crt": pair, "tls.key": key} {
			if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
				return err
			}
		}
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	port := free.Addr().(*net.TCPAddr).Port
	if err := free.Close(); err != nil {
		return err
	}
	file := filepath.Join(b.Dir, "kueue.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, kueueConfig, port, certificates), 0o600); err != nil {
		return err
	}
	if _, err := b.kubectl(ctx, "", "apply", "--server-side", "-f", b.Path("kueue-crds")); err != nil {
		return err
	}
	if _, err := b.kubectl(ctx, "", "wait", "--for", "condition=Established", "crd", "--all", "--timeout", "1m"); err != nil {
		return err
	}
	if err := b.Serve("kueue", "--kubeconfig", b.Kubeconfig, "--config", file); err != nil {
		return err
	}
	hooks, err := webhooks(b.Path("kueue-webhooks.yaml"), fmt.Sprintf("https://127.0.0.1:%d", port), pair)
	if err != nil {
		return err
	}
	if _, err := b.kubectl(ctx, hooks, "apply", "-f", "-"); err != nil {
		return err
	}
	return b.Until(ctx, "Kueue's webhooks", time.Minute, func() (string, error) {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err.Error(), nil
		}
		return "", c.Close()
	})
}

// webhooks returns Kueue's webhook configurations with a URL, without the webhooks for kinds that
// the cluster lacks or the bench does not use.
func webhooks(file, url string, ca []byte) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var all []string
	for _, document := range strings.Split(string(text), "\n---\n") {
		configuration := map[string]any{}
		if err := yaml.Unmarshal([]byte(document), &configuration); err != nil {
			return "", err
		}
		hooks, _ := configuration["webhooks"].([]any)
		configuration["webhooks"] = slices.DeleteFunc(hooks, func(hook any) bool {
			client, _ := hook.(map[string]any)["clientConfig"].(map[string]any)
			path, _, _ := unstructured.NestedString(client, "service", "path")
			client["url"], client["caBundle"] = url+path, base64.StdEncoding.EncodeToString(ca)
			delete(client, "service")
			return !strings.Contains(path, "-kueue-x-k8s-io-") && !strings.HasSuffix(path, "-batch-v1-job")
		})
		one, err := (&unstructured.Unstructured{Object: configuration}).MarshalJSON()
		if err != nil {
			return "", err
		}
		all = append(all, string(one))
	}
	return `{"apiVersion": "v1", "kind": "List", "items": [` + strings.Join(all, ",") + "]}", nil
}

// startCheck starts berth-kueue, which has the permissions of its manifest.
func (b *bench) startCheck(ctx context.Context) error {
	if _, err := b.kubectl(ctx, "", "create", "namespace", "berth-system"); err != nil {
		return err
	}
	if _, err := b.kubectl(ctx, "", "apply", "-f", b.Path("berth-kueue.yaml")); err != nil {
		return err
	}
	token, err := b.kubectl(ctx, "", "create", "token", "berth-kueue", "--namespace", "berth-system", "--duration", "6h")
	if err != nil {
		return err
	}
	config, err := clientcmd.LoadFromFile(b.Kubeconfig)
	if err != nil {
		return err
	}
	for name := range config.AuthInfos {
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: strings.TrimSpace(token)}
	}
	file := filepath.Join(b.Dir, "berth-kueue.kubeconfig")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return err
	}
	return b.Serve("berth-kueue", "--kubeconfig", file, "--berth-insecure", "--retry-min", "2s", "--retry-max", "15s",
		"--patience", b.patience.String(),
		"--health-address", "127.0.0.1:0")
}

const flavor = `apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: default}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata: {name: places}
spec: {controllerName: berth.dev/places}
`

const queue = `---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: queue-%[1]d}
spec:
  cohortName: all
  namespaceSelector: {}
%[3]s  resourceGroups:
  - coveredResources: [cpu]
    flavors: [{name: default, resources: [{name: cpu, nominalQuota: %[2]d}]}]
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: queue-%[1]d, namespace: default}
spec: {clusterQueue: queue-%[1]d}
`

// createQueues creates queues that share the CPUs of all nodes.
func (b *bench) createQueues(ctx context.Context, check bool) error {
	text, checks := flavor, ""
	if check {
		checks = "  admissionChecksStrategy: {admissionChecks: [{name: places}]}\n"
	}
	for i := range queues {
		text += fmt.Sprintf(queue, i, int(b.cpus)/queues, checks)
	}
	_, err := b.kubectl(ctx, text, "apply", "-f", "-")
	return err
}

// kubectl runs kubectl, and returns its output.
func (b *bench) kubectl(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "kubectl", append([]string{"--kubeconfig", b.Kubeconfig}, args...)...)
	var trouble bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(input), &trouble
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", args[0], err, trouble.String())
	}
	return string(out), err
}
