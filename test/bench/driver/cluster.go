// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/test/internal/process"
)

// Cluster is a running API server with the other processes of its cluster.
type Cluster struct {
	*Run
	Kubeconfig string
	Client     kubernetes.Interface
	servers    []*process.Process
}

// StartCluster starts berth-controlplane and waits until it is ready.
func (r *Run) StartCluster(ctx context.Context, flags ...string) (*Cluster, error) {
	return r.startCluster(ctx, "ready ", ControlPlane, flags)
}

// StartUp starts berth up, which runs all components of a cluster, and waits until the nodes are
// ready.
func (r *Run) StartUp(ctx context.Context, flags ...string) (*Cluster, error) {
	return r.startCluster(ctx, "nodes: ready ", Berth, flags, "up")
}

// startCluster starts a program and waits until its output contains ready.
func (r *Run) startCluster(ctx context.Context, ready, program string, flags []string, command ...string) (*Cluster, error) {
	data := filepath.Join(r.Dir, "data")
	c := &Cluster{Run: r, Kubeconfig: filepath.Join(data, "kubeconfig")}
	err := c.Serve(program, slices.Concat(command, []string{"--data-dir", data}, flags)...)
	if err == nil {
		_, err = c.servers[0].WaitFor(ctx, ready)
	}
	if err == nil {
		c.Client, err = NewClient(c.Kubeconfig, -1, 0)
	}
	if err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// NewClient returns a client that sends at most qps requests per second; -1 means no limit.
func NewClient(kubeconfig string, qps float32, burst int) (kubernetes.Interface, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.QPS, config.Burst, config.WarningHandler = qps, burst, rest.NoWarnings{}
	return kubernetes.NewForConfig(config)
}

// StartNodes starts simulated nodes by berth nodes with the given flags, and waits until all nodes
// accept pods.
func (c *Cluster) StartNodes(ctx context.Context, count int, flags ...string) error {
	const limit = 10 * time.Minute
	c.Printf("%s simulated nodes", Thousands(count))
	flags = append([]string{"nodes", "--kubeconfig", c.Kubeconfig, "--count", strconv.Itoa(count)}, flags...)
	if err := c.Serve(Berth, flags...); err != nil {
		return err
	}
	return c.Until(ctx, "the nodes to be ready", limit, func() (string, error) {
		list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return "", err
		}
		ready := slices.DeleteFunc(list.Items, func(n v1.Node) bool { return len(n.Spec.Taints) > 0 })
		return Lacking(len(ready), count), nil
	})
}

// Serve starts a program that runs until the cluster is stopped.
func (c *Cluster) Serve(program string, args ...string) error {
	p, err := c.Launch(program, fmt.Sprintf("%s-%d", program, len(c.servers)), args...)
	if err == nil {
		c.servers = append(c.servers, p)
	}
	return err
}

// Last returns the program that Serve started last.
func (c *Cluster) Last() *process.Process { return c.servers[len(c.servers)-1] }

// Stop ends all processes, the last one first.
func (c *Cluster) Stop() {
	for _, p := range slices.Backward(c.servers) {
		p.Kill() // its data is not used again
	}
	c.servers = nil
}

// Until polls missing until missing returns "". It returns an error at the limit, or when a server
// or the context ends.
func (c *Cluster) Until(ctx context.Context, what string, limit time.Duration, missing func() (string, error)) error {
	const interval = 250 * time.Millisecond
	for end := time.Now().Add(limit); ; {
		why, err := missing()
		if why == "" || err != nil {
			return err
		}
		if err := c.checkServers(); err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("waited %v for %s: %s", limit, what, why)
		}

		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval):
		}
	}
}

func (c *Cluster) checkServers() error {
	for _, p := range c.servers {
		select {
		case <-p.Ended:
			return p.Gone()
		default:
		}
	}
	return nil
}

// schedulerConfig contains the defaults with two exceptions: the request rate is higher, since the
// default of 50 requests per second would dominate the measurement, and leader election is off,
// since it would delay the start.
const schedulerConfig = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: %s
  qps: 100000
  burst: 100000
leaderElection:
  leaderElect: false
`

// SchedulerFile is the name of the schedulers' configuration file in the folder of the run.
const SchedulerFile = "scheduler.yaml"

// Scheduler is a scheduler under measurement.
type Scheduler struct {
	Name    string // name in the tables
	Key     string // name in flags and namespaces
	Command []string
}

// Schedulers in the order of measurement.
var Schedulers = []Scheduler{
	{Name: "kube-scheduler", Key: "upstream", Command: []string{KubeScheduler}},
	{Name: "Berth", Key: "berth", Command: []string{Berth, "scheduler"}},
}

// SchedulersOf parses the flag -schedulers, a list of upstream and berth. An empty list selects
// both schedulers.
func SchedulersOf(list string) (chosen []Scheduler, err error) {
	keys, err := Names("-schedulers", list, Schedulers[0].Key, Schedulers[1].Key)
	for _, s := range Schedulers {
		if Chosen(keys, s.Key) {
			chosen = append(chosen, s)
		}
	}
	return chosen, err
}

// StartScheduler starts a scheduler with the common configuration and the given flags.
func (c *Cluster) StartScheduler(s *Scheduler, flags ...string) (*process.Process, error) {
	file := filepath.Join(c.Dir, SchedulerFile)
	if err := os.WriteFile(file, fmt.Appendf(nil, schedulerConfig, c.Kubeconfig), 0o600); err != nil {
		return nil, err
	}
	return c.Launch(s.Command[0], "scheduler-"+s.Key,
		slices.Concat(s.Command[1:], []string{"--config", file}, flags)...)
}
