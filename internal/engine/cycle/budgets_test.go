// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
)

// budgets holds the world's disruption budgets. It checks that preemption removes no more pods than
// a budget allows in the state shown to the core.
type budgets struct {
	all   map[string]*policyv1.PodDisruptionBudget
	least map[string]int32 // minimum number of remaining pods

	keep     bool                                     // the profile requires that budgets are respected
	shown    map[string]*policyv1.PodDisruptionBudget // budgets as shown to the core
	chosen   map[types.UID]bool                       // victims not counted by the shown budgets
	binds    map[Ticket]types.UID
	binding  map[types.UID]bool // pods with a Bind in progress
	removals map[Ticket]types.UID
	leaving  map[types.UID]bool // chosen victims shown to the core as terminating
	bound    map[types.UID]bool // victims chosen during their binding, which no budget counts yet
}

func newBudgets() budgets {
	b := budgets{all: map[string]*policyv1.PodDisruptionBudget{}, least: map[string]int32{}}
	b.forget()
	return b
}

// forget resets the shown state for a starting core.
func (b *budgets) forget() {
	b.shown, b.chosen = map[string]*policyv1.PodDisruptionBudget{}, map[types.UID]bool{}
	b.binds, b.binding = map[Ticket]types.UID{}, map[types.UID]bool{}
	b.removals, b.leaving, b.bound = map[Ticket]types.UID{}, map[types.UID]bool{}, map[types.UID]bool{}
}

// told tracks the state shown to the core.
func (b *budgets) told(e Event) {
	leaves := func(uid types.UID) {
		if b.chosen[uid] {
			b.leaving[uid] = true
		}
	}
	switch e := e.(type) {
	case Seen:
		switch o := e.Object.(type) {
		case *v1.Pod:
			if o.DeletionTimestamp != nil {
				leaves(o.UID)
			}
		case *policyv1.PodDisruptionBudget:
			b.shown[o.Name] = o
			for uid := range b.leaving {
				delete(b.chosen, uid)
				delete(b.leaving, uid)
			}
		}
	case Gone:
		leaves(e.Object.GetUID())
	case Answered:
		delete(b.binding, b.binds[e.Ticket])
		if e.Outcome.Fault != nil {
			delete(b.chosen, b.removals[e.Ticket])
		}
	}
}

// checkBudgets checks every removal.
func (w *world) checkBudgets(because Event, a Action) {
	b := &w.budgets
	switch a := a.(type) {
	case Bind:
		b.binds[a.Ticket], b.binding[a.Attempt.Pod.UID] = a.Attempt.Pod.UID, true
	case Cancel:
		if uid, ok := b.binds[a.Ticket]; ok && strings.HasPrefix(a.Reason, "preempted") {
			b.bound[uid] = true
		}
	}
	r, _ := a.(Remove)
	victim := w.pods[r.Victim.UID]
	if victim == nil {
		return
	}
	b.chosen[victim.UID], b.removals[r.Ticket] = true, victim.UID
	if answer, ok := because.(Answered); ok && b.binds[answer.Ticket] == victim.UID || b.binding[victim.UID] {
		b.bound[victim.UID] = true
	}
	if b.bound[victim.UID] || !b.keep {
		return
	}
	for _, name := range sorted(b.shown) {
		app := b.shown[name].Spec.Selector.MatchLabels["app"]
		if victim.Labels["app"] != app {
			continue
		}
		taken := int32(0)
		for uid := range b.chosen {
			if p := w.pods[uid]; p != nil && p.Spec.NodeName != "" && p.Labels["app"] == app {
				taken++
			}
		}
		if allowed := b.shown[name].Status.DisruptionsAllowed; taken > allowed {
			w.breaks("%d pods leave that budget %s stands for, which allows %d", taken, name, allowed)
		}
	}
}

// addBudget adds a budget that keeps at least the given number of pods of an app.
func (w *world) addBudget(app string, least int32) {
	w.budgets.least[app] = least
	w.putBudget(&policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: app, UID: types.UID("budget-" + app)},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
	})
}

func (w *world) putBudget(b *policyv1.PodDisruptionBudget) {
	w.version++
	b.ResourceVersion = fmt.Sprint(w.version)
	w.budgets.all[b.Name] = b
	w.watches[DisruptionBudgets] = append(w.watches[DisruptionBudgets], Seen{DisruptionBudgets, b})
}

// countBudgets simulates the disruption controller.
func (w *world) countBudgets() {
	for _, app := range sorted(w.budgets.all) {
		allowed := -w.budgets.least[app]
		for _, p := range w.pods {
			if p.Spec.NodeName != "" && p.DeletionTimestamp == nil && p.Labels["app"] == app {
				allowed++
			}
		}
		if b := w.budgets.all[app]; b.Status.DisruptionsAllowed != max(0, allowed) {
			b = b.DeepCopy()
			b.Status.DisruptionsAllowed = max(0, allowed)
			w.putBudget(b)
		}
	}
}
