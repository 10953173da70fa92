// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictiontest

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

const (
	// outdated is the maximum time by which a delete may be sent after its reason has ended,
	// because the attempt's reads are not older unless responses are slow.
	outdated = time.Second
	// soon is the time to delete a due pod without failures.
	soon = 3 * time.Second
	// recovers is the time to delete all due pods once faults end: the longest back-off and a few
	// attempts.
	recovers = 25 * time.Second
)

// Truth computes the real deadline of each pod, and checks the controller against it: no delete may
// be without a reason, too early, or later than faults excuse. Apart from the deadline rule itself,
// it does not share code with the controller.
type Truth struct {
	world *World
	// EarlyBy is the amount by which evictions may be early, because the controller's wall clock is
	// ahead.
	EarlyBy time.Duration

	Wrong []string // violated expectations
}

// trueDeadline returns the pod's real deadline. With atTheLatest, it is the latest deadline that a
// controller with missed events may compute; then a taint without a time may count from the last
// write of the list.
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

// justifyPods records the due pods before a node's taints change.
func (t *Truth) justifyPods(node string) {
	for _, p := range t.world.pods {
		if p.Node == node {
			t.justifyPod(p)
		}
	}
}

// justifyAll is justifyPods for a change of devices.
func (t *Truth) justifyAll() {
	for _, p := range t.world.pods {
		t.justifyPod(p)
	}
}

// justifyPod records that the pod was due until now, if it was. It is called before every change
// that may affect this: a delete sent shortly after such a change was justified at the time of its
// attempt's reads.
func (t *Truth) justifyPod(p *Pod) {
	if t.trueDeadline(p, false).IsDue(t.world.Now.Add(t.EarlyBy)) {
		p.justified = t.world.Now
	}
}

// checkSent checks a delete when it is sent: the pod must be due then, or have been shortly before.
func (t *Truth) checkSent(name types.NamespacedName, uid types.UID) {
	p := t.world.pods[name]
	if p == nil || uid != "" && p.UID != uid || p.Terminating {
		return // it can do no harm
	}
	t.justifyPod(p)
	// The allowed age of the attempt's reads. With slow responses an attempt reads again, and the
	// allowed age doubles each time up to 64 s.
	window := outdated
	if t.world.Requests.Faults.Slow > outdated {
		window = 64 * outdated
	}
	if p.justified.IsZero() || t.world.Now.Sub(p.justified) > window {
		t.reportWrong("delete of %s sent without a reason: %v", p.UID, t.trueDeadline(p, false))
	}
}

// checkCarriedOut checks a delete when it is carried out: it must not be late, and without a UID,
// it must not hit an unintended pod.
func (t *Truth) checkCarriedOut(p *Pod, asked types.UID) {
	if asked == "" {
		t.justifyPod(p)
		if t.world.Now.Sub(p.justified) > t.world.Requests.Faults.Slow+outdated {
			t.reportWrong("delete without UID took %s, which had no reason to go: %v", p.UID, t.trueDeadline(p, false))
		}
	}
	if late := t.latenessOf(p); late > 0 {
		t.reportWrong("%s went %v late: %v", p.UID, late, t.trueDeadline(p, true))
	}
}

// latenessOf returns the delay, beyond that excused by faults, of a pod that is deleted now or
// still exists; 0 or less means on time. Without faults a pod must be deleted within soon of its
// deadline. A deadline during faults, or shortly after them, is excused until recovers after their
// end.
func (t *Truth) latenessOf(p *Pod) time.Duration {
	due := t.trueDeadline(p, true)
	if due.Stays() {
		return 0
	}
	// First the limit without failures, then the extension for faults.
	limit := due.At.Add(soon)
	faults := t.world.Requests.Faults.Until
	if excuse := faults.Add(recovers); excuse.After(limit) && due.At.Before(faults.Add(recovers-soon)) {
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
	t.world.traceLine("WRONG %s", what)
	t.Wrong = append(t.Wrong, what)
}
