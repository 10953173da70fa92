// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package livebench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/process"
)

// Gang holds a scheduler's results for gangs, placed one after another on the same nodes. Each gang
// must be placed in one rack. Its pods are pending before its PodGroup is created.
type Gang struct {
	Scheduler string
	Pods      int  // pods per gang
	preempts  bool // whether each gang must preempt pods
	Rounds    []GangRound
	Usage     process.Usage // usage of the process from its start until the events of the last gang are written
}

// GangRound is one gang.
type GangRound struct {
	Bound int // number of bound pods; if less than all, the gang was given up
	// First and All are the times from the request that creates the PodGroup to the watch events of
	// the first and the last binding.
	First, All time.Duration
	// Attempts is the number of attempts, and Decided and Attempted are the total times of the
	// decisions and the attempts, all from the scheduler's metrics. An attempt ends when the pods
	// are passed on to binding.
	Attempts           int
	Decided, Attempted time.Duration
	Racks              int  // number of racks with members
	Tight              bool // the gang is in one of the racks with the least room left
	Victims            int
}

const (
	gangName  = "gang"
	gangGates = "GenericWorkload=true,TopologyAwareWorkloadScheduling=true"
	// decisionGoal is the goal for the decision time of each gang.
	decisionGoal = 50 * time.Millisecond
	// gangPatience is the maximum time without a binding before a gang is given up, and the maximum
	// time until the scheduler has observed its pods. It is long, because kube-scheduler tries each
	// rack, pod by pod.
	gangPatience = 10 * time.Minute
	// gangMemory is the memory above which a scheduler is killed and the gang is given up.
	// kube-scheduler keeps its results for each rack, and could exhaust the machine's memory.
	gangMemory = 12 << 30

	gangDecisions = "scheduler_podgroup_scheduling_algorithm_duration_seconds"
	gangAttempts  = "scheduler_podgroup_scheduling_attempt_duration_seconds"
)

// gangs is a run that measures gangs.
type gangs struct {
	*bench
	racks racks
}

// measureGangs measures both schedulers, and then preemption. It measures preemption only for
// Berth, because groups with a topology constraint never preempt in kube-scheduler.
func (b *gangs) measureGangs(ctx context.Context) error {
	if err := b.registerNodes(ctx, b.racks.labelNode); err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	if err := b.bindResidents(ctx); err != nil {
		return fmt.Errorf("pods that run already: %w", err)
	}

	for _, s := range b.Schedulers {
		if err := b.measureScheduler(ctx, &s, &Gang{Scheduler: s.Name, Pods: b.Gang}); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
	}

	for _, s := range b.Schedulers {
		if s.Key != "berth" {
			continue
		}
		if _, err := b.CreateNamespace(ctx, lowerNamespace); err != nil {
			return err
		}
		if err := b.measureScheduler(ctx, &s, &Gang{Scheduler: s.Name + ", by preemption", Pods: b.Gang, preempts: true}); err != nil {
			return fmt.Errorf("%s, by preemption: %w", s.Name, err)
		}
	}
	return nil
}

// bindResidents creates the bound pods that stay during the whole run.
func (b *gangs) bindResidents(ctx context.Context) error {
	if _, err := b.CreateNamespace(ctx, fillNamespace); err != nil {
		return err
	}
	pods := b.racks.residentPods()
	b.Printf("%s pods run already, in %d racks", driver.Thousands(len(pods)), b.racks.countAll())
	return b.CreatePods(ctx, fillNamespace, len(pods), func(i int) *v1.Pod { return pods[i] })
}

// measureScheduler measures one scheduler. Rounds completed before an error are part of the report.
func (b *gangs) measureScheduler(ctx context.Context, s *driver.Scheduler, g *Gang) error {
	defer func() {
		if len(g.Rounds) > 0 {
			b.report.Gangs = append(b.report.Gangs, *g)
		}
	}()
	p, err := b.startObserved(s, "--feature-gates", gangGates)
	if err != nil {
		return err
	}
	defer func() { _, _ = p.Stop() }() // for early returns
	go p.endAbove(gangMemory)

	namespace := "bench-gang-" + s.Key
	if g.preempts {
		namespace += "-preempting"
	}
	if err := b.awaitReady(ctx, p, namespace); err != nil {
		return err
	}

	for i := range b.GangRounds {
		name := fmt.Sprintf("%s-%d", namespace, i)
		r, err := b.measureGang(ctx, p, name, g.preempts)
		if peak := p.exceeded.Load(); peak > 0 {
			<-p.Ended
			b.Printf("gang: %s was ended: it had %s", g.Scheduler, driver.Mebibytes(peak))
			g.Rounds, g.Usage = append(g.Rounds, GangRound{}), process.Usage{CPU: p.Spent(), Peak: peak}
			return b.DeletePods(ctx, name)
		}
		if err != nil {
			return err
		}

		g.Rounds = append(g.Rounds, *r)
		b.Printf("gang: %s: %s of %s bound, the first after %s, the last after %s; attempts: %d, %s, of which decisions "+
			"%s; racks: %d; victims: %d", g.Scheduler, driver.Thousands(r.Bound), driver.Thousands(b.Gang), driver.Short(r.First),
			driver.Short(r.All), r.Attempts, driver.Short(r.Attempted), driver.Short(r.Decided), r.Racks, r.Victims)
		if r.Bound < b.Gang { // the next gang would also be given up
			break
		}
	}
	g.Usage, err = p.Stop()
	return err
}

// awaitReady waits until the scheduler binds a pod, which shows that its caches are synced.
func (b *gangs) awaitReady(ctx context.Context, p *observed, namespace string) error {
	w, err := b.watchBound(ctx, namespace)
	if err != nil {
		return err
	}
	defer w.Stop()
	if _, err := b.bindOne(ctx, w, p.Process, namespace, plainPod(0)); err != nil {
		return err
	}
	return b.DeletePods(ctx, namespace)
}

// measureGang schedules one gang.
func (b *gangs) measureGang(ctx context.Context, p *observed, namespace string, preempts bool) (*GangRound, error) {
	var lower []*v1.Pod
	if preempts {
		lower = b.racks.lowerPods()
		if err := b.CreateMissing(ctx, lowerNamespace, lower); err != nil {
			return nil, err
		}
	}

	w, err := b.watchBound(ctx, namespace)
	if err != nil {
		return nil, err
	}
	defer w.Stop()
	if err := b.createMembers(ctx, p, namespace); err != nil {
		return nil, err
	}

	r := &GangRound{}
	done, err := b.noteAttempts(ctx, p, r)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if _, err := b.Client.SchedulingV1beta1().PodGroups(namespace).Create(ctx, gangGroup(b.Gang), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	if r.Bound, r.First, r.All, err = w.countBound(ctx, p.Process, b.Gang, gangPatience, began); err != nil {
		return nil, err
	}
	r.All += r.First
	if err := done(r.Bound == b.Gang); err != nil {
		return nil, err
	}

	if err := b.countRacks(ctx, namespace, r); err != nil {
		return nil, err
	}
	left, err := b.CountPods(ctx, lowerNamespace)
	if err != nil {
		return nil, err
	}
	r.Victims = len(lower) - left
	if _, err := b.awaitEvents(ctx, namespace, r.Bound); err != nil {
		return nil, err
	}
	return r, b.DeletePods(ctx, namespace)
}

// createMembers creates the members, and waits until the scheduler reports all of them as waiting
// for their group.
func (b *gangs) createMembers(ctx context.Context, p *observed, namespace string) error {
	if err := b.CreatePods(ctx, namespace, b.Gang, memberPod); err != nil {
		return err
	}
	return b.Until(ctx, "the members to wait for their group", gangPatience, func() (string, error) {
		metrics, err := p.readMetrics(ctx)
		if err != nil {
			return "", err
		}
		// kube-scheduler counts pods without their group as incomplete, and Berth counts them as
		// gated.
		incomplete, _ := driver.SumMetric(metrics["scheduler_pending_pods"], "queue=incomplete")
		gated, _ := driver.SumMetric(metrics["scheduler_pending_pods"], "queue=gated")
		return driver.Lacking(int(incomplete+gated), b.Gang), nil
	})
}

func gangGroup(pods int) *schedulingv1beta1.PodGroup {
	return &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Name: gangName},
		Spec: schedulingv1beta1.PodGroupSpec{
			PriorityClassName: highClass, // kube-scheduler requires the priority class of the members
			SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{
				Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(pods)},
			},
			SchedulingConstraints: &schedulingv1beta1.PodGroupSchedulingConstraints{
				Topology: []schedulingv1beta1.TopologyConstraint{{Key: rackLabel}},
			},
		},
	}
}

// noteAttempts measures the scheduler's attempts from now until done is called, and stores them in
// r.
func (b *gangs) noteAttempts(ctx context.Context, p *observed, r *GangRound) (done func(scheduled bool) error, err error) {
	type reading struct {
		decided, attempted float64
		attempts, fine     uint64
	}
	read := func() (now reading, err error) {
		metrics, err := p.readMetrics(ctx)
		if err != nil {
			return now, err
		}
		now.decided, _ = driver.SumMetric(metrics[gangDecisions])
		now.attempted, now.attempts = driver.SumMetric(metrics[gangAttempts])
		_, now.fine = driver.SumMetric(metrics[gangAttempts], "result=scheduled")
		return now, nil
	}

	before, err := read()
	if err != nil {
		return nil, err
	}

	return func(scheduled bool) error {
		return b.Until(ctx, "the metrics of the attempt", patience, func() (string, error) {
			now, err := read()
			r.Attempts = int(now.attempts - before.attempts)
			r.Decided = time.Duration((now.decided - before.decided) * float64(time.Second))
			r.Attempted = time.Duration((now.attempted - before.attempted) * float64(time.Second))
			if scheduled && now.fine <= before.fine {
				return "it is not counted", err
			}
			return "", err
		})
	}, nil
}

// countRacks sets the number of racks with members, and whether the rack is a tight one.
func (b *gangs) countRacks(ctx context.Context, namespace string, r *GangRound) error {
	pods, err := b.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}

	racks := map[int]bool{}
	for i := range pods.Items {
		var node int
		if name := pods.Items[i].Spec.NodeName; name == "" {
			continue
		} else if _, err := fmt.Sscanf(name, "node-%d", &node); err != nil {
			return fmt.Errorf("node %q: %w", name, err)
		}
		rack := b.racks.rackOf(node)
		racks[rack] = true
		r.Tight = len(racks) == 1 && rack%rackKinds == tightRack
	}

	r.Racks = len(racks)
	return nil
}

// sortedTimes returns the time selected by what of each completely bound gang, sorted.
func (g *Gang) sortedTimes(what func(r *GangRound) time.Duration) []time.Duration {
	var all []time.Duration
	for i := range g.Rounds {
		if r := &g.Rounds[i]; r.Bound == g.Pods {
			all = append(all, what(r))
		}
	}
	slices.Sort(all)
	return all
}

func (r *Report) writeGangs(w io.Writer) {
	if len(r.Gangs) == 0 {
		return
	}
	lines := [][]string{{"scheduler", "gangs", "bound", "decided p50", "slowest", "goal", "attempt p50", "slowest", "attempts",
		"first bound p50", "slowest", "all bound p50", "slowest", "in one rack", "the fullest", "victims", "CPU a pod", "peak memory"}}
	for i := range r.Gangs {
		lines = append(lines, r.Gangs[i].tableLine())
	}
	driver.Table(w, fmt.Sprintf("Live: gangs of %s pods, each in one rack, %s nodes", driver.Thousands(r.Gangs[0].Pods),
		driver.Thousands(r.Nodes)), lines)
}

func (g *Gang) tableLine() []string {
	var bound, attempts, whole, tight, victims int
	for _, r := range g.Rounds {
		attempts += r.Attempts
		bound += r.Bound
		victims += r.Victims
		if r.Racks == 1 {
			whole++
		}
		if r.Tight {
			tight++
		}
	}
	line := []string{g.Scheduler, fmt.Sprint(len(g.Rounds)), driver.Thousands(bound)}
	if bound < len(g.Rounds)*g.Pods {
		line[2] += " (given up)"
	}
	for i, times := range [][]time.Duration{
		g.sortedTimes(func(r *GangRound) time.Duration { return r.Decided }),
		g.sortedTimes(func(r *GangRound) time.Duration { return r.Attempted }),
		g.sortedTimes(func(r *GangRound) time.Duration { return r.First }),
		g.sortedTimes(func(r *GangRound) time.Duration { return r.All }),
	} {
		slowest := driver.Quantile(times, 1)
		if len(times) > 0 {
			line = append(line, driver.Short(driver.Quantile(times, 0.5)), driver.Short(slowest))
		} else {
			line = append(line, "", "")
		}
		switch i {
		case 0:
			if g.preempts { // not comparable: the gang is decided twice
				line = append(line, "")
				continue
			}
			line[len(line)-1] += driver.Mark(slowest <= decisionGoal && bound == len(g.Rounds)*g.Pods)
			line = append(line, driver.Short(decisionGoal))
		case 1:
			line = append(line, fmt.Sprint(attempts))
		}
	}
	perPod := ""
	if bound > 0 {
		perPod = driver.Short(g.Usage.CPU / time.Duration(bound))
	}
	return append(line, fmt.Sprintf("%d%s", whole, driver.Mark(whole == len(g.Rounds))), fmt.Sprint(tight),
		fmt.Sprint(victims), perPod, driver.Mebibytes(g.Usage.Peak))
}
