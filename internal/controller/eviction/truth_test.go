// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

const (
	// outdated is the maximum time between the end of a delete's reason and the delete. Unless
	// responses are slow, the reads of an attempt are not older than this.
	outdated = time.Second
	// soon limits the time until a due pod is deleted if there are no failures.
	soon = 3 * time.Second
	// recovers limits the time until all due pods are deleted after the end of the faults. It
	// covers the longest back-off and a few attempts.
	recovers = 25 * time.Second
	// confirms is recovers after faults that make a delete look accepted. It covers the time until
	// the watch must have confirmed the delete.
	confirms = 45 * time.Second
)

// Truth computes the real deadline of each pod, and checks the controller against it: no delete may
// be sent without a reason or too early, or carried out later than faults excuse. Apart from the
// deadline rule itself, it does not share code with the controller.
type Truth struct {
	world *World
	// EarlyBy is the amount by which evictions may be early, because the controller's wall clock is
	// ahead.
	EarlyBy time.Duration

	Wrong []string // violated expectations
}

// trueDeadline returns the pod's real deadline. If atTheLatest is set, it returns the latest
// deadline that a controller may compute after missed events, when a taint without a time may count
// from the last write of the list.
func (t *Truth) trueDeadline(p *Pod, atTheLatest bool) eviction.Due {
	byDevice := t.world.Devices.dueByDevice(p)
	if atTheLatest && !byDevice.Stays() {
		// Times in objects have whole seconds, and a device may be allocated after it was tainted.
		byDevice.At = latestOf(byDevice.At.Add(time.Second), t.world.Devices.given[p.Name])
	}
	n := t.world.nodes[p.Node]
	if n == nil {
		return byDevice
	}
	var held []eviction.Held
	for _, taint := range n.Taints {
		since := n.since[taint.ToString()].Truncate(time.Second)
		if doubtful := n.doubtful[taint.ToString()]; atTheLatest && doubtful.After(since) {
			since = doubtful
		}
		held = append(held, eviction.Held{Taint: taint, Since: since})
	}
	byNode := eviction.Deadline(p.Tolerations, p.Bound, held)
	if byNode.Stays() || !byDevice.Stays() && byDevice.At.Before(byNode.At) {
		return byDevice
	}
	return byNode
}

// justifyPods calls justifyPod for the pods of a node. It is called before the node's taints
// change.
func (t *Truth) justifyPods(node string) {
	for _, p := range t.world.pods {
		if p.Node == node {
			t.justifyPod(p)
		}
	}
}

// justifyAll calls justifyPod for all pods. It is called before devices change.
func (t *Truth) justifyAll() {
	for _, p := range t.world.pods {
		t.justifyPod(p)
	}
}

// justifyPod records the current time if the pod is due. It is called before every change that may
// affect the deadline: a delete sent shortly after the change is based on reads from before it, and
// was justified then.
func (t *Truth) justifyPod(p *Pod) {
	if t.trueDeadline(p, false).IsDue(t.world.Now.Add(t.EarlyBy)) {
		p.justified = t.world.Now
	}
}

// checkSent checks a delete when it is sent: the pod must be due, or must have been due shortly
// before.
func (t *Truth) checkSent(name types.NamespacedName, uid types.UID) {
	p := t.world.pods[name]
	if p == nil || uid != "" && p.UID != uid || p.Terminating {
		return // the delete has no effect
	}
	t.justifyPod(p)
	// window is the allowed age of the attempt's reads. If responses are slow, an attempt repeats
	// its reads, and the allowed age doubles each time, up to 64 s.
	window := outdated
	if t.world.Requests.slowest() > outdated {
		window = 64 * outdated
	}
	if p.justified.IsZero() || t.world.Now.Sub(p.justified) > window {
		t.reportWrong("delete of %s sent without a reason: %v", p.UID, t.trueDeadline(p, false))
	}
}

// checkCarriedOut checks a delete when it is carried out: it must not be late, and if it has no
// UID, it must not delete a pod that is not due.
func (t *Truth) checkCarriedOut(p *Pod, asked types.UID) {
	if asked == "" {
		t.justifyPod(p)
		if t.world.Now.Sub(p.justified) > t.world.Requests.slowest()+outdated {
			t.reportWrong("delete without UID took %s, which had no reason to go: %v", p.UID, t.trueDeadline(p, false))
		}
	}
	if late := t.latenessOf(p); late > 0 {
		t.reportWrong("%s went %v late: %v", p.UID, late, t.trueDeadline(p, true))
	}
}

// latenessOf returns how late a pod is if it is deleted now, not counting the time excused by
// faults. Zero or less means on time. Without faults a pod must be deleted within soon of its
// deadline. A deadline during faults, or shortly after them, is excused until recovers after their
// end.
func (t *Truth) latenessOf(p *Pod) time.Duration {
	due := t.trueDeadline(p, true)
	if due.Stays() {
		return 0
	}
	// This is the limit without failures, which faults extend.
	limit := due.At.Add(soon)
	faults, excused := t.world.Requests.Until, t.world.Requests.recovers()
	if excuse := faults.Add(excused); excuse.After(limit) && due.At.Before(faults.Add(excused-soon)) {
		limit = excuse
	}
	return t.world.Now.Sub(limit)
}

// Check checks the state at the end, and returns all errors.
func (t *Truth) Check() []string {
	for _, p := range sortedValues(t.world.pods, byName) {
		if !p.Terminating && t.latenessOf(p) > 0 {
			t.reportWrong("%s is still there: %v", p.UID, t.trueDeadline(p, true))
		}
	}
	return t.Wrong
}

// reportWrong records an error with the time since the beginning.
func (t *Truth) reportWrong(format string, args ...any) {
	what := fmt.Sprintf("%s: ", t.world.Now.Sub(Begin)) + fmt.Sprintf(format, args...)
	t.world.Tracef("WRONG %s", what)
	t.Wrong = append(t.Wrong, what)
}
