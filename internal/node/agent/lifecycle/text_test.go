package lifecycle

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// TestCases plays pods on a runtime in memory. A command changes something, then the pod is decided
// about, and what is decided is done, until there is nothing to do; the answer is what was done,
// and the pod as kubectl would show it.
//
//	pod            the pod, as YAML (its spec only)
//	after D        time passes
//	exit C CODE [REASON]    a container ends
//	probe C started|unstarted|ready|unready|ill|stuck      what its probes say
//	fail C REASON [pull]    starting it fails from now on; fail C off
//	delete [grace=D]        the pod is deleted
//	evict REASON [keep]     the node ends it; keep: unless it succeeds
//	hook C         its preStop hook is done
//	stopped C [CODE]        a container that was told to stop has (143)
//	lose [sandbox] the sandbox is gone, and what ran in it, unless only the sandbox is
//	forget         the agent is killed, and another takes up the pod
//	cut C [stuck]  the same, between creating and starting the container, which the runtime
//	               cannot remove if it is stuck
//	wipe           the runtime has forgotten everything
//	conditions     the pod's conditions
//	status         its container statuses
func TestCases(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var w *world
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "pod" {
				w = newWorld(t, d.Input)
				return w.settle()
			}
			return w.command(t, d)
		})
	})
}

type world struct {
	pod      *v1.Pod
	status   v1.PodStatus
	seen     Seen
	verdicts map[string]Verdict
	hooks    map[string]HookState
	stopping map[string]bool
	fails    map[string]Failure
	ending   *Ending
	pending  *PendingResize
	refuses  string // resizes, with this message
	memory   *Memory
	now      time.Time
	made     int
	last     Output
}

func newWorld(t *testing.T, text string) *world {
	w := &world{now: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC), pod: &v1.Pod{}}
	if err := yaml.UnmarshalStrict([]byte(text), &w.pod.Spec); err != nil {
		t.Fatal(err)
	}
	w.pod.Name, w.pod.Namespace, w.pod.UID, w.pod.Generation = "p", "default", "u", 1
	if w.pod.Spec.RestartPolicy == "" {
		w.pod.Spec.RestartPolicy = v1.RestartPolicyAlways
	}
	w.pod.Status.Phase = v1.PodPending
	w.forget()
	return w
}

func (w *world) forget() {
	w.memory, w.hooks, w.stopping = &Memory{}, map[string]HookState{}, map[string]bool{}
	w.verdicts, w.fails = map[string]Verdict{}, map[string]Failure{}
	w.pod.Status = w.status
}

func (w *world) command(t *testing.T, d *datadriven.TestData) string {
	words := make([]string, len(d.CmdArgs))
	for i, a := range d.CmdArgs {
		words[i] = a.Key
	}
	first := func() *Container {
		c := w.seen.newest(words[0])
		if c == nil {
			d.Fatalf(t, "no container %s", words[0])
		}
		return c
	}
	switch d.Cmd {
	case "after":
		w.after(t, words[0])
		return w.settle()
	case "exit", "stopped":
		w.exit(first(), d.Cmd, words[1:])
	case "probe":
		w.probe(first().ID, words[1])
	case "fail":
		w.fail(words)
	case "delete":
		now := metav1.NewTime(w.now)
		w.pod.DeletionTimestamp = &now
		grace := 30 * time.Second
		if d.HasArg("grace") {
			var text string
			d.ScanArgs(t, "grace", &text)
			grace, _ = time.ParseDuration(text)
		}
		w.ending = &Ending{By: w.now.Add(grace), Gone: true}
	case "evict":
		w.ending = &Ending{Phase: v1.PodFailed, Reason: words[0], Message: "because", By: w.now.Add(30 * time.Second), KeepsSuccess: len(words) > 1,
			Condition: &v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet}}
	case "hook":
		w.hooks[first().ID] = HookDone
	case "lose":
		w.lose(len(words) > 0)
	case "wipe":
		w.seen = Seen{}
	case "forget":
		w.forget()
	case "cut":
		c := first()
		w.forget()
		if *c = (Container{ID: c.ID, Name: c.Name, SandboxID: c.SandboxID, Attempt: c.Attempt, Hash: c.Hash, State: Created}); len(words) > 1 {
			w.memory.CannotRemove(c.ID)
		}
	case "image":
		w.pod.Spec.Containers[0].Image = words[0]
	case "allocate":
		w.allocate(d)
	case "pending":
		w.pod.Generation++
		w.pending = &PendingResize{Reason: words[0], Message: "not now", Generation: w.pod.Generation}
	case "refuse":
		w.refuses = d.Input
	case "conditions":
		return conditionsText(w.status)
	case "status":
		return statusText(w.status)
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return w.settle()
}

// allocate other resources to a container: the node has granted a resize.
func (w *world) allocate(d *datadriven.TestData) {
	w.pod.Generation++
	w.pending = nil
	for _, list := range [][]v1.Container{w.pod.Spec.Containers, w.pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name != d.CmdArgs[0].Key {
				continue
			}
			for _, arg := range d.CmdArgs[1:] {
				list[i].Resources.Requests[v1.ResourceName(arg.Key)] = resource.MustParse(arg.Vals[0])
			}
		}
	}
}

func (w *world) after(t *testing.T, text string) {
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(d)
}

func (w *world) exit(c *Container, how string, words []string) {
	c.State, c.FinishedAt, c.Reason = Exited, w.now, "Completed"
	if how == "stopped" {
		c.ExitCode = 143
	}
	if len(words) > 0 {
		code, _ := strconv.Atoi(words[0])
		c.ExitCode = int32(code)
	}
	if c.ExitCode != 0 {
		c.Reason = "Error"
	}
	if len(words) > 1 {
		c.Reason = words[1]
	}
}

func (w *world) probe(id, says string) {
	v := w.verdicts[id]
	switch says {
	case "started", "unstarted":
		v.Started = says == "started"
	case "ready", "unready":
		v.Started, v.Ready = true, says == "ready"
	case "ill":
		v.Started, v.LivenessFailed = true, true
	case "stuck":
		v.StartupFailed = true
	}
	w.verdicts[id] = v
}

func (w *world) fail(words []string) {
	if words[1] == "off" {
		delete(w.fails, words[0])
		return
	}
	f := Failure{Reason: words[1], Message: "it does not work"}
	if len(words) > 2 {
		f.Pull = "Back-off pulling image"
	}
	w.fails[words[0]] = f
}

func (w *world) lose(only bool) {
	for i := range w.seen.Sandboxes {
		w.seen.Sandboxes[i].Ready = false
	}
	for i := range w.seen.Containers {
		if only {
			break
		}
		if c := &w.seen.Containers[i]; c.State == Running {
			c.State, c.ExitCode, c.Reason, c.FinishedAt = Exited, 137, "Error", w.now
		}
	}
}

// settle decides and does until there is nothing to do at this moment.
func (w *world) settle() string {
	var log []string
	for range 20 {
		w.last = Decide(Input{
			Pod: w.pod, Old: w.status, Seen: w.seen, Verdicts: w.verdicts, PreStop: w.hooks, Ending: w.ending, Memory: w.memory,
			HostIPs: []string{"192.0.2.1"}, Now: w.now, Pending: w.pending, ResizeGeneration: w.pod.Generation,
		})
		w.status = w.last.Status
		did := false
		for _, a := range w.last.Actions {
			if a.Kind == StopContainer && w.stopping[a.ID] {
				continue
			}
			log = append(log, "  "+a.String())
			if a.Message != "" {
				log[len(log)-1] += " «" + a.Message + "»"
			}
			w.do(a)
			did = true
		}
		if !did {
			break
		}
	}
	return strings.Join(append(log, w.line()), "\n") + "\n"
}

func (w *world) do(a Action) {
	switch a.Kind {
	case CreateSandbox:
		w.made++
		w.seen.Sandboxes = slices.Insert(w.seen.Sandboxes, 0, Sandbox{
			ID: fmt.Sprintf("s%d", w.made), Attempt: uint32(a.Attempt), Ready: true, CreatedAt: w.now, IPs: []string{"10.0.0.1"},
		})
	case StopSandbox:
		for i := range w.seen.Sandboxes {
			if w.seen.Sandboxes[i].ID == a.ID {
				w.seen.Sandboxes[i].Ready = false
			}
		}
	case RemoveSandbox:
		w.seen.Sandboxes = slices.DeleteFunc(w.seen.Sandboxes, func(s Sandbox) bool { return s.ID == a.ID })
	case RemoveContainer:
		w.seen.Containers = slices.DeleteFunc(w.seen.Containers, func(c Container) bool { return c.ID == a.ID })
	case Resize:
		if w.refuses != "" {
			w.memory.ResizeFailed(w.refuses, w.now)
			return
		}
		for _, r := range a.Resizes {
			w.seen.newest(r.Container.Name).Resources = r.Container.Resources.DeepCopy()
		}
	case PreStop:
		w.hooks[a.ID] = HookRunning
	case StopContainer:
		w.stopping[a.ID] = true
	case StartContainer:
		if f, fails := w.fails[a.Name]; fails {
			f.At, f.Image = w.now, a.Container.Image
			w.memory.Failed(a.Name, f)
			return
		}
		w.memory.Started(a.Container, w.seen.newest(a.Name), w.now)
		w.made++
		w.seen.Containers = slices.Insert(w.seen.Containers, 0, Container{
			ID: fmt.Sprintf("c%d", w.made), SandboxID: a.ID, Name: a.Name, Attempt: a.Attempt, State: Running, Hash: Hash(a.Container),
			CreatedAt: w.now, StartedAt: w.now, Resources: a.Container.Resources.DeepCopy(),
		})
	}
}

// line is the pod as `kubectl get pods` shows it, more or less.
func (w *world) line() string {
	st := w.status
	text := string(st.Phase)
	if st.Reason != "" {
		text += " (" + st.Reason + ")"
	}
	for _, c := range st.Conditions {
		if c.Type == v1.PodResizePending || c.Type == v1.PodResizeInProgress {
			text += fmt.Sprintf(" [%s %s g%d]", c.Type, strings.TrimSpace(c.Reason+" "+c.Message), c.ObservedGeneration)
		}
	}
	for _, cs := range allOf(st) {
		text += " " + cs.Name + "=" + stateText(cs)
	}
	if w.last.Done {
		text += " [done]"
	}
	if !w.last.Wake.IsZero() {
		text += fmt.Sprintf(" wake=+%s", w.last.Wake.Sub(w.now))
	}
	return text
}

func allOf(st v1.PodStatus) []v1.ContainerStatus {
	return slices.Concat(st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses)
}

func stateText(cs v1.ContainerStatus) string {
	text := ""
	switch s := cs.State; {
	case s.Running != nil:
		text = "running"
		if cs.Ready {
			text = "ready"
		}
	case s.Terminated != nil:
		text = fmt.Sprintf("%s(%d)", s.Terminated.Reason, s.Terminated.ExitCode)
	case s.Waiting != nil:
		text = s.Waiting.Reason
	}
	if cs.RestartCount > 0 {
		text += fmt.Sprintf("/%d", cs.RestartCount)
	}
	return text
}

func conditionsText(st v1.PodStatus) string {
	var out strings.Builder
	for _, c := range st.Conditions {
		fmt.Fprintf(&out, "%s=%s", c.Type, c.Status)
		if c.Reason != "" {
			fmt.Fprintf(&out, " %s", c.Reason)
		}
		if c.Message != "" {
			fmt.Fprintf(&out, ": %s", c.Message)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

func statusText(st v1.PodStatus) string {
	var out strings.Builder
	if allocated := st.AllocatedResources; len(allocated) > 0 {
		now := st.Resources
		fmt.Fprintf(&out, "pod cpu=%s/%s memory=%s/%s limits cpu=%s memory=%s\n",
			now.Requests.Cpu(), allocated.Cpu(), now.Requests.Memory(), allocated.Memory(), now.Limits.Cpu(), now.Limits.Memory())
	}
	for _, cs := range allOf(st) {
		fmt.Fprintf(&out, "%s started=%t ready=%t restarts=%d", cs.Name, cs.Started != nil && *cs.Started, cs.Ready, cs.RestartCount)
		if cs.Resources != nil && len(cs.Resources.Requests) > 0 {
			fmt.Fprintf(&out, " cpu=%s/%s", cs.Resources.Requests.Cpu(), cs.AllocatedResources.Cpu())
		}
		if w := cs.State.Waiting; w != nil && w.Message != "" {
			fmt.Fprintf(&out, "\n  waiting: %s", w.Message)
		}
		if l := cs.LastTerminationState.Terminated; l != nil {
			fmt.Fprintf(&out, "\n  last: %s %d", l.Reason, l.ExitCode)
		}
		out.WriteByte('\n')
	}
	return out.String()
}
