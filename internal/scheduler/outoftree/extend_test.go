// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// fakeExtender is an HTTP extender that calls a function for each verb. If the function is nil, it
// responds with status 500.
type fakeExtender struct {
	*record
	filter     func(args *extenderv1.ExtenderArgs) extenderv1.ExtenderFilterResult
	prioritize func(args *extenderv1.ExtenderArgs) extenderv1.HostPriorityList
	preempt    func(args *extenderv1.ExtenderPreemptionArgs) extenderv1.ExtenderPreemptionResult
	bind       func(args *extenderv1.ExtenderBindingArgs) extenderv1.ExtenderBindingResult
}

func (x *fakeExtender) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	verb := strings.TrimPrefix(r.URL.Path, "/")
	x.note("%s", verb)
	switch {
	case verb == "filter" && x.filter != nil:
		answer(w, r, x.filter)
	case verb == "prioritize" && x.prioritize != nil:
		answer(w, r, x.prioritize)
	case verb == "preempt" && x.preempt != nil:
		answer(w, r, x.preempt)
	case verb == "bind" && x.bind != nil:
		answer(w, r, x.bind)
	default:
		w.WriteHeader(http.StatusInternalServerError)
	}
}

func answer[A, R any](w http.ResponseWriter, r *http.Request, to func(*A) R) {
	args := new(A)
	if err := json.NewDecoder(r.Body).Decode(args); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	_ = json.NewEncoder(w).Encode(to(args))
}

// extendedBy returns a fixture whose profile uses x as an extender, once for each element of
// configured. An element holds the extender's YAML fields other than urlPrefix.
func extendedBy(t *testing.T, x *fakeExtender, configured ...string) *fixture {
	t.Helper()
	x.record = &record{}
	f := &fixture{T: t, store: NewStore(), record: x.record}
	f.cluster = newFixture(t).cluster
	f.set = newSet(t, nil)
	f.set.store = f.store
	server := httptest.NewServer(x)
	t.Cleanup(server.Close)
	var list []string
	for _, c := range configured {
		list = append(list, "{urlPrefix: "+server.URL+", "+c+"}")
	}
	c, err := parse(f.set, "extenders: ["+strings.Join(list, ", ")+"]")
	if err != nil {
		t.Fatal(err)
	}
	f.use(c)
	return f
}

func (f *fixture) use(c *config.Config) {
	profiles, err := f.set.Profiles(c)
	if err != nil {
		f.Fatal(err)
	}
	if err := f.store.Need(f.Context(), nil); err != nil {
		f.Fatal(err)
	}
	f.profile = profiles[0]
	f.decider = decide.New(f.cluster, f.profile.Profile, 1)
}

func passing(names ...string) func(*extenderv1.ExtenderArgs) extenderv1.ExtenderFilterResult {
	return func(*extenderv1.ExtenderArgs) extenderv1.ExtenderFilterResult {
		return extenderv1.ExtenderFilterResult{NodeNames: &names}
	}
}

func TestAnExtenderTakesNodesAway(t *testing.T) {
	x := &fakeExtender{filter: passing("n2")}
	f := extendedBy(t, x, "filterVerb: filter, nodeCacheCapable: true")
	for _, name := range []string{"n1", "n2", "n3"} {
		f.node(name, 4)
	}
	_, got := f.decide(pod("p", "1"))
	f.expect("node", got, "n2")

	x.filter = func(args *extenderv1.ExtenderArgs) extenderv1.ExtenderFilterResult {
		return extenderv1.ExtenderFilterResult{
			FailedNodes: extenderv1.FailedNodesMap{"n1": "busy", "n2": "busy"}, FailedAndUnresolvableNodes: extenderv1.FailedNodesMap{"n2": "wrong kind"},
		}
	}
	f.taken()
	a, got := f.decide(pod("p", "1"))
	f.expect("reasons; of n3 nothing is said", got, "0/3 nodes are available: 1 busy, 1 wrong kind.")
	f.expect("requests", f.taken(), "filter")
	failure := f.decider.Diagnose(a.Waiting)
	f.expect("who rejects the pod", strings.Join(failure.Plugins, " "), plugins.ExtenderName)
	e := f.decider.Plain().Evaluate(a.Waiting)
	for i, resolvable := range []bool{true, false, false} {
		if r := e.Nodes[i].Rejection; r.Unresolvable == resolvable {
			t.Errorf("%s: got %+v", e.Nodes[i].Node.Name, r)
		}
	}
}

// TestAnExtenderIsAskedAboutWhatFiltersLetPass verifies that an extender gets the nodes that passed
// the filters and the extenders before it.
func TestAnExtenderIsAskedAboutWhatFiltersLetPass(t *testing.T) {
	var asked []string
	x := &fakeExtender{filter: func(args *extenderv1.ExtenderArgs) extenderv1.ExtenderFilterResult {
		asked = append(asked, strings.Join(*args.NodeNames, "+"))
		left := (*args.NodeNames)[1:]
		return extenderv1.ExtenderFilterResult{NodeNames: &left}
	}}
	f := extendedBy(t, x, "filterVerb: filter, nodeCacheCapable: true", "filterVerb: filter, nodeCacheCapable: true")
	f.node("small", 1)
	for _, name := range []string{"n1", "n2", "n3"} {
		f.node(name, 4)
	}
	_, got := f.decide(pod("p", "2"))
	f.expect("node", got, "n3")
	f.expect("asked about", strings.Join(asked, " "), "n1+n2+n3 n2+n3")
}

func TestAnExtenderThatFails(t *testing.T) {
	for _, c := range []struct{ name, configured, want string }{
		{"fails the pod", "filterVerb: filter", "error: failed filter with extender at URL %s/filter, code 500"},
		{"is ignored where it may be", "filterVerb: filter, ignorable: true", "n1"},
		{"at its scores, is ignored", "prioritizeVerb: prioritize, weight: 1", "n1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := extendedBy(t, &fakeExtender{}, c.configured)
			f.node("n1", 16)
			f.node("n2", 4)
			_, got := f.decide(pod("p", "1"))
			f.expect("result", got, strings.ReplaceAll(c.want, "%s", f.set.extenders[0].Name()))
		})
	}
}

func TestScoresOfAnExtenderAreAddedTimesTenTimesTheWeight(t *testing.T) {
	x := &fakeExtender{prioritize: func(*extenderv1.ExtenderArgs) extenderv1.HostPriorityList {
		return extenderv1.HostPriorityList{{Host: "n2", Score: 4}}
	}}
	f := extendedBy(t, x, "prioritizeVerb: prioritize, weight: 3")
	f.node("n1", 4)
	f.node("n2", 4)
	a, got := f.decide(pod("p", "1"))
	f.expect("node", got, "n2")
	e := f.decider.Plain().Evaluate(a.Waiting)
	if by := e.Nodes[1].Total - e.Nodes[0].Total; by != 4*3*10 {
		t.Errorf("n2 has %d more than n1, want 120", by)
	}
	if last := e.Nodes[1].Scores[len(e.Nodes[1].Scores)-1]; last.Plugin != f.set.extenders[0].Name() || last.Score != 120 {
		t.Errorf("the last score is %+v", last)
	}
}

func TestPodsThatAnExtenderDoesNotCareFor(t *testing.T) {
	x := &fakeExtender{filter: passing()}
	f := extendedBy(t, x, "filterVerb: filter, nodeCacheCapable: true, managedResources: [{name: example.com/gpu, ignoredByScheduler: true}]")
	f.node("n1", 4)
	_, got := f.decide(pod("p", "1"))
	f.expect("node", got, "n1")
	f.expect("requests", f.taken(), "")
	_, got = f.decide(pod("gpu", "1", func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = resource.MustParse("1") // not available on any node
	}))
	f.expect("a pod that asks for what the extender manages", got, "0/1 nodes are available:")
	f.expect("requests", f.taken(), "filter")
}

// TestAnExtenderSparesPods verifies that an extender can exclude one node from preemption and name
// another victim on the remaining node.
func TestAnExtenderSparesPods(t *testing.T) {
	x := &fakeExtender{filter: passing("n1", "n2"), preempt: func(args *extenderv1.ExtenderPreemptionArgs) extenderv1.ExtenderPreemptionResult {
		if len(args.NodeNameToMetaVictims) != 2 || args.NodeNameToMetaVictims["n2"].Pods[0].UID != "b2" {
			t.Errorf("asked about %v", args.NodeNameToMetaVictims)
		}
		return extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{
			"n2": {Pods: []*extenderv1.MetaPod{{UID: "b1"}}},
		}}
	}}
	f := extendedBy(t, x, "filterVerb: filter, preemptVerb: preempt, nodeCacheCapable: true")
	f.node("n1", 2)
	f.node("n2", 2)
	f.has(pod("a", "2", on("n1"), priority(1)))
	f.has(pod("b1", "1", on("n2"), priority(3)))
	f.has(pod("b2", "1", on("n2"), priority(2)))
	preempts := func() string {
		a, _ := f.decide(pod("p", "1", priority(10)))
		found := f.decider.Preempt(a.Waiting)
		if found.Node == nil {
			return found.Message
		}
		return found.Node.Name + " " + found.Victims[0].Name()
	}
	f.expect("preemption", preempts(), "n2 b1")

	x.preempt = func(*extenderv1.ExtenderPreemptionArgs) extenderv1.ExtenderPreemptionResult {
		return extenderv1.ExtenderPreemptionResult{}
	}
	f.expect("an extender that spares all", preempts(), "no candidate node for preemption")
	x.preempt = func(*extenderv1.ExtenderPreemptionArgs) extenderv1.ExtenderPreemptionResult {
		return extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{"n1": {}}}
	}
	f.expect("an extender that names no victim", preempts(), `expected at least one victim pod on node "n1"`)
	x.preempt = nil
	f.expect("an extender that fails", preempts(), "failed preempt with extender at URL "+f.set.extenders[0].Name()+"/preempt, code 500")
}

// TestAnAnswerAboutVictimsStandsForThese verifies that a response is reused for the same victims on
// the same nodes, or on some of these nodes, even after other requests. It is never reused for
// other victims.
func TestAnAnswerAboutVictimsStandsForThese(t *testing.T) {
	other := map[string]string{}
	x := &fakeExtender{preempt: func(args *extenderv1.ExtenderPreemptionArgs) extenderv1.ExtenderPreemptionResult {
		for _, v := range args.NodeNameToMetaVictims {
			for _, pod := range v.Pods {
				pod.UID = cmp.Or(other[pod.UID], pod.UID)
			}
		}
		return extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: args.NodeNameToMetaVictims}
	}}
	f := extendedBy(t, x, "preemptVerb: preempt, nodeCacheCapable: true")
	f.node("n1", 2)
	f.node("n2", 2)
	for name, node := range map[string]string{"a": "n1", "b1": "n2", "b2": "n2", "b3": "n2"} {
		f.has(pod(name, "100m", on(node)))
	}
	a := f.begin(pod("p", "1", priority(10)))
	place := func(node string, violations int, victims ...types.UID) plugins.Place {
		at := plugins.Place{Node: f.cluster.Node(node), Violations: violations}
		for _, uid := range victims {
			at.Victims = append(at.Victims, f.cluster.Pod(uid))
		}
		return at
	}
	expect := func(want string, places ...plugins.Place) {
		t.Helper()
		spared, err := f.profile.Extenders[0].Spare(f.cluster, a.Waiting, places)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, at := range spared {
			got = append(got, at.Node.Name)
			for _, victim := range at.Victims {
				got = append(got, victim.Name())
			}
		}
		f.expect("places left, and whether it was asked", strings.Join(append(got, f.taken()), " "), want)
	}

	n1, n2 := place("n1", 0, "a"), place("n2", 0, "b2")
	expect("n1 a n2 b2 preempt", n1, n2)
	expect("n1 a n2 b2 ", n1, n2)
	expect("n2 b2 ", n2)
	expect("n2 b1 b2 preempt", place("n2", 0, "b1", "b2"))
	expect("n2 b1 b2 ", place("n2", 0, "b2", "b1"))
	expect("n1 a n2 b2 ", n1, n2)
	expect("n2 b2 preempt", place("n2", 1, "b2"))

	other["b1"] = "b3"
	expect("n2 b3 preempt", place("n2", 0, "b1"))
	f.cluster.RemovePod("b3")
	expect("preempt", place("n2", 0, "b1")) // the snapshot still has b3
	other["b1"] = "b2"
	expect("n2 b2 preempt", place("n2", 0, "b1"))
}

// TestAnExtenderBinds verifies that an extender replaces the plugins at Bind, unless it is
// ignorable and fails.
func TestAnExtenderBinds(t *testing.T) {
	for _, c := range []struct {
		name, configured string
		bind             func(*extenderv1.ExtenderBindingArgs) extenderv1.ExtenderBindingResult
		passed           bool
		err              string
	}{
		{"success", "bindVerb: bind", func(*extenderv1.ExtenderBindingArgs) extenderv1.ExtenderBindingResult {
			return extenderv1.ExtenderBindingResult{}
		}, false, ""},
		{"error", "bindVerb: bind", func(*extenderv1.ExtenderBindingArgs) extenderv1.ExtenderBindingResult {
			return extenderv1.ExtenderBindingResult{Error: "no"}
		}, false, "no"},
		{"ignored", "bindVerb: bind, ignorable: true", nil, true, ""},
		{"not interested", "bindVerb: bind, managedResources: [{name: example.com/gpu}]", nil, true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := extendedBy(t, &fakeExtender{bind: c.bind}, c.configured)
			f.node("n1", 4)
			a, _ := f.decide(pod("p", "1"))
			name := f.set.extenders[0].Name()
			if at := f.profile.At[plugins.Bind]; len(at) != 2 || at[0] != name || at[1] != "DefaultBinder" {
				t.Errorf("binders: %v", at)
			}
			passed, err := extensionOf[cycle.Binder](f, name).Bind(t.Context(), a)
			if passed != c.passed || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
				t.Errorf("got %t, %v", passed, err)
			}
		})
	}
}
