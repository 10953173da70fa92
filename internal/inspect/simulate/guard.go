// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"maps"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// guarding is the eviction guard of drains: the rules of the webhook, and the core of the
// controller, which runs like the core of a rebalance.
type guarding struct {
	options evictionguard.Options
	first   map[types.UID]time.Time // first eviction of each pod
	next    map[types.UID]string    // names of the replacements, by the pod
}

// beginGuard starts the guard, with its default options, unless it runs already.
func (r *rebalances) beginGuard() {
	if r.guard != nil {
		return
	}
	r.guard = &guarding{evictionguard.DefaultOptions(), map[types.UID]time.Time{}, map[types.UID]string{}}
	r.begin(&moving{core: execute.NewGuard(execute.GuardOptions{Options: r.guard.options})})
}

// holdEviction applies the rules of the webhook to an eviction. held is false if the guard admits
// it; forGood reports a refusal that evictors do not retry.
func (r *rebalances) holdEviction(p *pod) (message string, forGood, held bool) {
	var shown *v1.Pod
	for _, event := range r.eventsOf(p.object, false) { // none for a refused pod
		if seen, ok := event.(execute.Seen); ok {
			shown, _ = seen.Object.(*v1.Pod)
		}
	}
	if shown == nil || !r.guard.options.Holds(shown) {
		return "", false, false
	}
	now := r.clock.time()
	if r.guard.first[p.UID()].IsZero() {
		r.guard.first[p.UID()] = now
	}
	verdict := r.guard.options.Judge(shown, now, r.guard.first[p.UID()], now)
	if records := verdict.Records(now); records != nil {
		r.annotate(p, records)
	}
	return verdict.Message, verdict.Deny, !verdict.Admit
}

// annotate sets annotations of a pod; nil removes an annotation.
func (r *rebalances) annotate(p *pod, annotations map[string]any) {
	object := *p.object
	object.Annotations = map[string]string{}
	maps.Copy(object.Annotations, p.object.Annotations)
	for key, value := range annotations {
		if delete(object.Annotations, key); value != nil {
			object.Annotations[key], _ = value.(string)
		}
	}
	r.scheduler.keepObject(p, &object)
}

// carryOutGuard carries out an action of the guard's core, and returns the response to a request.
func (r *rebalances) carryOutGuard(action execute.Action) execute.Event {
	switch a := action.(type) {
	case execute.PlanDrain:
		return execute.DrainPlanned{Plan: rebalance.PlanDrain(a.State, a.Leaving, rebalance.Options{Profiles: r.profiles})}
	case execute.SetStatus:
		if p := r.pods.placed[a.UID]; p != nil {
			r.annotate(p, map[string]any{evictionguard.StatusAnnotation: a.Status})
		}

	case execute.Mark:
		p := r.pods.placed[a.UID]
		if p == nil {
			return execute.Answered{Ticket: a.Ticket, Outcome: response.Gone}
		}
		r.annotate(p, execute.MarkOf(p.object, a))
		return execute.Answered{Ticket: a.Ticket}
	case execute.Scale:
		return execute.Answered{Ticket: a.Ticket, Outcome: r.scaleFor(a)}
	case execute.DrainProgress:
		if a.Result == execute.Arrived {
			r.guard.next[a.Pod.UID] = a.Message
		}
	}
	return nil
}

// scaleFor changes a scale and the label of its surge, like the request of the same name. A pod
// that leaves because its replacement is ready counts as drained.
func (r *rebalances) scaleFor(a execute.Scale) response.Outcome {
	l := r.workloads.table().OwnedBy(rules.Owner{Namespace: a.Target.Namespace, UID: a.Target.UID})
	if l == nil || l.Replicas == nil {
		return response.Gone
	}
	switch label := l.Object.GetLabels()[rebalance.SurgeLabel]; {
	case label == a.After, a.After == "" && label != a.Before:
		return response.OK
	case a.After != "" && (label != "" || *l.Replicas != a.From):
		return response.Conflict
	}
	to := *l.Replicas
	if to == a.From {
		to = a.To
	}

	object := l.Resized(int(to))
	labels := map[string]string{}
	maps.Copy(labels, object.GetLabels())
	if labels[rebalance.SurgeLabel] = a.After; a.After == "" {
		delete(labels, rebalance.SurgeLabel)
	}
	object.SetLabels(labels)
	departed := len(r.departed)
	r.setReplicas(workload.Of(object), int(to))
	for _, d := range r.departed[departed:] {
		if next := r.pods.named[Name{d.Namespace, r.guard.next[d.object.UID]}]; next != nil {
			d.Cause, d.Detail, d.Fate, d.next = ByDrain, d.Node, Returns, next
			d.Made = Seconds(next.object.CreationTimestamp.Sub(r.clock.start))
		}
	}
	return response.OK
}
