package faultapi

import (
	"fmt"
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

// Truth knows when each pod really has to go, and holds the controller to it: no delete without a
// reason, none too early, none later than faults excuse. It shares no code with the controller but
// the rule of the deadline itself.
type Truth struct {
	world *World
	// EarlyBy is how early a test accepts evictions, because the controller's wall clock is ahead.
	EarlyBy time.Duration

	Wrong []string // what should not have happened
}

// trueDeadline is when the pod really has to go. With atTheLatest it is the latest time that a
// controller which missed something may arrive at: a taint without a time of its own may then count
// from when the list was last written.
func (t *Truth) trueDeadline(p *Pod, atTheLatest bool) eviction.Due {
	byDevice := t.world.Devices.dueByDevice(p)
	if atTheLatest && !byDevice.Stays() {
		// Times in objects have whole seconds, and a device may be given that was tainted before.
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

// justifyPods records, before a node's taints change, which pods had to go.
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

// justifyPod records that the pod had to go until now, if that is so. It is called before
// everything that may change that: a delete that was sent shortly after such a change was right
// when its attempt read.
func (t *Truth) justifyPod(p *Pod) {
	if t.trueDeadline(p, false).By(t.world.Now.Add(t.EarlyBy)) {
		p.justified = t.world.Now
	}
}

// checkSent checks a delete when it is sent: the pod must have had to go at that moment, or shortly
// before.
func (t *Truth) checkSent(name types.NamespacedName, uid types.UID) {
	p := t.world.pods[name]
	if p == nil || uid != "" && p.UID != uid || p.Terminating {
		return // it can do no harm
	}
	t.justifyPod(p)
	// How old what the attempt has read may be. Where answers are slow, an attempt reads again, and
	// what is fresh enough doubles each time up to 64 s.
	window := outdated
	if t.world.Requests.Faults.Slow > outdated {
		window = 64 * outdated
	}
	if p.justified.IsZero() || t.world.Now.Sub(p.justified) > window {
		t.reportWrong("delete of %s sent without a reason: %v", p.UID, t.trueDeadline(p, false))
	}
}

// checkCarriedOut checks a delete when it is carried out: whether it is too late, and if it named
// no UID, whether it takes a pod that nobody meant.
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

// latenessOf returns by how much a pod that goes now, or is still there, is later than faults
// excuse; 0 or less if it is not. Without faults a pod has to go within soon of its deadline. A
// deadline during faults, or shortly after them, is excused until recovers after their end.
func (t *Truth) latenessOf(p *Pod) time.Duration {
	due := t.trueDeadline(p, true)
	if due.Stays() {
		return 0
	}
	// As if nothing ever failed; then what faults excuse.
	limit := due.At.Add(soon)
	faults := t.world.Requests.Faults.Until
	if excuse := faults.Add(recovers); excuse.After(limit) && due.At.Before(faults.Add(recovers-soon)) {
		limit = excuse
	}
	return t.world.Now.Sub(limit)
}

// Check checks the state at the end, and returns everything that went wrong.
func (t *Truth) Check() []string {
	for _, p := range sortedValues(t.world.pods, byName) {
		if !p.Terminating && t.latenessOf(p) > 0 {
			t.reportWrong("%s is still there: %v", p.UID, t.trueDeadline(p, true))
		}
	}
	return t.Wrong
}

// reportWrong records what should not have happened, with the time since the beginning.
func (t *Truth) reportWrong(format string, args ...any) {
	what := fmt.Sprintf("%s: ", t.world.Now.Sub(Begin)) + fmt.Sprintf(format, args...)
	t.world.traceLine("WRONG %s", what)
	t.Wrong = append(t.Wrong, what)
}
