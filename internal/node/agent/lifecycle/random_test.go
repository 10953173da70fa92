package lifecycle

import (
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// TestAnyHistory plays random pods through random events, with agents and runtimes lost in between.
// Whatever happens: no container runs twice, init containers run in order and alone, a phase that
// is for ever stays, and is there when a pod is done, nothing is done over and over at one moment,
// and a pod that is deleted ends and leaves nothing.
func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := randomWorld(rt)
		w.steps(rt)
		for range rapid.IntRange(1, 25).Draw(rt, "events") {
			w.event(rt)
			w.steps(rt)
		}
		w.delete()
		for range 50 {
			w.steps(rt)
			if w.seen.Empty() {
				break
			}
			for i := range w.seen.Containers {
				if c := &w.seen.Containers[i]; w.stopping[c.ID] && c.State == Running {
					w.exit(c, "stopped", nil)
				}
			}
			w.now = w.now.Add(time.Second)
		}
		if !w.seen.Empty() || !w.last.Done {
			rt.Fatalf("deleted, but there is left: %+v", w.seen)
		}
	})
}

func randomWorld(rt *rapid.T) *world {
	w := &world{now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), pod: &v1.Pod{}}
	w.pod.Name, w.pod.Namespace, w.pod.UID = "p", "default", "u"
	w.pod.Spec.RestartPolicy = rapid.SampledFrom([]v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever}).Draw(rt, "policy")
	always := v1.ContainerRestartPolicyAlways
	own := func(c *v1.Container, policies ...v1.ContainerRestartPolicy) {
		if !rapid.Bool().Draw(rt, "a policy of its own") {
			return
		}
		c.RestartPolicy = new(rapid.SampledFrom(policies).Draw(rt, "own policy"))
		if rapid.Bool().Draw(rt, "a rule") {
			c.RestartPolicyRules = []v1.ContainerRestartRule{{Action: v1.ContainerRestartRuleActionRestart, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{
				Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{rapid.Int32Range(0, 1).Draw(rt, "code of the rule")},
			}}}
		}
	}
	for i := range rapid.IntRange(0, 3).Draw(rt, "inits") {
		c := v1.Container{Name: fmt.Sprintf("i%d", i), Image: "x"}
		if rapid.Bool().Draw(rt, "sidecar") {
			c.RestartPolicy = &always
		} else {
			own(&c, v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyNever)
		}
		w.pod.Spec.InitContainers = append(w.pod.Spec.InitContainers, c)
	}
	for i := range rapid.IntRange(1, 2).Draw(rt, "mains") {
		c := v1.Container{Name: fmt.Sprintf("m%d", i), Image: "x"}
		if rapid.Bool().Draw(rt, "hook") {
			c.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{}}
		}
		own(&c, always, v1.ContainerRestartPolicyOnFailure, v1.ContainerRestartPolicyNever)
		w.pod.Spec.Containers = append(w.pod.Spec.Containers, c)
	}
	w.pod.Status.Phase = v1.PodPending
	w.forget()
	return w
}

func (w *world) delete() {
	now := metav1.NewTime(w.now)
	w.pod.DeletionTimestamp = &now
	w.ending = &Ending{By: w.now.Add(5 * time.Second), Gone: true}
}

func (w *world) event(rt *rapid.T) {
	var running []*Container
	for i := range w.seen.Containers {
		if w.seen.Containers[i].State == Running {
			running = append(running, &w.seen.Containers[i])
		}
	}
	kinds := []string{"after", "forget", "lose", "wipe"}
	if len(running) > 0 {
		kinds = append(kinds, "exit", "exit", "exit", "ill", "hook")
	}
	switch rapid.SampledFrom(kinds).Draw(rt, "event") {
	case "after":
		w.now = w.now.Add(time.Duration(rapid.IntRange(1, 400).Draw(rt, "seconds")) * time.Second)
	case "forget":
		w.forget()
	case "lose":
		w.lose(rapid.Bool().Draw(rt, "only the sandbox"))
	case "wipe":
		w.seen = Seen{}
	case "exit":
		c := rapid.SampledFrom(running).Draw(rt, "container")
		w.exit(c, "exit", []string{fmt.Sprint(rapid.IntRange(0, 1).Draw(rt, "code"))})
	case "ill":
		w.probe(rapid.SampledFrom(running).Draw(rt, "container").ID, "ill")
	case "hook":
		w.hooks[rapid.SampledFrom(running).Draw(rt, "container").ID] = HookDone
	}
}

// steps decides and does until nothing is left to do now, and checks after each.
func (w *world) steps(rt *rapid.T) {
	for n := 0; ; n++ {
		if n > 40 {
			rt.Fatalf("it does not come to rest: %v", w.last.Actions)
		}
		before := w.status.Phase
		w.last = Decide(Input{
			Pod: w.pod, Old: w.status, Seen: w.seen, Verdicts: w.verdicts, PreStop: w.hooks, Ending: w.ending, Memory: w.memory,
			HostIPs: []string{"192.0.2.1"}, Now: w.now,
		})
		w.status = w.last.Status
		if Terminal(before) && w.status.Phase != before {
			rt.Fatalf("%s became %s", before, w.status.Phase)
		}
		if w.last.Done && w.ending == nil && !Terminal(w.status.Phase) {
			rt.Fatalf("it is done, and %s", w.status.Phase)
		}
		did := false
		for _, a := range w.last.Actions {
			if a.Kind == StopContainer && w.stopping[a.ID] {
				continue
			}
			if a.Kind == StartContainer && (w.ending != nil || Terminal(w.status.Phase)) {
				rt.Fatalf("%s in a pod that is to end", a)
			}
			w.do(a)
			did = true
			w.check(rt, a)
		}
		if !did {
			return
		}
	}
}

func (w *world) check(rt *rapid.T, did Action) {
	count, inits := map[string]int{}, 0
	for _, c := range w.seen.Containers {
		if c.State != Running {
			continue
		}
		count[c.Name]++
		if i := slices.IndexFunc(w.pod.Spec.InitContainers, func(i v1.Container) bool { return i.Name == c.Name }); i >= 0 && !Sidecar(&w.pod.Spec.InitContainers[i]) {
			inits++
		}
		if count[c.Name] > 1 {
			rt.Fatalf("after %s: %s runs twice", did, c.Name)
		}
	}
	if inits > 1 || inits == 1 && count["m0"]+count["m1"] > 0 {
		rt.Fatalf("after %s: init containers run beside others: %v", did, count)
	}
}
