// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Kinds of differences on purpose. Each value is a heading in docs/reference/differences.md.
const (
	notFound      = "The message about a missing object"
	nominatedAnew = "Nominated pods are evaluated again"
	victimsAnew   = "Victims are evaluated again"

	allocatedAtOnce = "Devices are allocated immediately"
)

// comparePod compares the results of all plugins together for one pod: verdicts, scores, the
// message or the choice, and preemption. It returns a node that both sides may choose, and
// upstream's cycle state for a reservation on that node.
func (c *comparison) comparePod(ctx context.Context, pod *v1.Pod) (node string, state fwk.CycleState) {
	want := c.upstream.attemptPod(ctx, pod)
	waiting := c.berth.cluster.Pending(pod)
	got := c.berth.evaluatePod(waiting)
	if want.all.inFlight() { // upstream did not evaluate any node, so there is nothing to compare
		c.totals.onPurpose(allocatedAtOnce, 1)
		return "", nil
	}
	if want.failed != nil && got.Err == nil && c.failsAtGuestsOnly(ctx, pod, got) {
		c.totals.onPurpose(nominatedAnew, 1)
		return "", nil
	}
	if want.failed != nil || got.Err != nil {
		if (want.failed == nil) != (got.Err == nil) {
			c.addDifference(pod, "", "", "error", fmt.Sprint(want.failed), fmt.Sprint(got.Err))
		}
		// A pod may be placed on its nominated node before the failing node is evaluated.
		if d := c.berth.decider.Decide(waiting); d.Err == nil && pod.Status.NominatedNodeName == "" {
			c.addDifference(pod, "", "", "error of the fast way", fmt.Sprint(want.failed), describeDecision(d))
		}
		c.totals.UpstreamErrors++
		return "", nil
	}
	if !c.compareVerdicts(ctx, pod, want, got) {
		return "", nil
	}
	c.totalScores(pod, want, got)
	decision := c.berth.decider.Decide(waiting)
	if len(want.feasible) > 0 {
		return c.compareChoice(pod, want, decision), want.state
	}
	if decision.Node != nil || decision.Err != nil {
		c.addDifference(pod, "", "", "decision", "none", describeDecision(decision))
	}
	c.comparePreemption(ctx, pod, waiting, want, got)
	return "", nil
}

// failsAtGuestsOnly reports whether upstream fails only at nodes with nominated pods, and its full
// evaluation of these nodes rejects the pod as Berth does.
func (c *comparison) failsAtGuestsOnly(ctx context.Context, pod *v1.Pod, got *decide.Evaluation) bool {
	settled := map[string]bool{}
	for i := range got.Nodes {
		v := &got.Nodes[i]
		b := rejectedVerdict(v.Plugin, v.Rejection)
		if b == nil || len(v.Node.Nominated) == 0 {
			continue
		}
		if anew, err := judgeAnew(ctx, c.world, c.only, pod, v.Node.Name); err == nil && anew.equal(b) {
			settled[v.Node.Name] = true
		}
	}
	others := slices.DeleteFunc(slices.Clone(c.upstream.nodes), func(n fwk.NodeInfo) bool { return settled[n.Node().Name] })
	return len(settled) > 0 && c.upstream.judgeNodes(ctx, pod, others).failed == nil
}

// compareVerdicts compares the verdicts on all nodes, and reports whether they are equal.
func (c *comparison) compareVerdicts(ctx context.Context, pod *v1.Pod, want *attempt, got *decide.Evaluation) bool {
	before := len(c.found)
	var all *Verdict
	if got.Rejection != nil {
		all = rejectedVerdict(got.Rejector, got.Rejection)
	}
	if !want.all.equal(all) {
		c.addDifference(pod, "", "", "prefilter", "all "+want.all.String(), "all "+all.String())
	}
	if want.all != nil || all != nil {
		return len(c.found) == before
	}
	for i := range got.Nodes {
		v := &got.Nodes[i]
		c.totals.Verdicts++
		u, b := want.nodes[v.Node.Name], rejectedVerdict(v.Plugin, v.Rejection)
		if u.equal(b) {
			continue
		}
		if anew, err := judgeAnew(ctx, c.world, c.only, pod, v.Node.Name); err == nil && anew.equal(b) {
			c.totals.onPurpose(nominatedAnew, 1)
			return false // results that depend on the verdicts cannot be compared
		}
		c.addDifference(pod, v.Node.Name, "", "filter", u.String(), b.String())
	}
	return len(c.found) == before
}

func (c *comparison) totalScores(pod *v1.Pod, want *attempt, got *decide.Evaluation) {
	for i := range want.scores {
		u := &want.scores[i]
		b := got.Verdict(c.berth.cluster.Node(u.Name))
		listed := map[string]int64{}
		for _, s := range b.Scores {
			listed[s.Plugin] = s.Score
		}
		for _, s := range u.Scores { // a plugin not listed by Berth has the score 0
			c.totals.Scores++
			if listed[s.Name] != s.Score {
				c.addDifference(pod, u.Name, "", "score by "+s.Name, fmt.Sprint(s.Score), fmt.Sprint(listed[s.Name]))
			}
		}
		if u.TotalScore != b.Total {
			c.addDifference(pod, u.Name, "", "total", fmt.Sprint(u.TotalScore), fmt.Sprint(b.Total))
		}
	}
}

func (c *comparison) compareChoice(pod *v1.Pod, want *attempt, got decide.Decision) (node string) {
	c.totals.Choices++
	best, total := want.bestNodes(pod)
	if got.Node == nil || got.Err != nil || !slices.Contains(best, got.Node.Name) || got.Total != total {
		c.addDifference(pod, "", "", "decision", fmt.Sprintf("%v with %d", best, total), describeDecision(got))
		return ""
	}
	if pod.Status.NominatedNodeName == "" && got.Feasible != len(want.feasible) {
		c.addDifference(pod, "", "", "feasible nodes", fmt.Sprint(len(want.feasible)), fmt.Sprint(got.Feasible))
	}
	return got.Node.Name
}

func describeDecision(d decide.Decision) string {
	switch {
	case d.Err != nil:
		return "error: " + d.Err.Error()
	case d.Node == nil:
		return "none"
	}
	return fmt.Sprintf("%s with %d", d.Node.Name, d.Total)
}

func (c *comparison) comparePreemption(ctx context.Context, pod *v1.Pod, waiting *cluster.Pod, want *attempt,
	evaluation *decide.Evaluation) {
	candidates, err := c.upstream.preemptFor(ctx, c.world, want, pod)
	if err != nil && len(candidates) == 0 {
		c.totals.UpstreamErrors++
		return
	}

	var got, fast decide.Preemption
	if c.berth.profile.Preemption {
		got = decide.NewPlain(c.berth.cluster, c.berth.profile).Preempt(waiting, evaluation)
		fast = c.berth.decider.Preempt(waiting)
	}

	c.totals.Preemptions++
	if !c.compareVictims(ctx, pod, want, candidates, got) || !c.compareVictims(ctx, pod, want, candidates, fast) {
		return
	}

	c.totals.Messages++
	u, after := c.upstreamMessage(ctx, pod, want, candidates, evaluation, c.berth.postFilterText(waiting, got))
	if b := evaluation.Message(after); u != b {
		c.addDifference(pod, "", "", "message", u, b)
	}

	if b := c.berth.decider.Diagnose(waiting).Message(after); u != b {
		c.addDifference(pod, "", "", "message of the fast way", u, b)
	}
}

// upstreamMessage returns upstream's message, adjusted for differences on purpose, and the end of
// Berth's message that comes from PostFilter.
func (c *comparison) upstreamMessage(ctx context.Context, pod *v1.Pod, a *attempt, candidates []victims,
	e *decide.Evaluation, after string) (string, string) {
	u := c.upstream.failureMessage(ctx, a, pod, candidates)
	if a.all != nil && a.fit.Diagnosis.PostFilterMsg == "not found" {
		// PreFilter left no state for DynamicResources, so upstream's plugin fails at PostFilter.
		// Berth writes the usual message.
		c.totals.onPurpose(notFound, 1)
		a.fit.Diagnosis.PostFilterMsg = ""
		return a.fit.Error(), ""
	}
	b := e.Message(after)
	if u == b {
		return u, after
	}
	if kept := strings.Replace(u, "deallocation of ResourceClaim completed, ", "", 1); kept == b && c.world.Sequence {
		// A pod that was just placed uses the claim, but upstream has not observed that pod yet.
		c.totals.onPurpose(allocatedAtOnce, 1)
		return b, after
	}
	if len(candidates) == 0 {
		if anew := c.upstream.messageAnew(ctx, c.world, c.only, a, pod); anew == b {
			c.totals.onPurpose(victimsAnew, 1)
			return b, after
		}
	}
	return u, after
}

// compareVictims compares the nodes and victims chosen by preemption, and reports whether the ends
// of the messages are comparable.
func (c *comparison) compareVictims(ctx context.Context, pod *v1.Pod, a *attempt, candidates []victims, got decide.Preemption) bool {
	want := cheapestOf(candidates)
	if slices.ContainsFunc(candidates, func(v victims) bool { return v.ambiguous }) {
		c.totals.Ambiguous++
		if got.Node != nil {
			return true
		}
		if anew, err := c.upstream.preemptAnew(ctx, c.world, c.only, a, pod); err == nil && len(anew) == 0 {
			c.totals.onPurpose(victimsAnew, 1)
			return false // the ends of the messages differ
		}
		return true
	}
	if isPicked(want, got) {
		c.totals.Victims += len(got.Victims)
		return true
	}
	if anew, err := c.upstream.preemptAnew(ctx, c.world, c.only, a, pod); err == nil && isPicked(cheapestOf(anew), got) {
		c.totals.onPurpose(victimsAnew, 1)
		return false
	}
	var u []string
	for _, v := range want {
		u = append(u, v.String())
	}
	c.addDifference(pod, "", "", "preemption", "one of ["+strings.Join(u, "; ")+"]", ofBerth(got).String())
	return false
}

func isPicked(want []victims, got decide.Preemption) bool {
	if len(want) == 0 {
		return got.Node == nil
	}
	return slices.ContainsFunc(want, func(v victims) bool { return v.String() == ofBerth(got).String() })
}

func ofBerth(p decide.Preemption) (v victims) {
	if p.Node == nil {
		return victims{}
	}
	v.node, v.violations = p.Node.Name, int64(p.Violations)
	for _, victim := range p.Victims {
		v.pods = append(v.pods, victim.Name())
	}
	return v
}

func (v victims) String() string {
	return fmt.Sprintf("%s: %v, %d over budget", v.node, v.pods, v.violations)
}

// postFilterText returns the text that the plugins at PostFilter add to Berth's message.
func (b *berth) postFilterText(pod *cluster.Pod, p decide.Preemption) string {
	if p.Node != nil { // upstream's PostFilter is not run in this case, because it would delete the victims
		return ""
	}
	var parts []string
	for _, name := range b.profile.At[plugins.PostFilter] {
		switch name {
		case "DynamicResources":
			for _, f := range b.profile.Filters {
				if devices, ok := f.(plugins.ClaimReleaser); ok {
					if message, _, _ := devices.PostFilter(b.cluster, pod, nil); message != "" {
						parts = append(parts, message)
					}
				}
			}
		case "DefaultPreemption":
			parts = append(parts, p.Text())
		}
	}
	return strings.Join(parts, ", ")
}

var (
	_ plugins.ClaimReleaser = (*plugins.DynamicResources)(nil)
	_ preEnqueue            = (*plugins.DynamicResources)(nil)
)
