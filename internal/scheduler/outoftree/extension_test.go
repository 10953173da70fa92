// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// told formats a rejection for tables.
func told(r *plugins.Rejection) string {
	switch {
	case r == nil:
		return "passes"
	case r.Err != nil:
		return "error: " + r.Err.Error()
	case r.Unresolvable:
		return "never: " + strings.Join(r.Reasons, ", ")
	case r.Pending:
		return "pending: " + strings.Join(r.Reasons, ", ")
	}
	return "not now: " + strings.Join(r.Reasons, ", ")
}

// statuses holds all possible statuses of a plugin, with the text of the corresponding verdicts.
var statuses = []struct {
	name   string
	status *fwk.Status
	told   string
}{
	{"success", nil, "passes"},
	{"unschedulable", fwk.NewStatus(fwk.Unschedulable, "no", "really"), "not now: no, really"},
	{"unresolvable", fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "no"), "never: no"},
	{"pending", fwk.NewStatus(fwk.Pending, "later"), "pending: later"},
	{"error", fwk.AsStatus(errors.New("broken")), "error: broken"},
}

func TestStatusesOfReserve(t *testing.T) {
	for _, c := range append(statuses, struct {
		name   string
		status *fwk.Status
		told   string
	}{"skip", fwk.NewStatus(fwk.Skip), "error: status Skip is not one that Reserve can have"}) {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, &fakePlugin{name: "A", quiet: true, reserve: func(*v1.Pod, string) *fwk.Status { return c.status }})
			f.node("n1", 4)
			a, _ := f.decide(pod("p", "1"))
			f.taken()
			x := extensionOf[cycle.Reserver](f, "A")
			f.expect("reserve", told(x.Reserve(a)), c.told)
			x.Unreserve(a)
			f.expect("calls", f.taken(), "A Reserve p on n1; A Unreserve p on n1")
			if a.Pod.Spec.NodeName != "" {
				t.Error("the pod of the API has a node")
			}
		})
	}
}

func TestStatusesOfPermit(t *testing.T) {
	for _, c := range append(statuses, []struct {
		name   string
		status *fwk.Status
		told   string
	}{
		{"wait", fwk.NewStatus(fwk.Wait), "waits 1h0m0s, 15m0s at most"},
		{"skip", fwk.NewStatus(fwk.Skip), "error: status Skip is not one that Permit can have"},
	}...) {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, &fakePlugin{name: "A", permit: func(*v1.Pod, string) (*fwk.Status, time.Duration) { return c.status, time.Hour }})
			f.node("n1", 4)
			a, _ := f.decide(pod("p", "1"))
			r, wait := extensionOf[cycle.Permitter](f, "A").Permit(a)
			got := told(r)
			if wait > 0 {
				got = "waits 1h0m0s, " + wait.String() + " at most"
			}
			f.expect("permit", got, c.told)
		})
	}
}

func TestStatusesOfPreEnqueue(t *testing.T) {
	for _, c := range statuses {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, &fakePlugin{name: "A", enqueue: func(*v1.Pod) *fwk.Status { return c.status }})
			got := extensionOf[cycle.Gate](f, "A").Admit(pod("p", "1"))
			if (got == nil) != (c.status == nil) {
				t.Errorf("got %v", got)
			}
		})
	}
}

// TestStatusesOfPreBind verifies that a plugin that returns Skip at PreBindPreFlight is not called
// at PreBind, and that a rejection keeps its wording.
func TestStatusesOfPreBind(t *testing.T) {
	for _, c := range []struct {
		name            string
		flight, prebind *fwk.Status
		want, calls     string
	}{
		{"success", nil, nil, "needed, done", "A PreBindPreFlight p on n1; A PreBind p on n1"},
		{"skip", fwk.NewStatus(fwk.Skip), nil, "not needed, done", "A PreBindPreFlight p on n1"},
		{"pre-flight error", fwk.AsStatus(errors.New("broken")), nil, "broken", "A PreBindPreFlight p on n1"},
		{"pre-flight rejection", fwk.NewStatus(fwk.Unschedulable), nil,
			`PreBindPreFlight A returned "Unschedulable", which is unsupported. It is supposed to return Success, Skip, or Error status`, "A PreBindPreFlight p on n1"},
		{"error", nil, fwk.AsStatus(errors.New("broken")), "needed, broken", "A PreBindPreFlight p on n1; A PreBind p on n1"},
		{"rejection", nil, fwk.NewStatus(fwk.Unschedulable, "no disk"), "needed, unschedulable: no disk", "A PreBindPreFlight p on n1; A PreBind p on n1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, &fakePlugin{name: "A", quiet: true,
				preFlight: func(*v1.Pod, string) (*fwk.PreBindPreFlightResult, *fwk.Status) { return nil, c.flight },
				preBind:   func(context.Context, *v1.Pod, string) *fwk.Status { return c.prebind }})
			f.node("n1", 4)
			a, _ := f.decide(pod("p", "1"))
			f.taken()
			f.expect("outcome", preBind(t, extensionOf[cycle.PreBinder](f, "A"), a), c.want)
			f.expect("calls", f.taken(), c.calls)
		})
	}
}

func preBind(t *testing.T, x cycle.PreBinder, a *cycle.Attempt) string {
	work, err := x.Needed(t.Context(), a)
	if err != nil {
		return err.Error()
	}
	text := "not needed, "
	if work.Needed {
		text = "needed, "
	}
	refusal := (*Refusal)(nil)
	switch err := x.PreBind(t.Context(), a); {
	case errors.As(err, &refusal):
		return text + "unschedulable: " + refusal.Error()
	case err != nil:
		return text + err.Error()
	}
	return text + "done"
}

// TestAPodBetweenPreBindAndBindingCanBeGivenUp verifies that a pod can be canceled between PreBind
// and its binding, for example by preemption, but not when it is about to be bound.
func TestAPodBetweenPreBindAndBindingCanBeGivenUp(t *testing.T) {
	a := &fakePlugin{name: "A", quiet: true}
	f := newConfigured(t, "plugins: {multiPoint: {enabled: [{name: A}], disabled: [{name: DefaultBinder}]}}", binding{a})
	f.node("n1", 4)
	a.preBind = func(ctx context.Context, p *v1.Pod, _ string) *fwk.Status {
		if !f.handle().GetPodInPreBind(p.UID).CancelPod("for somebody else") {
			t.Error("the pod cannot be given up")
		}
		<-ctx.Done()
		return fwk.AsStatus(ctx.Err())
	}
	attempt, _ := f.decide(pod("p", "1"))
	f.expect("a pod that is given up", preBind(t, extensionOf[cycle.PreBinder](f, "A"), attempt), "needed, for somebody else")
	if _, err := extensionOf[cycle.Binder](f, "A").Bind(t.Context(), attempt); err == nil || err.Error() != "for somebody else" {
		t.Errorf("it is bound all the same: %v", err)
	}

	a.preBind = nil
	attempt, _ = f.decide(pod("q", "1"))
	preBind(t, extensionOf[cycle.PreBinder](f, "A"), attempt)
	a.bind = func(p *v1.Pod, _ string) *fwk.Status {
		if f.handle().GetPodInPreBind(p.UID).CancelPod("too late") {
			t.Error("a pod that is being bound is given up")
		}
		return nil
	}
	if _, err := extensionOf[cycle.Binder](f, "A").Bind(t.Context(), attempt); err != nil {
		t.Error(err)
	}
	for _, e := range f.profile.Extensions {
		if ender, ok := e.(cycle.Ender); ok {
			ender.End(attempt, true)
		}
	}
	if f.handle().GetPodInPreBind("q") != nil {
		t.Error("a pod that was bound is not forgotten")
	}
}

func TestStatusesOfBind(t *testing.T) {
	for _, c := range []struct {
		name   string
		status *fwk.Status
		want   string
	}{
		{"success", nil, "bound"},
		{"skip", fwk.NewStatus(fwk.Skip), "passed"},
		{"error", fwk.AsStatus(errors.New("broken")), `running Bind plugin "A": broken`},
		{"rejection", fwk.NewStatus(fwk.Unschedulable, "no"), "no"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newConfigured(t, "plugins: {bind: {enabled: [{name: A}], disabled: [{name: '*'}]}}",
				binding{&fakePlugin{name: "A", bind: func(*v1.Pod, string) *fwk.Status { return c.status }}})
			f.node("n1", 4)
			a, _ := f.decide(pod("p", "1"))
			passed, err := extensionOf[cycle.Binder](f, "A").Bind(t.Context(), a)
			got := "bound"
			switch {
			case err != nil:
				got = err.Error()
			case passed:
				got = "passed"
			}
			f.expect("bind", got, c.want)
			f.expect("calls", f.taken(), "A Bind p on n1")
		})
	}
}

// TestStatusesOfPostFilter verifies that a success, an unresolvable status and an error are final,
// and that the next plugin is called after any other status.
func TestStatusesOfPostFilter(t *testing.T) {
	there := &fwk.PostFilterResult{NominatingInfo: &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: "n1"}}
	for _, c := range []struct {
		name   string
		result *fwk.PostFilterResult
		status *fwk.Status
		want   cycle.PostFilterResult
	}{
		{"success", there, nil, cycle.PostFilterResult{Nominate: &there.NominatedNodeName, Final: true}},
		{"no help", nil, fwk.NewStatus(fwk.Unschedulable, "sorry"), cycle.PostFilterResult{Message: "sorry"}},
		{"no help for anybody", nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "sorry"), cycle.PostFilterResult{Message: "sorry", Final: true}},
		{"no word on the node", &fwk.PostFilterResult{NominatingInfo: &fwk.NominatingInfo{NominatingMode: fwk.ModeNoop}}, fwk.NewStatus(fwk.Unschedulable), cycle.PostFilterResult{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t, &fakePlugin{name: "A", quiet: true, post: func(*v1.Pod, fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
				return c.result, c.status
			}})
			f.node("n1", 1)
			a, _ := f.decide(pod("p", "2"))
			got := rescue(f, a)
			if got.Err != nil || got.Final != c.want.Final || got.Message != c.want.Message || (got.Nominate == nil) != (c.want.Nominate == nil) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
	f := newFixture(t, &fakePlugin{name: "A", quiet: true, post: func(*v1.Pod, fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
		return nil, fwk.AsStatus(errors.New("broken"))
	}})
	a, _ := f.decide(pod("p", "2"))
	if got := rescue(f, a); !got.Final || got.Err == nil || got.Err.Error() != "broken" {
		t.Errorf("got %+v for an error", got)
	}
}

func rescue(f *fixture, a *cycle.Attempt) cycle.PostFilterResult {
	return extensionOf[cycle.PostFilterer](f, "A").RunPostFilter(a, evaluation(f, a))
}

// TestPostFilterReadsWhatFiltersSaid verifies that PostFilter gets the verdicts of Berth's and of
// out-of-tree filters on every node.
func TestPostFilterReadsWhatFiltersSaid(t *testing.T) {
	var got string
	f := newFixture(t, &fakePlugin{name: "A", quiet: true,
		filter: func(_ fwk.CycleState, _ *v1.Pod, n fwk.NodeInfo) *fwk.Status {
			if n.Node().Name == "never" {
				return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "not here")
			}
			return nil
		},
		post: func(_ *v1.Pod, verdicts fwk.NodeToStatusReader) (*fwk.PostFilterResult, *fwk.Status) {
			for _, name := range []string{"small", "never", "unknown"} {
				s := verdicts.Get(name)
				got += name + ": " + s.Code().String() + " " + s.Plugin() + " " + s.Message() + "; "
			}
			return nil, fwk.NewStatus(fwk.Unschedulable)
		}})
	f.node("small", 2)
	f.has(pod("there", "1", on("small")))
	f.node("never", 4)
	a, _ := f.decide(pod("p", "2"))
	rescue(f, a)
	f.expect("statuses", got, "small: Unschedulable NodeResourcesFit Insufficient cpu; never: UnschedulableAndUnresolvable A not here; unknown: UnschedulableAndUnresolvable  ; ")
}

func TestQueueSortComparesByThePlugin(t *testing.T) {
	f := newConfigured(t, "plugins: {queueSort: {enabled: [{name: Sort}], disabled: [{name: '*'}]}}", byName{})
	x := extensionOf[cycle.Sorter](f, "Sort")
	a, b := &queue.Item{Pod: pod("a", "1"), Progress: queue.Progress{Attempts: 3}}, &queue.Item{Pod: pod("b", "1")}
	if !x.Less(a, b) || x.Less(b, a) {
		t.Error("pods are not in the order of the plugin")
	}
}

// TestQueueSortSeesWhenAPodCameBack verifies that with plugins that compare times, like
// kube-scheduler's PrioritySort, pods failing repeatedly do not delay the first attempt of other
// pods.
func TestQueueSortSeesWhenAPodCameBack(t *testing.T) {
	f := newConfigured(t, "plugins: {queueSort: {enabled: [{name: Sort}], disabled: [{name: '*'}]}}", byTimestamp{})
	q, now := queue.New(), time.Unix(1_700_000_000, 0)
	q.OrderBy(extensionOf[cycle.Sorter](f, "Sort").Less)
	q.Add(pod("old", "1"), &cluster.PodClass{}, now)
	q.Failed(q.Pop(now), now.Add(time.Second))
	q.Add(pod("new", "1"), &cluster.PodClass{}, now.Add(500*time.Millisecond))
	if first := q.Pop(now.Add(time.Minute)); first.Pod.Name != "new" {
		t.Errorf("%s comes first", first.Pod.Name)
	}
}

type byTimestamp struct{}

func (byTimestamp) Name() string { return "Sort" }

func (byTimestamp) Less(a, b fwk.QueuedEntityInfo) bool {
	return a.GetTimestamp().Before(b.GetTimestamp())
}

type byName struct{}

func (byName) Name() string { return "Sort" }

func (byName) Less(a, b fwk.QueuedEntityInfo) bool {
	return nameOf(a) < nameOf(b) && a.GetAttempts() >= 0 && a.Type() == fwk.PodKeyType && a.GetPriority() >= 0
}

// nameOf returns the name of a queue entity's pod, in the way required of plugins since v1.37.
func nameOf(entity fwk.QueuedEntityInfo) string {
	return entity.(interface{ GetPodInfo() fwk.PodInfo }).GetPodInfo().GetPod().Name
}

// TestQueueingHints verifies that events become interests, hints get the pending pod and the
// objects, and a failing hint wakes the pod.
func TestQueueingHints(t *testing.T) {
	hint := func(answer fwk.QueueingHint, err error) fwk.QueueingHintFn {
		return func(_ klog.Logger, waiting *v1.Pod, old, now any) (fwk.QueueingHint, error) {
			if waiting.Name != "p" || old != nil || now.(*v1.Node).Name != "n1" {
				t.Errorf("asked about %s, %v, %v", waiting.Name, old, now)
			}
			return answer, err
		}
	}
	a := &fakePlugin{name: "A", events: func() ([]fwk.ClusterEventWithHint, error) {
		return []fwk.ClusterEventWithHint{
			{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}, QueueingHintFn: hint(fwk.Queue, nil)},
			{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.UpdateNodeLabel}, QueueingHintFn: hint(fwk.QueueSkip, nil)},
			{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.UpdateNodeTaint}, QueueingHintFn: hint(fwk.QueueSkip, errors.New("broken"))},
			{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.Delete}},
		}, nil
	}}
	f := newFixture(t, a)
	interests, err := extensionOf[cycle.Interested](f, "A").Interests()
	if err != nil || len(interests) != 4 {
		t.Fatalf("got %v, %v", interests, err)
	}
	item := &queue.Item{Pod: pod("p", "1")}
	event := &queue.Event{New: &v1.Node{}}
	event.New.(*v1.Node).Name = "n1"
	for i, want := range []bool{true, false, true} {
		if got := interests[i].Hint(item, event); got != want || interests[i].Resource != queue.Node {
			t.Errorf("hint %d of %s: got %t, want %t", i, interests[i].Resource, got, want)
		}
	}
	if interests[3].Hint != nil || interests[3].Resource != queue.Pod || interests[3].Action != queue.Delete {
		t.Errorf("got %+v for an event without a hint", interests[3])
	}
	a.events = func() ([]fwk.ClusterEventWithHint, error) { return nil, errors.New("broken") }
	if _, err := extensionOf[cycle.Interested](f, "A").Interests(); err == nil {
		t.Error("a plugin that cannot say its events is taken")
	}
	a.events = func() ([]fwk.ClusterEventWithHint, error) { panic("broken") }
	if _, err := extensionOf[cycle.Interested](f, "A").Interests(); err == nil {
		t.Error("a plugin that panics when it is asked for its events is taken")
	}
	silent := newConfigured(t, "plugins: {queueSort: {enabled: [{name: Sort}], disabled: [{name: '*'}]}}", byName{})
	interests, _ = extensionOf[cycle.Interested](silent, "Sort").Interests()
	for _, i := range interests {
		if i.Resource == queue.AnyResource || i.Action != queue.All || i.Hint != nil {
			t.Errorf("a plugin that says nothing can be helped by %+v", i)
		}
	}
	if len(interests) == 0 {
		t.Errorf("a plugin that says nothing can be helped by %+v", interests)
	}
}

// TestPluginsNameThePodsThatAnEventHelps verifies that with the gate on, hints are called only for
// the named pods, and the naming function only once per event. All pods count if that function
// returns all, fails, panics, or the event has no objects.
func TestPluginsNameThePodsThatAnEventHelps(t *testing.T) {
	asked, named := 0, 0
	answer, fault := fwk.PreQueueingHintResult{}, error(nil)
	a := &fakePlugin{name: "A", events: func() ([]fwk.ClusterEventWithHint, error) {
		return []fwk.ClusterEventWithHint{{
			Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.UpdateNodeLabel},
			QueueingHintFn: func(klog.Logger, *v1.Pod, any, any) (fwk.QueueingHint, error) {
				asked++
				return fwk.Queue, nil
			},
			PreQueueingHintFn: func(_ klog.Logger, _, now any) (fwk.PreQueueingHintResult, error) {
				named++
				if now.(*v1.Node).Name == "bad" {
					panic("broken")
				}
				return answer, fault
			},
		}}, nil
	}}

	helped := func(gate bool, event *queue.Event) (names string) {
		f := newFixture(t, a)
		f.set.options.PreQueueingHints = gate
		interests, err := extensionOf[cycle.Interested](f, "A").Interests()
		if err != nil {
			t.Fatal(err)
		}
		asked, named = 0, 0
		for _, name := range []string{"p", "q", "r"} {
			if interests[0].Hint(&queue.Item{Pod: pod(name, "1")}, event) {
				names += name
			}
		}
		return names
	}
	check := func(what, got, want string, questions, hints int) {
		t.Helper()
		if got != want || named != questions || asked != hints {
			t.Errorf("%s: helped %q with %d questions and %d hints, want %q, %d and %d", what, got, named, asked, want, questions, hints)
		}
	}

	label := &queue.Event{Resource: queue.Node, New: &v1.Node{}}
	answer.Pods = []types.NamespacedName{{Namespace: pod("q", "1").Namespace, Name: "q"}}
	check("off", helped(false, label), "pqr", 0, 3)
	check("one named", helped(true, label), "q", 1, 1)
	check("no objects", helped(true, &queue.Event{Resource: queue.Node}), "pqr", 0, 3)
	bad := &v1.Node{}
	bad.Name = "bad"
	check("panic", helped(true, &queue.Event{Resource: queue.Node, New: bad}), "pqr", 1, 3)
	fault = errors.New("broken")
	check("error", helped(true, label), "pqr", 1, 3)
	answer, fault = fwk.PreQueueingHintResult{AllPods: true}, nil
	check("all", helped(true, label), "pqr", 1, 3)
}
