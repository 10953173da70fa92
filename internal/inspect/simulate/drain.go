// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/disruption"
)

// Drain empties nodes like kubectl drain; its fields are kubectl's flags, with kubectl's defaults.
// A zero or missing Timeout means no limit: a drain without progress is then reported as blocked
// after some minutes, where kubectl would wait forever.
type Drain struct {
	Nodes
	IgnoreDaemonSets   bool             `json:"ignoreDaemonsets,omitempty"`
	DeleteEmptyDirData bool             `json:"deleteEmptydirData,omitempty"`
	Force              bool             `json:"force,omitempty"`
	DisableEviction    bool             `json:"disableEviction,omitempty"`
	Undisturbed        bool             `json:"-"` // see disruption.DrainRules
	PodSelector        string           `json:"podSelector,omitempty"`
	Timeout            *metav1.Duration `json:"timeout,omitempty"`
	// GuardEvictions runs Berth's eviction guard with its defaults, from this drain on.
	GuardEvictions *bool `json:"guardEvictions,omitempty"`
}

// Drained is the outcome of a drain. It fills up as time passes and is complete when all nodes are
// drained or given up. A pod is in at most one of the lists; a pod evicted without delay is in
// none.
type Drained struct {
	Nodes []string
	// Refused holds the pods because of which kubectl refuses to drain their node, each with the
	// flag that would override the refusal.
	Refused []Blocked
	// Ignored holds the pods that the drain ignores; they stay on the node.
	Ignored []Blocked
	// Terminating holds the pods already being deleted.
	Terminating []Blocked
	// Blocked holds the pods that disruption budgets kept on their node to the end, and Waited
	// holds the pods evicted after a delay by a budget.
	Blocked, Waited []Blocked
}

// Blocked is a pod that stays on its node, or stayed for some time, and the reason.
type Blocked struct {
	Namespace string  `json:"namespace"`
	Name      string  `json:"name"`
	Node      string  `json:"node"`
	Budget    string  `json:"budget,omitempty"`
	Message   string  `json:"message"`
	For       Seconds `json:"for,omitempty"` // time the pod stayed before it was evicted
}

const (
	// drainRetry is kubectl's interval between retries of an eviction refused by a budget.
	drainRetry = 5 * time.Second
	// drainPatience is the time without progress after which a drain without a timeout is reported
	// as blocked. Without this limit, a world might never become quiet.
	drainPatience = 5 * time.Minute
)

// draining is a drain in progress: like kubectl, one node after the other. Each try is a call on
// the agenda, so other events happen in between: for example, a replacement becomes ready, and a
// budget then allows the next eviction.
//
//	all nodes: cordon
//	each node: classify its pods -> refused: leave the node unchanged
//	                             -> evict what budgets allow, every 5 s, until none remains
type draining struct {
	*Drain
	*controllers
	guard *rebalances

	done  *Drained
	nodes []string
	// left, ended, failed and began refer to the current node, which is the first of nodes.
	left     []*pod // pods still to be evicted
	ended    []*pod // ended pods, to be deleted
	failed   int    // number of pods with a permanently refused eviction
	rules    disruption.DrainRules
	began    time.Duration          // start of the node's drain; the timeout applies to each node separately
	progress time.Duration          // time of the latest eviction
	blocked  map[*pod]Blocked       // pods held by a budget at the latest try
	asked    map[*pod]time.Duration // time of the first refusal by a budget
}

// drainNodes begins a drain. Invalid flags are errors; all other obstacles are in the result.
func (o *operations) drainNodes(op *Drain) (*Done, error) {
	names, err := op.resolveNames(o.nodes)
	if err != nil {
		return nil, err
	}

	selector, err := labels.Parse(op.PodSelector)
	if err != nil {
		return nil, fmt.Errorf("pod selector %q: %w", op.PodSelector, err)
	}

	d := &draining{
		Drain: op, controllers: o.controllers, guard: &o.rebalances, done: &Drained{Nodes: names}, nodes: names,
		rules: disruption.DrainRules{
			Pods: selector, IgnoreDaemonSets: op.IgnoreDaemonSets, DeleteEmptyDirData: op.DeleteEmptyDirData, Force: op.Force,
			Undisturbed: op.Undisturbed,
		},
		blocked: map[*pod]Blocked{}, asked: map[*pod]time.Duration{},
	}

	// kubectl cordons all nodes before it evicts from the first: no pod moves to a node about to be
	// drained.
	for _, name := range names {
		o.nodes.setCordon(name, true)
	}
	if op.GuardEvictions != nil && *op.GuardEvictions {
		o.rebalances.beginGuard()
	}
	d.drainNext()
	return &Done{Drain: d.done}, nil
}

// drainNext drains the remaining nodes in order, until it must wait. If kubectl refuses a node
// because of one pod, it evicts none of that node's pods.
func (d *draining) drainNext() {
	for len(d.nodes) > 0 {
		d.left, d.ended, d.failed, d.began, d.progress = nil, nil, 0, d.clock.now, d.clock.now
		refused := len(d.done.Refused)
		for _, p := range slices.Concat(d.pods.podsOn(d.nodes[0]), d.pods.endedOn(d.nodes[0])) {
			d.classifyPod(p)
		}

		// Ended pods need neither eviction nor budget: they are deleted immediately.
		if len(d.done.Refused) == refused {
			for _, p := range d.ended {
				d.controllers.deleteEnded(p)
			}
		}

		if len(d.done.Refused) > refused {
			d.report.addEvent(Event{Kind: "DrainRefused", Node: d.nodes[0], Message: d.done.Refused[refused].Message})
		} else if len(d.left) > 0 {
			d.tryEvictions()
			return
		} else {
			d.report.addEvent(Event{Kind: "NodeDrained", Node: d.nodes[0]})
		}

		d.nodes = d.nodes[1:]
	}
}

// classifyPod decides by kubectl's rules whether to evict the pod.
func (d *draining) classifyPod(p *pod) {
	say := func(message string) Blocked {
		return Blocked{Namespace: p.object.Namespace, Name: p.object.Name, Node: d.nodes[0], Message: message}
	}
	switch ruling := d.rules.Judge(p.object, d.clock.time(), d.controllers.workloads.daemonSet); {
	case ruling.Fault != "":
		d.done.Refused = append(d.done.Refused, say(ruling.Fault))
	case ruling.Ignored != "":
		d.done.Ignored = append(d.done.Ignored, say(ruling.Ignored))
	case ruling.Waited: // the drain neither causes nor hastens the deletion
		d.done.Terminating = append(d.done.Terminating, say("its deletion is under way"))
	case ruling.Leaves && rules.IsTerminal(p.object):
		d.ended = append(d.ended, p)
	case ruling.Leaves:
		d.left = append(d.left, p)
	}
}

// tryEvictions evicts every pod allowed now and schedules a retry for the rest. kubectl retries
// each pod in a separate goroutine; here all pods of the node are retried together.
func (d *draining) tryEvictions() {
	var left []*pod
	for _, p := range d.left {
		if p.gone || p.Terminating { // deleted by another component meanwhile
			d.progress = d.clock.now
			continue
		}
		if budget, message, forGood := d.askEviction(p); message != "" {
			if _, known := d.asked[p]; !known {
				d.asked[p] = d.clock.now
				d.report.addEvent(Event{Kind: "DrainBlocked", Namespace: p.Namespace(), Name: p.Name(), Node: p.NodeName, Message: message})
			}
			d.blocked[p] = Blocked{Namespace: p.Namespace(), Name: p.Name(), Node: p.NodeName, Budget: budget, Message: message}
			if forGood {
				d.failed++
				d.done.Blocked = append(d.done.Blocked, d.blocked[p])
			} else {
				left = append(left, p)
			}
			continue
		}
		d.progress = d.clock.now
		// A pod previously held by a budget can now leave: list it as waited.
		if since, waited := d.asked[p]; waited {
			b := d.blocked[p]
			b.For = Seconds(d.clock.now - since)
			d.done.Waited = append(d.done.Waited, b)
			delete(d.blocked, p)
		}
		d.controllers.departPod(p, ByDrain, d.nodes[0])
	}
	d.left = left
	// A timeout bounds the drain if set; otherwise, a period without progress ends it.
	limited := d.Timeout != nil && d.Timeout.Duration > 0
	patient := d.clock.now-d.progress < drainPatience
	if limited {
		patient = d.clock.now-d.began < d.Timeout.Duration
	}
	switch {
	case len(left) == 0:
		if d.failed == 0 {
			d.report.addEvent(Event{Kind: "NodeDrained", Node: d.nodes[0]})
		} else { // kubectl reports the refusal and continues with the next node
			d.report.addEvent(Event{Kind: "DrainGaveUp", Node: d.nodes[0], Message: answer.Count(d.failed, "pod") + " cannot be evicted"})
		}
		d.nodes = d.nodes[1:]
		d.drainNext()
	case patient:
		d.clock.callAt(d.clock.now+drainRetry, func() { d.tryEvictions() })
	default:
		for _, p := range left {
			d.done.Blocked = append(d.done.Blocked, d.blocked[p])
		}
		d.report.addEvent(Event{Kind: "DrainGaveUp", Node: d.nodes[0],
			Message: answer.Count(len(left), "pod") + " held back by disruption budgets"})
		if limited { // kubectl continues with the next node; without a timeout it would wait here forever
			d.nodes = d.nodes[1:]
			d.drainNext()
		}
	}
}

// askEviction requests an eviction from the Eviction API. message is empty if the eviction is
// allowed; forGood reports a refusal kubectl does not retry. With DisableEviction, kubectl deletes
// pods without consulting budgets.
func (d *draining) askEviction(p *pod) (budget, message string, forGood bool) {
	if d.DisableEviction {
		return "", "", false
	}
	if d.guard.guard != nil {
		if message, forGood, held := d.guard.holdEviction(p); held {
			return "", message, forGood
		}
	}
	switch verdict := d.budgets.mayEvict(p); verdict.Answer {
	case disruption.Never:
		return verdict.Budget.Name, verdict.Message, true
	case disruption.Later:
		return verdict.Budget.Name, "Cannot evict pod as it would violate the pod's disruption budget: " + verdict.Message, false
	}
	return "", "", false
}
