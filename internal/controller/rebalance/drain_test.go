// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/disruption"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// draining parses the arguments of the command drain of TestExecution.
func draining(t *testing.T, args []datadriven.CmdArg) (o execute.DrainOptions) {
	for _, arg := range args {
		value := ""
		if len(arg.Vals) > 0 {
			value = arg.Vals[0]
		}
		var err error
		switch arg.Key {
		case "ignore-daemonsets":
			o.IgnoreDaemonSets = true
		case "surge":
			o.Surge = true
		case "only-restore":
			o.OnlyRestore = true
		case "delete-emptydir-data":
			o.DeleteEmptyDirData = true
		case "force":
			o.Force = true
		case "disable-eviction":
			o.Delete = true
		case "allow-pending":
			o.AllowPending = true
		case "dry-run":
			o.DryRun = true
		case "timeout":
			o.Timeout = duration(t, value)
		case "skip-wait":
			o.Overdue = duration(t, value)
		case "pod-selector":
			o.Pods, err = labels.Parse(strings.ReplaceAll(value, ":", "="))
		case "grace-period":
			var grace int64
			grace, err = strconv.ParseInt(value, 10, 64)
			o.Grace = &grace
		default:
			o.Nodes = append(o.Nodes, arg.Key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func (s *stage) cordon(a execute.Cordon) execute.Event {
	for _, o := range s.objects {
		if n, ok := o.(*v1.Node); ok && n.Name == a.Node {
			n = n.DeepCopy()
			n.Spec.Unschedulable = true
			n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: v1.TaintNodeUnschedulable, Effect: v1.TaintEffectNoSchedule})
			s.write(n)
			return execute.Answered{Ticket: a.Ticket}
		}
	}
	return execute.Answered{Ticket: a.Ticket, Outcome: response.Gone, Message: "not found"}
}

func (s *stage) drainTold(a execute.DrainProgress) {
	switch {
	case a.Result == execute.Unreserved:
	case a.Plan != nil:
		s.say("planned:\n%s", showDraining(a.Plan))
	case a.Pod == nil:
		s.say("%s %s: %s", a.Result, a.Node, a.Message)
	case a.Pod.Name == "":
		s.say("%s", a.Line())
	default:
		s.results[string(a.Result)]++
		where := a.Node
		if a.Node != "" {
			where = " -> " + a.Node
		}
		s.say("%s %s%s %s", a.Pod.Name, a.Result, where, a.Message)
	}
}

func showDraining(plan *rebalance.Draining) string {
	var b strings.Builder
	for i := range plan.Pods {
		p := &plan.Pods[i]
		fmt.Fprintf(&b, "  %s %s -> %s", p.Name, p.From, p.To)
		if len(p.Or) > 0 {
			fmt.Fprintf(&b, " (or %s)", strings.Join(p.Or, ", "))
		}
		if p.Stranded != "" {
			fmt.Fprintf(&b, " stranded: %s", p.Stranded)
		}
		if p.Waits != "" {
			fmt.Fprintf(&b, " waits: %s", p.Waits)
		}
		if p.Lost {
			b.WriteString(" lost")
		}
		if p.Held {
			b.WriteString(" held")
		}
		if p.Surge != nil {
			fmt.Fprintf(&b, " surge of %s", p.Surge.Scaled)
		}
		if p.NoSurge != "" {
			fmt.Fprintf(&b, " no surge: %s", p.NoSurge)
		}
		b.WriteString("\n")
	}
	for i, list := range [][]rebalance.Kept{plan.Refused, plan.Ignored, plan.Ending} {
		for _, k := range list {
			fmt.Fprintf(&b, "  %s %s: %s\n", k.Name, [...]string{"refused", "ignored", "ending"}[i], k.Why)
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// TestDrainsOfRandomWorlds drains nodes of random clusters, while it kills and restarts the process
// and refuses evictions at random. It verifies that in the end the nodes are empty, unless the
// drain has evicted no pod and has reported that successors would find no other node. Workloads
// must have all their pods, budgets must hold, and no pod may be pending that was not pending
// before.
func TestDrainsOfRandomWorlds(t *testing.T) {
	evicted, replaced, stranded := 0, 0, 0
	injected := map[virtual.Injection]int{}
	seed, end, runs := seeds(500, 200)
	for ; seed < end; seed++ {
		s := randomStage(t, seed)
		s.policy.Goals = nil
		s.draining, s.statuses, s.keeps = true, true, seed%2 == 0
		s.count()
		s.Run(10 * time.Second)
		nodes := []string{fmt.Sprintf("n%d", s.Rand.IntN(4))}
		if s.Rand.IntN(4) == 0 {
			nodes = append(nodes, fmt.Sprintf("n%d", 4+s.Rand.IntN(2)))
		}
		nodes = slices.DeleteFunc(nodes, func(name string) bool { return s.node(name) == nil })
		options := execute.DrainOptions{Timeout: 20 * time.Minute, Leaving: rebalance.Leaving{
			Nodes: nodes, DrainRules: disruption.DrainRules{DeleteEmptyDirData: true, IgnoreDaemonSets: true, Force: true},
		}}
		options.Surge = seed%4 < 2
		pending, scales := s.homeless(), maps.Clone(s.replicas)
		if seed%3 == 1 {
			s.injectPassing()
		}
		if seed%3 == 0 {
			kills := 0
			s.faults.request = func() bool {
				if kills == 5 || s.Rand.IntN(30) > 0 {
					return true
				}
				kills++
				s.process.Kill()
				return s.Rand.IntN(2) == 0
			}
			s.faults.after = func(*v1.Pod) {
				if s.Rand.IntN(3) == 0 {
					s.process.Kill()
				}
			}
			failed := 0 // consecutive failures, bounded because a drain ends if the API server keeps responding with errors
			s.faults.refuse = func(*v1.Pod) response.Outcome {
				answer := [...]response.Outcome{response.OK, response.OK, response.Busy, response.Failed}[s.Rand.IntN(4)]
				if failed++; answer != response.Failed || failed > 3 {
					answer, failed = min(answer, response.Busy), 0
				}
				return answer
			}
			s.faults.lose = func() bool { return s.Rand.IntN(3) == 0 }
		}
		for try := 0; len(s.drained) == 0 && try < 40; try++ {
			if !s.process.Running() {
				s.begin(execute.NewDrainer(options))
			}
			s.Run(2 * time.Minute)
		}
		virtual.Add(injected, s.line.Injected)
		evicted += len(s.evicted)
		replaced += s.results[string(execute.Replaced)]
		s.judgeDrain(options, pending)
		s.judgeScales(scales)
		if len(s.drained) == 1 && strings.Contains(s.drained[0].Stopped, "no other node") {
			stranded++
		}
		s.report(seed)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d worlds, %d pods evicted, %d after their successors were ready, %d drains stopped because a pod would find no node%s",
		runs, evicted, replaced, stranded, virtual.Summary(injected))
	if evicted < runs/4 || stranded < runs/10 || replaced < runs/50 {
		t.Errorf("%d pods evicted, %d replaced and %d drains stopped in %d worlds: they are too quiet to show anything", evicted, replaced, stranded, runs)
	}
}

// injectPassing injects faults of requests that are repeated, cuts of watches, and a freeze.
func (s *stage) injectPassing() {
	for _, kind := range []string{"Evict", "Scale", "Mark"} {
		for _, r := range virtual.Every(0.1) {
			if r.Kind = kind; r.Fault != virtual.Forbidden {
				s.line.Rules = append(s.line.Rules, r)
			}
		}
	}
	for range 10 {
		s.After(s.Between(0, 20*time.Minute), func() { s.watch.Cut(s.Between(0, time.Minute), s.Rand.IntN(2) == 0) })
	}
	s.After(s.Between(0, 10*time.Minute), func() {
		s.process.Freeze(s.Between(0, time.Minute), func() []execute.Event { return nil })
	})
}

// judgeScales verifies that surges have left nothing behind.
func (s *stage) judgeScales(before map[types.UID]int) {
	for uid, replicas := range before {
		if s.replicas[uid] != replicas {
			s.fail("%s has the scale %d, and had %d", uid, s.replicas[uid], replicas)
		}
	}
	for _, object := range s.objects {
		if object.GetLabels()[rebalance.SurgeLabel] != "" {
			s.fail("%T %s has the label of a surge", object, object.GetName())
		}
		if p, ok := object.(*v1.Pod); ok && execute.Marked(p) && p.DeletionTimestamp == nil {
			s.fail("%s has the lowest deletion cost", p.Name)
		}
	}
}

// judgeDrain verifies the invariants of a finished drain.
func (s *stage) judgeDrain(options execute.DrainOptions, pending map[string]bool) {
	if len(s.drained) != 1 {
		s.fail("ended %d times", len(s.drained))
		return
	}
	done, left := s.drained[0], 0
	for _, wrong := range misclaimed(s.state()) {
		s.fail("%s", wrong)
	}
	for _, p := range s.pods() {
		if !slices.Contains(options.Nodes, p.Spec.NodeName) {
			continue
		}
		left++
		if strings.Contains(done.Stopped, "not done within") && s.blocked(p) == "" {
			s.fail("%s is still there, and no budget covers it", p.Name)
		}
	}
	switch {
	case done.Stopped == "" && left > 0:
		s.fail("%d pods are still there", left)
	case done.Stopped == "", strings.Contains(done.Stopped, "more than one disruption budget"), strings.Contains(done.Stopped, "not done within"):
	case strings.Contains(done.Stopped, "allows no disruption at all") && len(s.evicted) == 0:
	case strings.Contains(done.Stopped, "no other node") && len(s.evicted) > 0 && s.faults.after == nil:
		s.fail("pods were evicted before it was known that there is no node for others: %s", done.Stopped)
	case !strings.Contains(done.Stopped, "no other node"):
		s.fail("stopped: %s", done.Stopped)
	}
	for name := range s.homeless() {
		if !pending[name] {
			s.fail("%s is pending", name)
		}
	}
	count := map[string]int{}
	for _, p := range s.pods() {
		if owner := metav1.GetControllerOfNoCopy(p); owner != nil {
			count[string(owner.UID)]++
		}
	}
	for uid, want := range s.replicas {
		if count[string(uid)] != want {
			s.fail("%s has %d pods, and wants %d", uid, count[string(uid)], want)
		}
	}
}

// homeless returns the workloads with pending pods.
func (s *stage) homeless() map[string]bool {
	names := map[string]bool{}
	for _, p := range s.pods() {
		if owner := metav1.GetControllerOfNoCopy(p); p.Spec.NodeName == "" && owner != nil {
			names[owner.Name] = true
		}
	}
	return names
}

func (s *stage) node(name string) *v1.Node {
	for _, o := range s.objects {
		if n, ok := o.(*v1.Node); ok && n.Name == name {
			return n
		}
	}
	return nil
}
