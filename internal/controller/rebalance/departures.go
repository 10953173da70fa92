// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	policyv1 "k8s.io/api/policy/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/disruption"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// budgetWaits returns the reasons why pods must not leave yet: their budgets do not allow it, or
// their surges are not possible yet. All other pods may leave immediately and together; they are
// deducted from the budgets.
//
//	budget web allows 1, three of its pods leave: the first leaves, and for the others the reason is
//	"the disruption budget web allows 1 at a time"
//
// It changes the budgets of the world, so it is called once for a plan.
func (w *world) budgetWaits(list []*pod, leaving *Leaving) map[*pod]string {
	waits, first := map[*pod]string{}, map[*policyv1.PodDisruptionBudget]int32{}
	for _, p := range list {
		if p.later {
			waits[p] = p.noSurge
			continue
		}
		verdict := w.protections.mayEvict(p)
		if verdict.Budget == nil || leaving.Delete || p.surge != nil || leaving.Surging[p.object.UID] {
			continue
		}
		switch b := verdict.Budget; {
		// An unready pod may be evicted without spending a disruption.
		case verdict.Spends:
			b.Status.DisruptionsAllowed--
			first[b]++
		case verdict.Answer == disruption.Allowed:
		case first[b] > 0:
			waits[p] = fmt.Sprintf("the disruption budget %s allows %d at a time", b.Name, first[b])
		default:
			waits[p] = verdict.Message
		}
	}

	return waits
}

// planDepartures plans the departures of the pods in turn. When it returns, all departures have
// been made in the world.
func (w *world) planDepartures(list []*pod, leaving *Leaving, waits map[*pod]string) (pods []Departure) {
	for _, p := range list {
		d := Departure{
			Namespace: p.Namespace(), Name: p.Name(), UID: p.object.UID, Owner: rules.ControllerRef(p.object), From: p.object.Spec.NodeName,
			Lost: w.successionOf(p) == workload.None, Grace: leaving.graceOf(p.object),
		}
		// The API server removes a terminal pod, or a pod without a grace period, immediately.
		d.Held = d.Grace > 0 && !rules.IsTerminal(p.object) && w.holdsPods(d.From)
		d.Waits, d.Surge, d.NoSurge = waits[p], p.surge, p.noSurge
		if budgets := w.protections.budgetsOf(p); len(budgets) > 0 && !leaving.Delete && !disruption.Ungoverned(p.object) {
			d.Budget = budgets[0].Name
		}
		w.failJob(p, &d, pods, !leaving.Delete)
		// A terminal pod holds no room and has no successor. The pods of a failed Job are removed.
		if w.placed[p.UID()] != nil {
			w.departPod(p, &d, leaving)
		}
		pods = append(pods, d)
	}

	return pods
}

// failJob counts a departing pod as a failure of its Job, if any. If the Job fails, its other pods
// are removed, and the preceding departures lose their successors.
func (w *world) failJob(p *pod, d *Departure, before []Departure, disrupted bool) {
	job := w.Workloads().JobOf(p.object)
	if job == nil || rules.IsTerminal(p.object) || d.Held && w.comesLate(p) {
		return
	}
	f := workload.Fail(job, p.object, disrupted)
	if w.Put(f.Job); f.Why == "" {
		return
	}
	if d.Lost, d.Fails = true, d.Owner+" fails: "+f.Why; f.Index {
		d.Fails = fmt.Sprintf("index %s of %s", p.object.Annotations[batchv1.JobCompletionIndexAnnotation], d.Fails)
		return
	}

	for _, other := range w.sortedPods() {
		if other != p && rules.OwnerOf(other.object) == rules.OwnerOf(p.object) {
			w.removePod(other)
		}
	}
	for i := range before {
		if b := &before[i]; b.Namespace == d.Namespace && b.Owner == d.Owner && (!b.Lost || b.Fails != "") {
			b.To, b.Or, b.Stranded, b.Lost, b.Fails = "", nil, "", true, d.Fails
		}
	}
}

// departPod makes one departure in the world, and fills in the successor's node. If there is no
// such node, the pod leaves and its successor is not placed, so that the following pods are planned
// with the room actually available.
func (w *world) departPod(p *pod, d *Departure, leaving *Leaving) {
	var found []*cluster.Node
	switch {
	// The successor already exists as a pod of the state.
	case leaving.Surging[p.object.UID]:
		w.removePod(p)
		return
	case d.Lost, d.Held && w.comesLate(p):
	case d.Surge != nil:
		var why proof
		found, why = w.surges.nodesBeside(p, anywhere)
		d.Stranded = why.message
	default:
		found, d.Stranded = w.landingNodes(p)
	}

	for _, n := range found {
		switch {
		// A successor that tolerates the cordon can land on the drained node repeatedly. It counts
		// as stranded: the drain continues only if pods may stay pending.
		case slices.Contains(leaving.Nodes, n.Name):
			d.To, d.Or, d.Stranded = "", nil, fmt.Sprintf("may come back to %s: it tolerates the taint of a cordoned node", n.Name)
		case d.Stranded != "":
		case d.To == "":
			d.To = n.Name
		default:
			d.Or = append(d.Or, n.Name)
		}
	}

	if d.To == "" {
		w.removePod(p)
	} else {
		w.movePod(p, w.c.Node(d.To))
	}
}

// comesLate reports whether a pod's successor is created only after the pod is removed. This holds
// for a StatefulSet, and for a Job with podReplacementPolicy: Failed or a podFailurePolicy.
func (w *world) comesLate(p *pod) bool { return w.successionOf(p) == workload.WhenGone }

// landingNodes returns the nodes on which the scheduler may put a pod's successor, by name, or the
// reason for their absence. The successor is created while the pod terminates, or after its
// removal; pending pods that fit then may be placed before it.
//
// It requires less than proveMove: any node is acceptable, so the nodes found during termination
// and after the removal may differ.
func (w *world) landingNodes(p *pod) (nodes []*cluster.Node, stranded string) {
	s := w.schedulerOf(p)
	if s == nil {
		return nil, fmt.Sprintf("no profile serves the scheduler name %q", p.Spec().SchedulerName)
	}

	w.withoutPod(p, func(next *pod, from *cluster.Node) {
		nodes, _ = w.landingsOf(s, next, from, anywhere)
	}, func(next *pod, from *cluster.Node) {
		if len(nodes) == 0 {
			var why proof
			nodes, why = w.landingsOf(s, next, from, anywhere)
			stranded = why.message
		}
		if len(nodes) == 0 {
			return
		}
		if _, why := w.behindWaiting(s, next, from, anywhere); why.code != "" {
			nodes, stranded = nil, "a pending pod that fits when it has gone may be placed before its successor, which then finds no node"
		}
	})

	sortByName(nodes)
	return nodes, stranded
}

// sortByName orders nodes by name, so that equal states give equal plans.
func sortByName(nodes []*cluster.Node) {
	slices.SortFunc(nodes, func(a, b *cluster.Node) int { return cmp.Compare(a.Name, b.Name) })
}
