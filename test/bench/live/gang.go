package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/bench/table"
	"github.com/berth-k8s/berth/test/internal/process"
)

// Gang is what gangs took of a scheduler, one after another on the same nodes: each has to be in
// one rack, and its pods wait before its PodGroup is created.
type Gang struct {
	Scheduler string
	Pods      int  // of each
	preempts  bool // each has to make room
	Rounds    []GangRound
	Usage     process.Usage // of the process, from its start until the events of the last gang are written
}

// GangRound is one gang.
type GangRound struct {
	Bound int // fewer than all: it was given up
	// First and All are from the request that creates the PodGroup to the news that the first and
	// the last pod is bound.
	First, All time.Duration
	// By the scheduler's own metrics: how many attempts it made, and how long it decided and
	// attempted in all of them. An attempt ends when the pods are handed over to be bound.
	Attempts           int
	Decided, Attempted time.Duration
	Racks              int  // that have members
	Tight              bool // the rack is one of those that are fullest with the gang in them
	Victims            int
}

const (
	gangName  = "gang"
	gangGates = "GenericWorkload=true,TopologyAwareWorkloadScheduling=true"
	// decisionGoal is for each gang.
	decisionGoal = 50 * time.Millisecond
	// gangPatience is how long no pod may be bound before a gang is given up, and how long its pods
	// may take to be known: kube-scheduler tries each rack, pod by pod.
	gangPatience = 10 * time.Minute
	// gangMemory is with how much memory a scheduler is ended, and the gang given up:
	// kube-scheduler keeps what it found in each rack, and would take the machine's.
	gangMemory = 12 << 30

	gangDecisions = "scheduler_podgroup_scheduling_algorithm_duration_seconds"
	gangAttempts  = "scheduler_podgroup_scheduling_attempt_duration_seconds"
)

// measureGangs measures both schedulers.
func (b *bench) measureGangs(ctx context.Context) error {
	b.printProgress("registering %s nodes", formatThousands(b.Nodes))
	if err := b.registerNodes(ctx); err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	if err := b.bindResidents(ctx); err != nil {
		return fmt.Errorf("pods that run already: %w", err)
	}
	for _, c := range b.chosenContenders() {
		if err := b.gangsOf(ctx, c, &Gang{Scheduler: c.Name, Pods: b.Gang}); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	for _, c := range b.chosenContenders() {
		if c.Key != "berth" { // upstream's groups with a topology constraint never preempt
			continue
		}
		if _, err := b.createNamespace(ctx, lowerNamespace); err != nil {
			return err
		}
		if err := b.gangsOf(ctx, c, &Gang{Scheduler: c.Name + ", by preemption", Pods: b.Gang, preempts: true}); err != nil {
			return fmt.Errorf("%s, by preemption: %w", c.Name, err)
		}
	}
	return nil
}

// gangsOf measures one, and reports what is known also where it ends early with an error.
func (b *bench) gangsOf(ctx context.Context, c *Contender, g *Gang) error {
	defer func() {
		if len(g.Rounds) > 0 {
			b.report.Gangs = append(b.report.Gangs, *g)
		}
	}()
	p, err := b.startObserved(c, "--feature-gates", gangGates)
	if err != nil {
		return err
	}
	defer func() { _, _ = p.Stop() }() // where this returns early
	go p.endAbove(gangMemory)
	namespace := "bench-gang-" + c.Key
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
			b.printProgress("gang: %s was ended: it had %s", g.Scheduler, formatMebibytes(peak))
			g.Rounds, g.Usage = append(g.Rounds, GangRound{}), process.Usage{CPU: p.Spent(), Peak: peak}
			return b.deletePods(ctx, name)
		}
		if err != nil {
			return err
		}
		g.Rounds = append(g.Rounds, *r)
		b.printProgress("gang: %s: %s of %s bound, the first after %s, the last after %s; attempts: %d, %s, of which decisions "+
			"%s; racks: %d; victims: %d", g.Scheduler,
			formatThousands(r.Bound), formatThousands(b.Gang), formatShort(r.First), formatShort(r.All), r.Attempts,
			formatShort(r.Attempted),
			formatShort(r.Decided), r.Racks, r.Victims)
		if r.Bound < b.Gang { // the next one would be given up, too
			break
		}
	}
	g.Usage, err = p.Stop()
	return err
}

// awaitReady has one pod bound: the scheduler knows the cluster then.
func (b *bench) awaitReady(ctx context.Context, p *observed, namespace string) error {
	version, err := b.createNamespace(ctx, namespace)
	if err != nil {
		return err
	}
	w, err := b.watchBound(ctx, namespace, version)
	if err != nil {
		return err
	}
	defer w.stop()
	if _, err := b.bindOne(ctx, w, p.Process, namespace, (&Mode{}).newPod(0)); err != nil {
		return err
	}
	return b.deletePods(ctx, namespace)
}

// measureGang has one scheduled.
func (b *bench) measureGang(ctx context.Context, p *observed, namespace string, preempts bool) (*GangRound, error) {
	var lower []*v1.Pod
	if preempts {
		lower = b.lowerPods()
		if err := b.createMissing(ctx, lowerNamespace, lower); err != nil {
			return nil, err
		}
	}

	version, err := b.createNamespace(ctx, namespace)
	if err != nil {
		return nil, err
	}

	w, err := b.watchBound(ctx, namespace, version)
	if err != nil {
		return nil, err
	}

	defer w.stop()
	if err := b.createPods(ctx, namespace, b.Gang, memberPod); err != nil {
		return nil, err
	}
	if err := b.pollUntil(ctx, "the members to wait for their group", gangPatience, func() (bool, error) {
		metrics, err := p.readMetrics(ctx)
		if err != nil {
			return false, err
		}
		gated, _ := sumMetric(metrics["scheduler_pending_pods"], "queue", "gated")
		return int(gated) == b.Gang, nil
	}); err != nil {
		return nil, err
	}

	r := &GangRound{}
	done, err := b.noteAttempts(ctx, p, r)
	if err != nil {
		return nil, err
	}
	if err := b.createGroup(ctx, w, p, namespace, r); err != nil && !errors.Is(err, errIdle) {
		return nil, err
	}
	if err := done(r.Bound == b.Gang); err != nil {
		return nil, err
	}

	if err := b.countRacks(ctx, namespace, r); err != nil {
		return nil, err
	}
	left, err := b.countPods(ctx, lowerNamespace)
	if err != nil {
		return nil, err
	}

	r.Victims = len(lower) - left
	if _, err := b.awaitEvents(ctx, namespace, r.Bound); err != nil {
		return nil, err
	}
	return r, b.deletePods(ctx, namespace)
}

// createGroup creates the group that the members wait for, and watches until they are bound.
func (b *bench) createGroup(ctx context.Context, w *bound, p *observed, namespace string, r *GangRound) error {
	began := time.Now()
	if _, err := b.client.SchedulingV1beta1().PodGroups(namespace).Create(ctx, gangGroup(b.Gang), metav1.CreateOptions{}); err != nil {
		return err
	}
	for r.Bound < b.Gang {
		if _, err := w.nextBound(ctx, p.Process, gangPatience); err != nil {
			return err
		}
		r.All = time.Since(began)
		if r.Bound == 0 {
			r.First = r.All
		}
		r.Bound++
	}
	return nil
}

func gangGroup(pods int) *schedulingv1beta1.PodGroup {
	return &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Name: gangName},
		Spec: schedulingv1beta1.PodGroupSpec{
			SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{
				Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(pods)},
			},
			SchedulingConstraints: &schedulingv1beta1.PodGroupSchedulingConstraints{
				Topology: []schedulingv1beta1.TopologyConstraint{{Key: rackLabel}},
			},
		},
	}
}

// noteAttempts notes what the scheduler says of its attempts from now on, once done is called.
func (b *bench) noteAttempts(ctx context.Context, p *observed, r *GangRound) (done func(scheduled bool) error, err error) {
	type reading struct {
		decided, attempted float64
		attempts, fine     uint64
	}
	read := func() (now reading, err error) {
		metrics, err := p.readMetrics(ctx)
		if err != nil {
			return now, err
		}
		now.decided, _ = sumMetric(metrics[gangDecisions], "", "")
		now.attempted, now.attempts = sumMetric(metrics[gangAttempts], "", "")
		_, now.fine = sumMetric(metrics[gangAttempts], "result", "scheduled")
		return now, nil
	}

	before, err := read()
	if err != nil {
		return nil, err
	}

	return func(scheduled bool) error {
		return b.pollUntil(ctx, "the metrics of the attempt", patience, func() (bool, error) {
			now, err := read()
			r.Attempts = int(now.attempts - before.attempts)
			r.Decided = time.Duration((now.decided - before.decided) * float64(time.Second))
			r.Attempted = time.Duration((now.attempted - before.attempted) * float64(time.Second))
			return !scheduled || now.fine > before.fine, err
		})
	}, nil
}

// countRacks looks where the members are.
func (b *bench) countRacks(ctx context.Context, namespace string, r *GangRound) error {
	pods, err := b.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
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
		rack := b.rackOf(node)
		racks[rack] = true
		r.Tight = len(racks) == 1 && rack%rackKinds == tightRack
	}

	r.Racks = len(racks)
	return nil
}

// sortedTimes returns a time of each gang that was bound, sorted.
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
	fmt.Fprintf(w, "\n## Live: gangs of %s pods, each in one rack, %s nodes\n\n", formatThousands(r.Gangs[0].Pods),
		formatThousands(r.Nodes))
	lines := [][]string{{"scheduler", "gangs", "bound", "decided p50", "slowest", "goal", "attempt p50", "slowest", "attempts",
		"first bound p50", "slowest", "all bound p50", "slowest", "in one rack", "the fullest", "victims", "CPU a pod", "peak memory"}}
	for i := range r.Gangs {
		lines = append(lines, r.Gangs[i].tableLine())
	}
	table.Write(w, lines)
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
	line := []string{g.Scheduler, fmt.Sprint(len(g.Rounds)), formatThousands(bound)}
	if bound < len(g.Rounds)*g.Pods {
		line[2] += " (given up)"
	}
	for i, times := range [][]time.Duration{
		g.sortedTimes(func(r *GangRound) time.Duration { return r.Decided }),
		g.sortedTimes(func(r *GangRound) time.Duration { return r.Attempted }),
		g.sortedTimes(func(r *GangRound) time.Duration { return r.First }),
		g.sortedTimes(func(r *GangRound) time.Duration { return r.All }),
	} {
		slowest := quantileOf(times, 1)
		if len(times) > 0 {
			line = append(line, formatShort(quantileOf(times, 0.5)), formatShort(slowest))
		} else {
			line = append(line, "", "")
		}
		switch i {
		case 0:
			if g.preempts { // it is decided twice
				line = append(line, "")
				continue
			}
			line[len(line)-1] += table.Mark(slowest <= decisionGoal && bound == len(g.Rounds)*g.Pods)
			line = append(line, formatShort(decisionGoal))
		case 1:
			line = append(line, fmt.Sprint(attempts))
		}
	}
	perPod := ""
	if bound > 0 {
		perPod = formatShort(g.Usage.CPU / time.Duration(bound))
	}
	return append(line, fmt.Sprintf("%d%s", whole, table.Mark(whole == len(g.Rounds))), fmt.Sprint(tight),
		fmt.Sprint(victims), perPod, formatMebibytes(g.Usage.Peak))
}
