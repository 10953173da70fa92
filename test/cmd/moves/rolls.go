package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/test/bench/table"
	"github.com/berth-k8s/berth/test/internal/plane"
	"github.com/berth-k8s/berth/test/internal/process"
)

// Of the workloads of the cluster that is rolled a fifth have one replica, half of these with a
// budget that asks for it; of the others a little more than a quarter have a budget that lets one
// pod be away.
const (
	perWorkload  = 10 // pods, on average
	singleOf     = 5
	sharedBudget = 7 // of 24 workloads with several replicas
)

// rollResult is what rolling every node did.
type rollResult struct {
	drain    string
	took     time.Duration
	blocked  int // nodes that were not empty within the time limit, and are not rolled
	refused  int
	outages  []time.Duration
	leftover int // workloads that do not have the replicas that they had
	moves
}

// measureRolls drains every node of a cluster in turn, by kubectl and by Berth with surges.
func (b *bench) measureRolls(ctx context.Context, dir string) error {
	d, stop, err := b.drainCluster(ctx, dir)
	if err != nil {
		return err
	}
	defer stop()
	scheduler, err := process.Start(b.programPath(plane.Berth), filepath.Join(dir, "scheduler.log"), "scheduler",
		"--config", d.configPath(), "--secure-port", "0")
	if err != nil {
		return err
	}
	defer scheduler.Kill()

	var results []*rollResult
	load := process.LoadAverage()
	for _, drain := range b.drains {
		r, err := d.measureRoll(ctx, drain)
		if err != nil {
			return fmt.Errorf("roll by %s: %w", drain, err)
		}
		b.printProgress("%s: %d pods moved in %.0f s, %d workloads without a ready replica for %.1f s in all", drain, r.moved,
			r.took.Seconds(), len(r.outages), sumDurations(r.outages).Seconds())
		results = append(results, r)
	}
	b.writeRolls(results, load)
	return nil
}

// measureRoll fills the cluster, has every node drained, and empties it.
func (d *drainBench) measureRoll(ctx context.Context, drain string) (*rollResult, error) {
	d.printProgress("%s: %d pods of %d workloads come", drain, d.rollPods, d.rollPods/perWorkload)
	if err := d.createSpace(ctx); err != nil {
		return nil, err
	}
	if err := plane.InParallel(ctx, d.rollPods/perWorkload, func(i int) error { return d.rollWorkload(ctx, i) }); err != nil {
		return nil, err
	}
	if err := d.pollUntil(ctx, "all pods to be ready", d.podsAreReady); err != nil {
		return nil, err
	}
	if err := d.pollUntil(ctx, "the budgets to be counted", d.budgetsAreHealthy); err != nil {
		return nil, err
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
	r, began := &rollResult{drain: drain}, time.Now()
	if drain == kubectl {
		r.blocked, err = d.rollByKubectl(ctx)
	} else {
		err = d.rollByBerth(ctx)
	}
	if err != nil {
		return nil, err
	}
	r.took = time.Since(began)

	if err := d.pollUntil(ctx, "all pods to be ready", d.podsAreReady); err != nil {
		return nil, err
	}
	after, err := d.tooMany(ctx)
	if err != nil {
		return nil, err
	}
	r.refused, r.outages = after-refused, seen.listOutages()
	if r.moves, err = seen.pairMoves(); err != nil {
		return nil, err
	}
	if r.leftover, err = d.countRescaled(ctx); err != nil {
		return nil, err
	}
	return r, d.clearCluster(ctx)
}

// rollByKubectl drains and opens one node after the other, as scripts around kubectl do. A node
// that is not empty in time is opened again, too.
func (d *drainBench) rollByKubectl(ctx context.Context) (blocked int, err error) {
	log := filepath.Join(d.dir, "roll-kubectl.log")
	out, err := os.Create(log + ".out")
	if err != nil {
		return 0, err
	}

	defer out.Close()
	for i := range d.drainNodes {
		node := fmt.Sprintf("node-%d", i+1)
		_, err := process.Run(ctx, out, nil, d.programPath(plane.Berth), log, "kubectl", "drain", node,
			"--ignore-daemonsets", "--timeout", d.rollTimeout.String(), "--kubeconfig", d.Kubeconfig)
		if err != nil {
			blocked++
		}
		if _, err := process.Run(ctx, out, nil, d.programPath(plane.Berth), log, "kubectl", "uncordon", node,
			"--kubeconfig", d.Kubeconfig); err != nil {
			return blocked, err
		}
		if ctx.Err() != nil {
			return blocked, ctx.Err()
		}
	}

	return blocked, nil
}

func (d *drainBench) rollByBerth(ctx context.Context) error {
	log := filepath.Join(d.dir, "roll-berth.log")
	out, err := os.Create(log + ".out")
	if err != nil {
		return err
	}
	defer out.Close()
	usage, err := process.Run(ctx, out, nil, d.programPath(plane.Berth), log, "drain", "--roll", v1.LabelHostname,
		"--uncordon-when", "drained", "--surge",
		"--ignore-daemonsets", "--config", d.configPath(), "--kubeconfig", d.Kubeconfig)
	d.printProgress("berth drain took %.1f s of CPU and %d MiB", usage.CPU.Seconds(), usage.Peak>>20)
	return err
}

// rollReplicas is how many replicas the i-th workload has: one, or as many as make the average.
func rollReplicas(i int) int32 {
	if i%singleOf == 0 {
		return 1
	}
	return int32(12 + boolToInt(i%singleOf == 1)) // 1 + 13 + 3 * 12 of five workloads
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// rollWorkload makes the i-th Deployment, and a budget for a third of them.
func (d *drainBench) rollWorkload(ctx context.Context, i int) error {
	name, count := fmt.Sprintf("app-%d", i), rollReplicas(i)
	labels := map[string]string{"app": name}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	cpu, grace := int64(d.drainNodes*drainedNode*d.rollFull()/100/d.rollPods), int64(30)
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name,
		Annotations: map[string]string{replicasNote: strconv.Itoa(int(count))}}, Spec: appsv1.DeploymentSpec{
		Replicas: &count, Selector: selector, Template: d.podTemplate(labels, cpu, &grace),
	}}

	if _, err := d.Client.AppsV1().Deployments(drainSpace).Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		return err
	}
	one := intstr.FromInt32(1)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector}}

	switch {
	case count == 1 && i%(2*singleOf) == 0:
		budget.Spec.MinAvailable = &one
	case count > 1 && i%24 < sharedBudget:
		budget.Spec.MaxUnavailable = &one
	default:
		return nil
	}

	_, err := d.Client.PolicyV1().PodDisruptionBudgets(drainSpace).Create(ctx, budget, metav1.CreateOptions{})
	return err
}

// replicasNote says how many replicas a workload had.
const replicasNote = "example.com/replicas"

// rollFull is how much of the CPU of all nodes is asked for, in percent: a node's pods and what
// surges add find room on the others.
func (d *drainBench) rollFull() int { return min(d.full, 80) }

// countRescaled counts the workloads that have other scales than in the beginning, or a surge's
// label.
func (d *drainBench) countRescaled(ctx context.Context) (count int, err error) {
	list, err := d.Client.AppsV1().Deployments(drainSpace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	for i := range list.Items {
		o := &list.Items[i]
		if o.Annotations[replicasNote] != strconv.Itoa(int(*o.Spec.Replicas)) || len(o.Labels) > 0 {
			count++
		}
	}
	return count, nil
}

func (d *drainBench) budgetsAreHealthy(ctx context.Context) (string, error) {
	list, err := d.Client.PolicyV1().PodDisruptionBudgets(drainSpace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	for i := range list.Items {
		if b := &list.Items[i]; b.Status.ExpectedPods == 0 || b.Status.CurrentHealthy < b.Status.ExpectedPods {
			return b.Name + " is not counted", nil
		}
	}
	if len(list.Items) == 0 {
		return "", errors.New("there are no budgets")
	}
	return "", nil
}

func (b *bench) writeRolls(results []*rollResult, load string) {
	fmt.Printf("\n## Every one of %d nodes drained in turn, %d pods of %d workloads (load average %s)\n\n",
		b.drainNodes, b.rollPods, b.rollPods/perWorkload, load)
	rows := [][]string{{"drain", "took", "nodes blocked", "evictions refused", "pods moved", "a pod of the cluster",
		"workloads without a ready replica", "in all", "longest", "scales changed"}}
	for _, r := range results {
		rows = append(rows, []string{
			map[string]string{kubectl: "kubectl drain", berth: "berth drain --roll --surge"}[r.drain],
			fmt.Sprintf("%.0f s", r.took.Seconds()), strconv.Itoa(r.blocked), strconv.Itoa(r.refused),
			strconv.Itoa(r.moved), fmt.Sprintf("%.2f", float64(r.moved)/float64(b.rollPods)),
			strconv.Itoa(len(r.outages)), fmt.Sprintf("%.1f s", sumDurations(r.outages).Seconds()),
			fmt.Sprintf("%.1f s", longestOf(r.outages).Seconds()), strconv.Itoa(r.leftover),
		})
	}
	table.Write(os.Stdout, rows)
}
