// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/process"
	"github.com/berth-k8s/berth/test/kcm"
)

// cluster is a control plane and its objects.
type cluster struct {
	*driver.Cluster
	flags   []string // flags of berth controller
	profile bool

	nodes   int
	tainted int // number of nodes tainted by the last run
	runs    int
}

// All scenarios use the same kind of pod. It tolerates taints with the key keyLater for tolerated
// seconds, and does not tolerate taints with the key keyNow.
const (
	keyNow    = "now"
	keyLater  = "later"
	tolerated = 15

	namespace = "default"
	// workspace is the namespace of the pod whose eviction shows that a side works.
	workspace = "work"
)

// patience is the time without events after which a side is considered finished.
const patience = 2 * time.Minute

// fillCluster removes the taints of the last run, creates the further nodes of the scenario, and
// creates the missing pods. Pods that the last run did not evict are kept.
func (c *cluster) fillCluster(ctx context.Context, s scenario) error {
	if err := c.taintNodes(ctx, c.tainted); err != nil {
		return err
	}
	before := c.nodes
	c.nodes = s.nodes
	if err := c.CreateNodes(ctx, c.nodes-before, func(i int) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: nodeName(before + i), Labels: map[string]string{v1.LabelTopologyZone: fmt.Sprintf("z-%d", i%3)},
		}}
	}); err != nil {
		return err
	}

	if err := c.CreatePods(ctx, namespace, c.tainted*s.perNode,
		func(i int) *v1.Pod { return newPod(i/s.perNode, i%s.perNode) }); err != nil {
		return err
	}
	c.tainted = 0
	return c.CreatePods(ctx, namespace, (c.nodes-before)*s.perNode,
		func(i int) *v1.Pod { return newPod(before+i/s.perNode, i%s.perNode) })
}

func nodeName(i int) string { return fmt.Sprintf("n-%d", i) }

func newPod(node, i int) *v1.Pod {
	seconds := int64(tolerated)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("app-6d5f8c7b9-%d-%d", node, i),
			Labels: map[string]string{"app": "app", "pod-template-hash": "6d5f8c7b9"}},
		Spec: v1.PodSpec{
			NodeName: nodeName(node),
			Containers: []v1.Container{{
				Name: "app", Image: "registry.example/app:v1", Ports: []v1.ContainerPort{{ContainerPort: 8080}},
				Env: []v1.EnvVar{{Name: "LOG_LEVEL", Value: "info"},
					{Name: "POD_NAME", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
			}},
			Tolerations: []v1.Toleration{{
				Key: keyLater, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &seconds,
			}},
			TerminationGracePeriodSeconds: new(int64), // no kubelet runs
			AutomountServiceAccountToken:  new(bool),
		},
	}
}

// taintNodes replaces the taints of the first nodes by taints with these keys, as the field manager
// of kubectl taint.
func (c *cluster) taintNodes(ctx context.Context, nodes int, keys ...string) error {
	var taints []string
	for _, key := range keys {
		taints = append(taints, fmt.Sprintf(`{"key": %q, "value": "x", "effect": "NoExecute"}`, key))
	}
	patch := fmt.Appendf(nil, `{"spec": {"taints": [%s]}}`, strings.Join(taints, ", "))
	return driver.InParallel(ctx, nodes, func(ctx context.Context, i int) error {
		_, err := c.Client.CoreV1().Nodes().Patch(ctx, nodeName(i), types.MergePatchType, patch,
			metav1.PatchOptions{FieldManager: "kubectl-taint"})
		return err
	})
}

// measureSide starts one side, taints nodes and measures the evictions.
func (c *cluster) measureSide(ctx context.Context, s scenario, side string) (result, error) {
	p, address, err := c.startSide(ctx, side)
	if err != nil {
		return result{}, err
	}
	defer p.Kill()
	if err := c.awaitWork(ctx); err != nil {
		return result{}, fmt.Errorf("%w\n%s", err, p.LastLines(10))
	}

	before := p.CPU()
	seen, due, err := c.evictPods(ctx, s)
	if err != nil {
		return result{}, err
	}
	if c.profile && side == berth {
		c.Printf("profile: %v", saveProfiles(address, "evictions-"+strconv.Itoa(s.nodes)))
	}
	if seen.gone == 0 {
		return result{}, fmt.Errorf("nothing evicted within %v", begins)
	}
	return result{scenario: s, side: side, first: seen.first.Sub(due), last: seen.last.Sub(due), gone: seen.gone,
		cpu: p.CPU() - before, peak: p.Peak()}, nil
}

// evictPods taints the nodes and waits until all due pods have been deleted, or until deletions
// cease.
func (c *cluster) evictPods(ctx context.Context, s scenario) (seen *observer, due time.Time, err error) {
	list, err := c.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, due, err
	}
	seen = &observer{}
	stop, err := c.Follow(ctx, namespace, list.ResourceVersion, seen.seePod)
	if err != nil {
		return nil, due, err
	}

	key := keyNow
	if s.seconds > 0 {
		key = keyLater
	}
	due = time.Now().Add(time.Duration(s.seconds) * time.Second)
	c.tainted = s.tainted
	if err = c.taintNodes(ctx, s.tainted, key); err == nil {
		seen.awaitGone(ctx, s.countDue(), due.Add(patience))
	}
	return seen, due, errors.Join(err, stop())
}

// startSide starts a side. For Berth, it also returns the address of the profiles, which Berth
// prints.
func (c *cluster) startSide(ctx context.Context, side string) (p *process.Process, address string, err error) {
	c.runs++
	log := fmt.Sprintf("%s-%d", side, c.runs)
	if side == upstream {
		p, err = c.Launch(driver.ControllerManager, log, kcm.Args(c.Kubeconfig)...)
		return p, "", err
	}

	p, err = c.Launch(driver.Berth, log, append([]string{"controller", "--kubeconfig", c.Kubeconfig, "--profiling",
		"--controllers=taint-eviction-controller", "--leader-elect=false", "--health-bind-address=127.0.0.1:0"}, c.flags...)...)
	if err != nil {
		return nil, "", err
	}
	const says = "health and metrics on http://"
	line, err := p.WaitFor(ctx, says)
	return p, strings.TrimPrefix(line, says), err
}

// saveProfiles saves the heap profile and the allocation profile.
func saveProfiles(address, name string) error {
	for _, kind := range []string{"heap", "allocs"} {
		response, err := http.Get("http://" + address + "/debug/pprof/" + kind)
		if err != nil {
			return err
		}
		profile, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			return err
		}
		if err := os.WriteFile(name+"-"+kind+".pprof", profile, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// awaitWork waits until the running side evicts a pod.
func (c *cluster) awaitWork(ctx context.Context) error {
	const name = "is-at-work"
	if c.runs == 1 {
		if _, err := c.CreateNamespace(ctx, workspace); err != nil {
			return err
		}
		if err := c.CreateNodes(ctx, 1, func(int) *v1.Node {
			return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: "work", Effect: v1.TaintEffectNoExecute}}}}
		}); err != nil {
			return err
		}
	}

	if err := c.CreatePods(ctx, workspace, 1, func(int) *v1.Pod {
		return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{NodeName: name,
			Containers: []v1.Container{{Name: "c", Image: "none"}}, TerminationGracePeriodSeconds: new(int64)}}
	}); err != nil {
		return err
	}
	return c.Until(ctx, "an eviction", 2*time.Minute, func() (string, error) {
		left, err := c.CountPods(ctx, workspace)
		return driver.Lacking(left, 0), err
	})
}

// observer counts deleted pods. Its fields may be read without the mutex after its watch has
// stopped.
type observer struct {
	mu          sync.Mutex // guards the fields below
	gone        int
	first, last time.Time
}

func (o *observer) seePod(kind watch.EventType, _ *v1.Pod, now time.Time) {
	if kind != watch.Deleted {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = now
	if o.gone == 0 {
		o.first = now
	}
	o.gone++
}

// begins limits the time until the first eviction. Upstream needs 15 seconds on an idle machine.
const begins = 10 * time.Minute

// awaitGone waits until due pods have been deleted. After end, it gives up if no pod has been
// deleted for the time patience or, before the first deletion, after the time begins.
func (o *observer) awaitGone(ctx context.Context, due int, end time.Time) {
	for over := false; !over && ctx.Err() == nil; {
		time.Sleep(20 * time.Millisecond)
		o.mu.Lock()
		over = o.gone >= due || time.Now().After(end) && time.Since(o.last) > patience
		if o.gone == 0 {
			over = time.Now().After(end.Add(begins))
		}
		o.mu.Unlock()
	}
}
