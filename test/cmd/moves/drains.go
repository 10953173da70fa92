package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/test/bench/table"
	"github.com/berth-k8s/berth/test/internal/plane"
	"github.com/berth-k8s/berth/test/internal/process"
)

// The schedulers, and what drains.
const (
	upstream = "upstream"
	berth    = "berth"
	kubectl  = "kubectl"
)

// Workloads of the cluster that is drained: Deployments of replicas pods, whose budget lets one be
// away at a time. A pod is ready seconds after it runs, and takes seconds to end.
const (
	replicas    = 20
	readyAfter  = 3
	endsAfter   = "2s"
	drainedNode = 16000 // thousandths of a CPU
	drainLimit  = 10 * time.Minute
	drainSpace  = "drained"
)

// drainBench is the cluster that is drained.
type drainBench struct {
	*bench
	*plane.Plane
	dir string
}

// drainResult is what one drain did.
type drainResult struct {
	scheduler, drain string
	usage            process.Usage
	refused          int // evictions that the API server answered with 429
	ended            error
	moves
}

// drainCluster starts a control plane, Berth's controllers and the nodes.
func (b *bench) drainCluster(ctx context.Context, dir string) (d *drainBench, stop func(), err error) {
	server, err := plane.Start(ctx, b.programPath(plane.ControlPlane), dir)
	if err != nil {
		return nil, nil, err
	}

	ends := []func(){server.Stop}
	stop = func() {
		for _, end := range slices.Backward(ends) {
			end()
		}
	}

	d = &drainBench{bench: b, Plane: server, dir: dir}
	b.printProgress("%d simulated nodes", b.drainNodes)
	for _, args := range [][]string{
		{"controller", "--leader-elect=false", "--health-bind-address=127.0.0.1:0"},
		{"nodes", "--count", strconv.Itoa(b.drainNodes), "--zones", strconv.Itoa(zones), "--cpu", fmt.Sprintf("%dm", drainedNode)},
	} {
		p, err := process.Start(b.programPath(plane.Berth), filepath.Join(dir, args[0]+".log"),
			append(args, "--kubeconfig", d.Kubeconfig)...)
		if err != nil {
			stop()
			return nil, nil, err
		}
		ends = append(ends, p.Kill)
	}

	if err := d.pollUntil(ctx, "the nodes to be ready", d.nodesAreReady); err != nil {
		stop()
		return nil, nil, err
	}
	if err := os.WriteFile(d.configPath(), plane.SchedulerConfig(d.Kubeconfig), 0o600); err != nil {
		stop()
		return nil, nil, err
	}
	return d, stop, nil
}

// configPath is the scheduler's configuration.
func (d *drainBench) configPath() string { return filepath.Join(d.dir, "scheduler.yaml") }

func (b *bench) measureDrains(ctx context.Context, dir string) error {
	d, stop, err := b.drainCluster(ctx, dir)
	if err != nil {
		return err
	}

	defer stop()
	var results []drainResult
	load := process.LoadAverage()
	for _, scheduler := range b.schedulers {
		args := []string{b.programPath(plane.KubeScheduler)}
		if scheduler == berth {
			args = []string{b.programPath(plane.Berth), "scheduler"}
		}
		args = append(args, "--config", d.configPath(), "--secure-port", "0")
		p, err := process.Start(args[0], filepath.Join(dir, "scheduler-"+scheduler+".log"), args[1:]...)
		if err != nil {
			return err
		}
		for _, drain := range b.drains {
			r, err := d.measureDrain(ctx, scheduler, drain)
			if err != nil {
				p.Kill()
				return fmt.Errorf("%s beside %s: %w", drain, scheduler, err)
			}
			b.printProgress("%s beside %s: %d pods in %.1f s, pending for %v in all", drain, scheduler, len(r.pending),
				r.usage.Took.Seconds(), sumDurations(r.pending).Round(time.Millisecond))
			results = append(results, *r)
		}
		if _, err := p.Stop(); err != nil {
			return err
		}
	}

	b.writeDrains(results, load)
	return nil
}

// measureDrain fills the cluster, drains the first nodes, and empties it.
func (d *drainBench) measureDrain(ctx context.Context, scheduler, drain string) (*drainResult, error) {
	d.printProgress("%s beside %s: %d pods come", drain, scheduler, d.drainPods)
	if err := d.fillCluster(ctx); err != nil {
		return nil, err
	}
	var nodes []string
	for i := range d.drained {
		nodes = append(nodes, fmt.Sprintf("node-%d", i+1))
	}
	seen, err := followPods(ctx, d.Client, drainSpace)
	if err != nil {
		return nil, err
	}
	defer seen.stop()
	refused, err := d.tooMany(ctx)
	if err != nil {
		return nil, err
	}
	r := &drainResult{scheduler: scheduler, drain: drain}
	args := []string{"drain", "--config", d.configPath()}
	if drain == kubectl {
		args = []string{"kubectl", "drain"}
	}
	log := filepath.Join(d.dir, "drain-"+scheduler+"-"+drain+".log")
	out, err := os.Create(log + ".out")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	args = append(append(args, nodes...), "--ignore-daemonsets", "--timeout", drainLimit.String(), "--kubeconfig", d.Kubeconfig)
	r.usage, r.ended = process.Run(ctx, out, nil, d.programPath(plane.Berth), log, args...)
	if r.ended != nil {
		d.printProgress("%s beside %s: %v", drain, scheduler, r.ended)
	}
	// The successors of the last pods are still to come.
	if err := d.pollUntil(ctx, "all pods to be ready", d.podsAreReady); err != nil && ctx.Err() != nil {
		return nil, err
	}
	after, err := d.tooMany(ctx)
	if err != nil {
		return nil, err
	}
	r.refused = after - refused
	if r.moves, err = seen.pairMoves(); err != nil {
		return nil, err
	}
	for _, name := range nodes {
		if _, err := d.Client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType,
			[]byte(`{"spec": {"unschedulable": false}}`), metav1.PatchOptions{}); err != nil {
			return nil, err
		}
	}
	return r, d.clearCluster(ctx)
}

// fillCluster makes the workloads, and waits until all is at rest.
func (d *drainBench) fillCluster(ctx context.Context) error {
	if err := d.createSpace(ctx); err != nil {
		return err
	}
	apps := max(1, d.drainPods/replicas)
	if err := plane.InParallel(ctx, apps, func(i int) error { return d.createWorkload(ctx, i, apps) }); err != nil {
		return err
	}
	if err := d.pollUntil(ctx, "all pods to be ready", d.podsAreReady); err != nil {
		return err
	}
	return d.pollUntil(ctx, "the budgets to be counted", d.budgetsAreCounted)
}

// createSpace makes the namespace of the workloads.
func (d *drainBench) createSpace(ctx context.Context) error {
	_, err := d.Client.CoreV1().Namespaces().Create(ctx,
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: drainSpace}}, metav1.CreateOptions{})
	return err
}

// podTemplate is that of pods which are ready and end after some seconds.
func (d *drainBench) podTemplate(labels map[string]string, cpu int64, grace *int64) v1.PodTemplateSpec {
	return v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{"berth.dev/terminate-after": endsAfter}},
		Spec: v1.PodSpec{TerminationGracePeriodSeconds: grace, Containers: []v1.Container{{
			Name: "main", Image: image, Resources: v1.ResourceRequirements{Requests: resourceList(cpu, 64)},
			ReadinessProbe: &v1.Probe{
				ProbeHandler:        v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(8080)}},
				InitialDelaySeconds: readyAfter, PeriodSeconds: 1,
			},
		}}},
	}
}

// weights are what the pods of the workloads ask for, one beside the other.
var weights = []int{1, 1, 2, 4}

// createWorkload makes the i-th Deployment with its budget.
func (d *drainBench) createWorkload(ctx context.Context, i, apps int) error {
	name := fmt.Sprintf("app-%d", i)
	labels := map[string]string{"app": name}
	selector, count := &metav1.LabelSelector{MatchLabels: labels}, int32(d.drainPods/apps)
	left, all := (d.drainNodes-d.drained)*drainedNode*d.full/100, 0
	for k := range apps {
		all += weights[k%len(weights)] * int(count)
	}

	cpu, grace, one := int64(left/all*weights[i%len(weights)]), int64(30), intstr.FromInt32(1)
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Replicas: &count, Selector: selector,
		Template: d.podTemplate(labels, cpu, &grace),
	}}

	if _, err := d.Client.AppsV1().Deployments(drainSpace).Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		return err
	}
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &one, Selector: selector}}
	_, err := d.Client.PolicyV1().PodDisruptionBudgets(drainSpace).Create(ctx, budget, metav1.CreateOptions{})
	return err
}

// clearCluster removes the workloads and their pods.
func (d *drainBench) clearCluster(ctx context.Context) error {
	if err := d.Client.CoreV1().Namespaces().Delete(ctx, drainSpace, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return d.pollUntil(ctx, "the namespace to go", func(ctx context.Context) (string, error) {
		_, err := d.Client.CoreV1().Namespaces().Get(ctx, drainSpace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return "", nil
		}
		return "it is there", err
	})
}

// pollUntil asks until nothing is missing.
func (d *drainBench) pollUntil(ctx context.Context, what string, missing func(ctx context.Context) (string, error)) error {
	const limit = 10 * time.Minute
	for end := time.Now().Add(limit); ; {
		why, err := missing(ctx)
		if why == "" || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("waited %v for %s: %s", limit, what, why)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func (d *drainBench) nodesAreReady(ctx context.Context) (string, error) {
	list, err := d.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	ready := 0
	for i := range list.Items {
		if len(list.Items[i].Spec.Taints) == 0 {
			ready++
		}
	}
	if ready < d.drainNodes {
		return fmt.Sprintf("%d of %d are", ready, d.drainNodes), nil
	}
	return "", nil
}

func (d *drainBench) podsAreReady(ctx context.Context) (string, error) {
	list, err := d.Client.AppsV1().Deployments(drainSpace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for i := range list.Items {
		if s := &list.Items[i]; s.Status.ReadyReplicas < *s.Spec.Replicas {
			return fmt.Sprintf("%s has %d of %d", s.Name, s.Status.ReadyReplicas, *s.Spec.Replicas), nil
		}
	}
	return "", nil
}

func (d *drainBench) budgetsAreCounted(ctx context.Context) (string, error) {
	list, err := d.Client.PolicyV1().PodDisruptionBudgets(drainSpace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for i := range list.Items {
		if list.Items[i].Status.DisruptionsAllowed == 0 {
			return list.Items[i].Name + " allows nothing", nil
		}
	}
	return "", nil
}

// tooMany is how many evictions the API server has answered with 429.
func (d *drainBench) tooMany(ctx context.Context) (count int, err error) {
	text, err := d.Client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}

	for line := range bytes.Lines(text) {
		series, value, ok := strings.Cut(strings.TrimSpace(string(line)), "} ")
		if !ok || !strings.HasPrefix(series, "apiserver_request_total{") || !strings.Contains(series, `code="429"`) ||
			!strings.Contains(series, `subresource="eviction"`) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, errors.Join(fmt.Errorf("metrics: %q", line), err)
		}
		count += int(n)
	}

	return count, nil
}

func (b *bench) writeDrains(results []drainResult, load string) {
	fmt.Printf("\n## Drains: %d of %d nodes, %d pods with budgets, %d %% of what is left asked "+
		"for (load average %s)\n\n", b.drained, b.drainNodes, b.drainPods, b.full, load)
	rows := [][]string{{"scheduler", "drain", "took", "moved", "twice", "never placed", "refused", "pending in all",
		"a pod", "longest", "eviction to ready in all", "a pod", "longest", "CPU of the drain", "memory"}}
	for i := range results {
		r := &results[i]
		row := []string{
			map[string]string{upstream: "kube-scheduler", berth: "Berth"}[r.scheduler],
			map[string]string{kubectl: "kubectl drain", berth: "berth drain"}[r.drain],
			fmt.Sprintf("%.1f s", r.usage.Took.Seconds()), strconv.Itoa(r.moved), strconv.Itoa(r.twice),
			strconv.Itoa(r.moved - len(r.ready)), strconv.Itoa(r.refused),
		}
		for _, of := range [][]time.Duration{r.pending, r.ready} {
			row = append(row, formatSeconds(sumDurations(of)),
				formatSeconds(sumDurations(of)/time.Duration(max(1, len(of)))), formatSeconds(longestOf(of)))
		}
		if r.ended != nil {
			row[2] += " (failed)"
		}
		rows = append(rows, append(row, formatSeconds(r.usage.CPU), fmt.Sprintf("%d MiB", r.usage.Peak>>20)))
	}

	table.Write(os.Stdout, rows)
}

func formatSeconds(d time.Duration) string {
	if d < 10*time.Second {
		return fmt.Sprintf("%.3f s", d.Seconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}
