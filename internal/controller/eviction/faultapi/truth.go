package faultapi

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

const (
	// outdated is how long ago the reason for a delete may have ended when it is sent: what the
	// attempt read is no older, unless answers are slow.
	outdated = time.Second
	// soon is how soon a due pod is gone if nothing fails.
	soon = 3 * time.Second
	// recovers is how soon all due pods are gone once faults end: the longest back-off and a few
	// attempts.
	recovers = 25 * time.Second
)

// trueDeadline is when the pod really has to go. With atTheLatest it is the latest time that a
// controller which missed something may arrive at.
func (w *World) trueDeadline(p *Pod, atTheLatest bool) eviction.Due {
	byDevice := w.dueByDevice(p)
	if atTheLatest && !byDevice.Stays() {
		// Times in objects have whole seconds, and a device may be given that was tainted before.
		byDevice.At = latestOf(byDevice.At.Add(time.Second), w.given[p.Name])
	}
	n := w.nodes[p.Node]
	if n == nil {
		return byDevice
	}
	var held []eviction.Held
	for _, t := range n.Taints {
		since := n.since[t.ToString()].Truncate(time.Second)
		if doubtful := n.doubtful[t.ToString()]; atTheLatest && doubtful.After(since) {
			since = doubtful
		}
		held = append(held, eviction.Held{Taint: t, Since: since})
	}
	byNode := eviction.Deadline(p.Tolerations, p.Bound, held)
	if byNode.Stays() || !byDevice.Stays() && byDevice.At.Before(byNode.At) {
		return byDevice
	}
	return byNode
}

// justifyPods records, before a node's taints change, which pods had to go.
func (w *World) justifyPods(node string) {
	for _, p := range w.pods {
		if p.Node == node {
			w.justifyPod(p)
		}
	}
}

// justifyAll is justify for a change of devices.
func (w *World) justifyAll() {
	for _, p := range w.pods {
		w.justifyPod(p)
	}
}

func (w *World) justifyPod(p *Pod) {
	if w.trueDeadline(p, false).By(w.Now.Add(w.EarlyBy)) {
		p.justified = w.Now
	}
}

// checkSent checks a delete when it is sent.
func (w *World) checkSent(name types.NamespacedName, uid types.UID) {
	p := w.pods[name]
	if p == nil || uid != "" && p.UID != uid || p.Terminating {
		return // it can do no harm
	}
	w.justifyPod(p)
	window := outdated
	if w.Faults.Slow > outdated {
		window = 64 * outdated
	}
	if p.justified.IsZero() || w.Now.Sub(p.justified) > window {
		w.reportWrong("delete of %s sent without a reason: %v", p.UID, w.trueDeadline(p, false))
	}
}

// checkCarriedOut checks a delete when it is carried out.
func (w *World) checkCarriedOut(p *Pod, asked types.UID) {
	if asked == "" {
		w.justifyPod(p)
		if w.Now.Sub(p.justified) > w.Faults.Slow+outdated {
			w.reportWrong("delete without UID took %s, which had no reason to go: %v", p.UID, w.trueDeadline(p, false))
		}
	}
	if late := w.latenessOf(p); late > 0 {
		w.reportWrong("%s went %v late: %v", p.UID, late, w.trueDeadline(p, true))
	}
}

// latenessOf returns by how much a pod that goes now, or is still there, is later than faults
// excuse.
func (w *World) latenessOf(p *Pod) time.Duration {
	due := w.trueDeadline(p, true)
	if due.Stays() {
		return 0
	}
	limit := due.At.Add(soon)
	if excuse := w.Faults.Until.Add(recovers); excuse.After(limit) && due.At.Before(w.Faults.Until.Add(recovers-soon)) {
		limit = excuse
	}
	return w.Now.Sub(limit)
}

// Check checks the state at the end.
func (w *World) Check() []string {
	for _, p := range sortedValues(w.pods, byName) {
		if !p.Terminating && w.latenessOf(p) > 0 {
			w.reportWrong("%s is still there: %v", p.UID, w.trueDeadline(p, true))
		}
	}
	return w.Wrong
}
