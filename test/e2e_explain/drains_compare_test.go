// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eexplain

import (
	"fmt"
	"regexp"
	"strings"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// kind returns the kind of the prediction for a pod, for statistics.
func (f *foretold) kind(name string) string {
	planned, foreseen := f.planned[name], f.foreseen[name]
	kind, _, _ := strings.Cut(planned, " (")
	switch {
	case strings.HasPrefix(planned, "never: "):
		return "never"
	case strings.HasPrefix(planned, "refused: daemonsets.apps"):
		return "refused: daemonsets.apps"
	case kind == "leaves" && f.any("refused: ", "never: "):
		return "would leave, but another forbids it"
	case kind == "leaves":
		kind, _, _ = strings.Cut(foreseen, ": ")
	}
	return kind
}

// any reports whether the plan's prediction for some pod has one of the prefixes.
func (f *foretold) any(prefixes ...string) bool {
	for _, planned := range f.planned {
		for _, prefix := range prefixes {
			if strings.HasPrefix(planned, prefix) {
				return true
			}
		}
	}
	return false
}

// disagreements lists the pods with differing predictions.
func (f *foretold) disagreements() (list []string) {
	for _, pod := range f.on() {
		planned, foreseen, kubectl := f.planned[pod.Name], f.foreseen[pod.Name], f.kubectl[pod.Name]
		refuses := f.any("refused: ") // in this case, kubectl and what-if do not mention the pods that would leave
		if !asKubectl(planned, kubectl) || kubectl == "" && !refuses && !strings.HasPrefix(planned, "ignored: ") {
			list = append(list, pod.Name+": the plan is not as kubectl")
		}
		if (!refuses || strings.HasPrefix(planned, "refused: ")) && !asForeseen(planned, foreseen) {
			list = append(list, pod.Name+": the plan is not as the forecast")
		}
	}
	return list
}

// asKubectl reports whether the plan for a pod agrees with kubectl and the API server. They judge
// the current state, while the plan takes earlier evictions into account.
func asKubectl(planned, kubectl string) bool {
	kind, why, _ := strings.Cut(kubectl, ": ")
	switch kind {
	case "":
		return !strings.HasPrefix(planned, "refused: ")
	case "held":
		return (strings.HasPrefix(planned, "leaves (held): ") || strings.HasPrefix(planned, "never: ")) && strings.Contains(planned, why)
	case "never":
		return strings.HasPrefix(planned, "never: ") && strings.Contains(planned, "more than one") && strings.Contains(why, "more than one")
	}
	return strings.HasPrefix(planned, kubectl)
}

// asForeseen reports whether the plan for a pod agrees with the forecast. The order of evictions
// determines which pods use up a budget, so a pod that is held in the forecast may leave in the
// plan. Pods that the budget never permits to evict must be held in both.
func asForeseen(planned, foreseen string) bool {
	switch {
	case strings.HasPrefix(planned, "never: "):
		_, reason, _ := strings.Cut(foreseen, "disruption budget: ")
		if reason == "" {
			_, reason, _ = strings.Cut(foreseen, ": ")
		}
		reason, _, _ = strings.Cut(reason, " and has") // ignore the number of healthy pods, which may be outdated
		return strings.HasPrefix(foreseen, "held ") && strings.Contains(planned, reason)
	case strings.HasPrefix(planned, "leaves"):
		return (foreseen == "leaves" || strings.HasPrefix(foreseen, "held ")) && !strings.Contains(foreseen, "more than one")
	}
	return foreseen == planned
}

// carryOut drains the node, and returns the deviations from the predictions.
func (f *foretold) carryOut() (problems []string) {
	fault := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	text, err := f.drain()
	if err != nil {
		return []string{err.Error()}
	}
	f.said = text
	plan, err := f.plan(text)
	pods, budgets, looked := f.look()
	node, got := client.CoreV1().Nodes().Get(f.ctx, f.nodes[0], metav1.GetOptions{})
	if err != nil || looked != nil || got != nil {
		return append(problems, fmt.Sprint(err, looked, got))
	}
	if fmt.Sprint(plan) != fmt.Sprint(f.planned) {
		fault("the drain that is carried out has another plan: %v", plan)
	}
	if f.any("refused: ", "never: ") {
		if node.Spec.Unschedulable || versions(pods, budgets) != versions(f.pods, f.budgets) || !strings.Contains(text, "not drained: ") {
			fault("a drain that is refused has begun; cordoned: %t", node.Spec.Unschedulable)
		}
		return problems
	}

	there := map[types.UID]*v1.Pod{}
	for i := range pods {
		there[pods[i].UID] = &pods[i]
	}
	groups, held, unended := map[string]*group{}, map[string]string{}, 0
	for _, pod := range f.on() {
		now := there[pod.UID]
		if !strings.HasPrefix(f.planned[pod.Name], "leaves") {
			if now == nil || now.DeletionTimestamp == nil != (pod.DeletionTimestamp == nil) {
				fault("%s: it was to stay as it is, and is now %+v", pod.Name, now)
			}
			if f.planned[pod.Name] == "ending" {
				unended++
			}
			continue
		}
		g := f.group(groups, pod)
		if strings.HasPrefix(f.foreseen[pod.Name], "held to the end: ") {
			g.foreseen++
		}
		if now != nil && now.DeletionTimestamp == nil {
			g.stayed++
			reason := fmt.Sprint(f.evictable(now))
			if held[pod.Name] = strings.TrimPrefix(reason, "held: "); !strings.HasPrefix(reason, "held: ") {
				fault("%s: it has stayed, and the API server says: %s", pod.Name, reason)
			}
		}
	}
	for key, g := range groups {
		if !g.mixed && g.foreseen != g.stayed {
			fault("%s: %d pods were to be held to the end, and %d are", key, g.foreseen, g.stayed)
		}
	}
	if done := strings.Contains(text, "node/"+f.nodes[0]+" drained\n"); done != (len(held)+unended == 0) || !node.Spec.Unschedulable {
		fault("drained: %t, held: %v, not ended: %d, cordoned: %t", done, held, unended, node.Spec.Unschedulable)
	}
	lines := regexp.MustCompile(`(\d+) pods? held back: \S+/(\S+): (.*)`).FindAllStringSubmatch(text, -1)
	if len(held) > 0 && (len(lines) == 0 || lines[len(lines)-1][1] != fmt.Sprint(len(held)) ||
		held[lines[len(lines)-1][2]] == "" || !strings.Contains(lines[len(lines)-1][3], held[lines[len(lines)-1][2]])) {
		fault("held: %v; said: %q", held, lines)
	}
	return problems
}

// group is a set of pods that share a budget, or a single pod without a budget.
type group struct {
	returns          string // whether the controller replaces the pods
	mixed            bool   // the number of leaving pods depends on their order or on the controllers' timing
	foreseen, stayed int
}

func (f *foretold) group(groups map[string]*group, pod *v1.Pod) *group {
	key, returns, failed := pod.Name, "never", false // failed: the status of its budget cannot be computed until another pod has left
	if owner := metav1.GetControllerOf(pod); owner != nil && (owner.Kind == "ReplicaSet" || owner.Kind == "StatefulSet" || owner.Kind == "Job") {
		returns = strings.Replace(owner.Kind, "Stateful", "Replica", 1)
	}
	for i := range f.budgets {
		if covers(&f.budgets[i], pod) && pod.Status.Phase == v1.PodRunning {
			key = "budget " + f.budgets[i].Name
			failed = meta.IsStatusConditionFalse(f.budgets[i].Status.Conditions, policyv1.DisruptionAllowedCondition) && f.budgets[i].Status.ObservedGeneration == 0
		}
	}
	g := groups[key]
	if g == nil {
		g = &group{returns: returns}
		groups[key] = g
	}
	g.mixed = g.mixed || key != pod.Name && (g.returns != returns || returns == "Job" || failed)
	return g
}
