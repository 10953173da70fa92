package probe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/utils/exec"
	"sigs.k8s.io/yaml"
)

// runtime is a container runtime in which each command gives what the test has set for it.
type runtime struct {
	mu      sync.Mutex
	answers map[string]error // by command
	output  map[string]string
	asked   []string // container and command
	events  []string
	reports int
}

func (r *runtime) ExecSync(_ context.Context, id string, command []string, _ time.Duration) ([]byte, []byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	line := strings.Join(command, " ")
	r.asked = append(r.asked, id+" "+line)
	return []byte(r.output[line]), nil, r.answers[line]
}

func (r *runtime) set(command string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers[command] = err
}

func (r *runtime) say(command, output string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.output[command] = output
}

func (r *runtime) count(line string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, asked := range r.asked {
		if asked == line {
			n++
		}
	}
	return n
}

func (r *runtime) options() Options {
	return Options{
		Exec: r,
		Event: func(_ *v1.Pod, container, eventType, reason, message string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.events = append(r.events, fmt.Sprintf("%s %s %s: %s", container, eventType, reason, message))
		},
		Report: func(types.UID) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.reports++
		},
	}
}

func newRuntime() *runtime { return &runtime{answers: map[string]error{}, output: map[string]string{}} }

func exitCode(code int) error { return exec.CodeExitError{Err: errors.New("exit"), Code: code} }

func parsePod(t *testing.T, text string) *v1.Pod {
	t.Helper()
	pod := &v1.Pod{}
	if err := yaml.UnmarshalStrict([]byte(text), pod); err != nil {
		t.Fatal(err)
	}
	pod.UID, pod.Name, pod.Namespace = "uid", "web", "shop"
	return pod
}

// running is a status in which the container runs since a moment.
func running(container, id string, since time.Time) *v1.PodStatus {
	return &v1.PodStatus{PodIP: "127.0.0.1", ContainerStatuses: []v1.ContainerStatus{{
		Name: container, ContainerID: "containerd://" + id,
		State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(since)}},
	}}}
}

const allThree = `
spec:
  containers:
  - name: main
    env: [{name: WHAT, value: it}, {name: LATER, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    startupProbe: {exec: {command: [started]}, periodSeconds: 10, failureThreshold: 30}
    readinessProbe: {exec: {command: [ready, $(WHAT), $(NONE)]}, periodSeconds: 5}
    livenessProbe: {exec: {command: [alive]}, periodSeconds: 10, failureThreshold: 2}
`

func TestOtherProbesWaitForTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuntime()
		ctx, cancel := context.WithCancel(context.Background())
		p := New(ctx, r.options())
		pod := parsePod(t, allThree)
		c := &pod.Spec.Containers[0]
		r.set("started", exitCode(1))
		p.Sync(pod, running("main", "c1", time.Now()))
		v := func() Verdicts { return p.Verdicts("containerd://c1") }
		if Started(c, true, v()) || Ready(c, true, v()) {
			t.Error("started before any probe")
		}
		time.Sleep(25 * time.Second)
		synctest.Wait()
		if r.count("c1 started") != 3 || r.count("c1 alive") != 0 || r.count("c1 ready it $(NONE)") != 0 {
			t.Errorf("asked: %v", r.asked)
		}
		r.set("started", nil)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		// The others begin at once; nobody waits for another period.
		if r.count("c1 started") != 4 || r.count("c1 alive") != 1 || r.count("c1 ready it $(NONE)") != 1 {
			t.Errorf("asked: %v", r.asked)
		}
		if !Started(c, true, v()) || !Ready(c, true, v()) || r.reports == 0 {
			t.Errorf("verdicts %+v, %d reports", v(), r.reports)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if r.count("c1 started") != 4 {
			t.Errorf("it was asked on whether it has started: %v", r.asked)
		}
		cancel()
		synctest.Wait()
	})
}

func TestDeadContainerIsNamedOnceAndItsSuccessorBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuntime()
		ctx, cancel := context.WithCancel(context.Background())
		p := New(ctx, r.options())
		pod := parsePod(t, allThree)
		c := &pod.Spec.Containers[0]
		p.Sync(pod, running("main", "c1", time.Now()))
		time.Sleep(time.Second)
		r.set("alive", exitCode(137))
		r.say("alive", "no pulse")
		time.Sleep(time.Minute)
		synctest.Wait()
		kind, dead := Failed(c, p.Verdicts("containerd://c1"))
		if !dead || kind != Liveness {
			t.Errorf("verdicts %+v", p.Verdicts("containerd://c1"))
		}
		if r.count("c1 alive") != 3 {
			t.Errorf("a dead one was asked on: %v", r.asked)
		}
		want := "main Warning Unhealthy: Liveness probe failed: no pulse"
		if !slices.Equal(r.events, []string{want, want}) {
			t.Errorf("events %q", r.events)
		}

		r.set("alive", nil)
		p.Sync(pod, running("main", "c2", time.Now()))
		if got := p.Verdicts("containerd://c1"); got != (Verdicts{}) {
			t.Errorf("the dead one is remembered: %+v", got)
		}
		v := p.Verdicts("containerd://c2")
		if _, dead := Failed(c, v); dead || Started(c, true, v) || Ready(c, true, v) {
			t.Errorf("the new one begins with %+v", v)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if v := p.Verdicts("containerd://c2"); !Ready(c, true, v) {
			t.Errorf("verdicts %+v", v)
		}
		cancel()
		synctest.Wait()
	})
}

// The agent is killed and begins again: what was ready is ready in the first status that it writes.
func TestReadyContainerStaysSoWhenTheAgentBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuntime()
		ctx, cancel := context.WithCancel(context.Background())
		p := New(ctx, r.options())
		pod := parsePod(t, allThree)
		c := &pod.Spec.Containers[0]
		status := running("main", "c1", time.Now().Add(-time.Hour))
		pod.Status = *status.DeepCopy()
		pod.Status.ContainerStatuses[0].Ready = true
		pod.Status.ContainerStatuses[0].Started = new(true)
		p.Sync(pod, status)
		if v := p.Verdicts("containerd://c1"); !Started(c, true, v) || !Ready(c, true, v) {
			t.Errorf("verdicts %+v", v)
		}
		r.set("ready it $(NONE)", exitCode(1))
		time.Sleep(time.Minute)
		synctest.Wait()
		if v := p.Verdicts("containerd://c1"); !Started(c, true, v) || Ready(c, true, v) {
			t.Errorf("it is asked on, and the verdicts are %+v", v)
		}
		if r.count("c1 started") != 0 {
			t.Error("it was asked again whether it has started")
		}
		cancel()
		synctest.Wait()
	})
}

func TestStoppedPodIsNotAskedAndNotReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuntime()
		p := New(context.Background(), r.options())
		pod := parsePod(t, allThree)
		p.Sync(pod, running("main", "c1", time.Now()))
		time.Sleep(time.Minute)
		synctest.Wait()
		asked, reports := len(r.asked), r.reports
		counted := func() (names []string) {
			families, err := p.Metrics().Gather()
			if err != nil {
				t.Error(err)
			}
			for _, family := range families {
				names = append(names, fmt.Sprint(family.GetName(), " ", len(family.Metric)))
			}
			return names
		}
		if got := counted(); !slices.Equal(got, []string{"prober_probe_duration_seconds 3", "prober_probe_total 3"}) {
			t.Errorf("metrics: %q", got)
		}
		p.Stop(pod.UID)
		if got := counted(); len(got) > 0 {
			t.Errorf("metrics of a pod that is gone: %q", got)
		}
		p.Stop(pod.UID)
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(r.asked) != asked || r.reports != reports || p.Verdicts("containerd://c1") != (Verdicts{}) || len(p.pods)+len(p.verdicts) > 0 {
			t.Errorf("asked %d more, reported %d more, remembered %v", len(r.asked)-asked, r.reports-reports, p.verdicts)
		}
	})
}

// A pod on its way out is not disturbed by its probes, whether it is deleted or, as when it is
// evicted, is not.
func TestPodOnItsWayOutIsNotKilledByItsProbes(t *testing.T) {
	t.Run("deleted", func(t *testing.T) { leaves(t, true) })
	t.Run("evicted", func(t *testing.T) { leaves(t, false) })
}

func leaves(t *testing.T, deleted bool) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuntime()
		ctx, cancel := context.WithCancel(context.Background())
		p := New(ctx, r.options())
		pod := parsePod(t, allThree)
		c := &pod.Spec.Containers[0]
		status := running("main", "c1", time.Now())
		p.Sync(pod, status)
		time.Sleep(time.Second)
		r.set("alive", exitCode(1))
		r.set("ready it $(NONE)", exitCode(1))
		if deleted {
			leaving := pod.DeepCopy()
			leaving.DeletionTimestamp = new(metav1.Now())
			p.Sync(leaving, status)
		} else {
			p.Leave(pod.UID)
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		v := p.Verdicts("containerd://c1")
		if _, dead := Failed(c, v); dead || r.count("c1 alive") != 1 {
			t.Errorf("verdicts %+v, asked %v", v, r.asked)
		}
		if Ready(c, true, v) {
			t.Error("it is not ready, and may still get requests")
		}
		cancel()
		synctest.Wait()
	})
}

func TestSidecarIsProbedAndAnInitContainerIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuntime()
		ctx, cancel := context.WithCancel(context.Background())
		p := New(ctx, r.options())
		pod := parsePod(t, `
spec:
  initContainers:
  - {name: side, restartPolicy: Always, startupProbe: {exec: {command: [side]}}}
  - {name: first, readinessProbe: {exec: {command: [never]}}}
  containers: [{name: main}]
`)
		status := &v1.PodStatus{}
		for _, name := range []string{"side", "first"} {
			status.InitContainerStatuses = append(status.InitContainerStatuses, running(name, name, time.Now()).ContainerStatuses...)
		}
		p.Sync(pod, status)
		time.Sleep(time.Minute)
		synctest.Wait()
		if !slices.Equal(r.asked, []string{"side side"}) {
			t.Errorf("asked %v", r.asked)
		}
		cancel()
		synctest.Wait()
	})
}

func TestExecAnswers(t *testing.T) {
	for text, c := range map[string]struct {
		err  error
		want answer
	}{
		"succeeds":  {nil, succeeded("out")},
		"fails":     {exitCode(3), failed("out")},
		"times out": {fmt.Errorf("%w: %q timed out after 1s", remote.ErrCommandTimedOut, "sleep 9"), failed(`command timed out: "sleep 9" timed out after 1s`)},
		"breaks":    {errors.New("no such container"), impossible(errors.New("no such container"))},
	} {
		r := newRuntime()
		r.set("x", c.err)
		r.say("x", "out")
		got := execute(context.Background(), r, "id", []string{"x"}, time.Second)
		if got.result != c.want.result || got.output != c.want.output || fmt.Sprint(got.err) != fmt.Sprint(c.want.err) {
			t.Errorf("%s: got %+v, want %+v", text, got, c.want)
		}
	}
	r := newRuntime()
	r.say("x", strings.Repeat("x", 20<<10))
	if got := execute(context.Background(), r, "id", []string{"x"}, time.Second); len(got.output) != longest {
		t.Errorf("%d bytes of output", len(got.output))
	}
}

// What cannot be probed is tried three times, told in an event, and does not count.
func TestProbeThatCannotBeMadeDoesNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuntime()
		ctx, cancel := context.WithCancel(context.Background())
		p := New(ctx, r.options())
		pod := parsePod(t, `spec: {containers: [{name: main, livenessProbe: {exec: {command: [alive]}, failureThreshold: 1}}]}`)
		r.set("alive", errors.New("the runtime is away"))
		p.Sync(pod, running("main", "c1", time.Now()))
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if _, dead := Failed(&pod.Spec.Containers[0], p.Verdicts("containerd://c1")); dead || len(r.asked) != 6 {
			t.Errorf("asked %v", r.asked)
		}
		want := "main Warning Unhealthy: Liveness probe errored and resulted in unknown state: the runtime is away"
		if len(r.events) != 2 || r.events[0] != want {
			t.Errorf("events %q", r.events)
		}
		cancel()
		synctest.Wait()
	})
}

func TestGraceOfAProbeIsItsOwn(t *testing.T) {
	pod := parsePod(t, `
spec:
  terminationGracePeriodSeconds: 30
  containers:
  - name: main
    livenessProbe: {exec: {command: [x]}, terminationGracePeriodSeconds: 5}
    startupProbe: {exec: {command: [x]}}
`)
	c := &pod.Spec.Containers[0]
	if got := []int64{Grace(pod, c, Liveness), Grace(pod, c, Startup)}; !slices.Equal(got, []int64{5, 30}) {
		t.Errorf("got %v", got)
	}
	pod.DeletionGracePeriodSeconds = new(int64(1))
	if got := Grace(pod, c, Liveness); got != 1 {
		t.Errorf("of a pod that is being deleted: %d", got)
	}
}
