// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"
	coordinationv1 "k8s.io/api/coordination/v1"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/client"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/question"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
	"github.com/berth-k8s/berth/internal/ui/model"
)

func node(name string, taints ...string) apitest.Object {
	list := []map[string]any{}
	for _, key := range taints {
		list = append(list, map[string]any{"key": key, "effect": "NoSchedule"})
	}
	return apitest.Object{
		"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name, "uid": name},
		"spec":   map[string]any{"taints": list},
		"status": map[string]any{"allocatable": map[string]any{"cpu": "4", "memory": "8Gi", "pods": "10"}, "conditions": []map[string]any{{"type": "Ready", "status": "True"}}},
	}
}

func pod(name, on string) apitest.Object {
	return apitest.Object{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "default", "name": name, "uid": "uid-" + name},
		"spec": map[string]any{"nodeName": on, "schedulerName": "default-scheduler", "containers": []map[string]any{{"name": "c", "image": "i", "resources": map[string]any{"requests": map[string]any{"cpu": "1"}}}}},
	}
}

// parseFew parses the operations used in these tests, so that they need no command line.
func parseFew(args []string, _ string) ([]whatif.Step, error) {
	switch {
	case len(args) == 2 && args[0] == "cordon":
		return []whatif.Step{{Words: "cordon", Operation: &simulate.Operation{Cordon: &simulate.Nodes{Node: args[1]}}}}, nil
	case len(args) == 2 && args[0] == "replace":
		add := &simulate.AddNodes{Count: 1, Like: args[1]}
		return []whatif.Step{{Words: "add", Operation: &simulate.Operation{AddNodes: add}},
			{Words: "remove", Operation: &simulate.Operation{RemoveNode: &simulate.Nodes{Node: args[1]}}}}, nil
	case len(args) == 2 && args[0] == "apply":
		return []whatif.Step{{Words: "apply", Operation: &simulate.Operation{Deploy: args[1:]}}}, nil
	case len(args) == 1 && args[0] == "flood":
		half := whatif.Step{Words: "flood", Operation: &simulate.Operation{AddNodes: &simulate.AddNodes{Count: question.MostAddedNodes/2 + 1, Like: "node-1"}}}
		return []whatif.Step{half, half}, nil
	}
	return nil, fmt.Errorf("what is %v?", args)
}

// TestQuestionsAreByTheConfigurationOfTheMoment verifies that every request reads the
// configuration, using the cluster's Leases, and that the response reports assumed parts.
func TestQuestionsAreByTheConfigurationOfTheMoment(t *testing.T) {
	s, api := serving(t)
	api.Set("leases", apitest.Object{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": map[string]any{"name": "a", "namespace": "b"}})
	serves := "default-scheduler"
	s.asker.options.Running = func(_ context.Context, leases []*coordinationv1.Lease, at time.Time) (*config.Running, error) {
		if len(leases) != 1 || at.IsZero() {
			t.Errorf("%d Leases at %v", len(leases), at)
		}
		profile := plugins.Default()
		profile.SchedulerName = serves
		return &config.Running{Profiles: []*plugins.Profile{profile}, Assumed: "Assumed: much.",
			Stopped: []config.Stopped{{Names: []string{"gone"}}}}, nil
	}
	for _, serves = range []string{"default-scheduler", "another"} {
		_, body := ask(t, s, "POST", explainPath, `{"name": "web-1"}`)
		if served := !strings.Contains(body, "which this configuration does not serve"); served != (serves == "default-scheduler") ||
			strings.Count(body, `"assumed":"Assumed: much."`) != 2 || !strings.Contains(body, `"names":["gone"]`) {
			t.Errorf("served by %s: %s", serves, body)
		}
	}
}

// serving runs a server of a small cluster. The API server fails the test on every request for
// secrets and every request other than a read. Options change before the server starts, which may
// use them immediately.
func serving(t *testing.T, changes ...func(*Options)) (*Server, *apitest.Server) {
	t.Helper()
	api := apitest.New(t)
	api.Refuse("events", http.StatusForbidden)
	api.Set("nodes", node("node-1"))
	api.Set("nodes", node("node-2", "dedicated"))
	api.Set("pods", pod("web-1", "node-1"))
	options := Options{Address: "127.0.0.1:0", Running: byDefault, Parse: parseFew, Version: "test"}
	for _, change := range changes {
		change(&options)
	}
	s, err := Listen(api.Config, options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s, api
}

// with returns a request that carries the token.
func with(t *testing.T, s *Server, ctx context.Context, method, path string, body io.Reader) *http.Request {
	t.Helper()
	page, _, _ := strings.Cut(s.URL(), "?")
	r, err := http.NewRequestWithContext(ctx, method, page+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+s.options.Token)
	return r
}

const (
	explainPath = "berth.v1alpha1.QueryService/Explain"
	whatIfPath  = "berth.v1alpha1.QueryService/WhatIf"
)

// byDefault reports the default configuration.
func byDefault(context.Context, []*coordinationv1.Lease, time.Time) (*config.Running, error) {
	return &config.Running{Profiles: []*plugins.Profile{plugins.Default()}}, nil
}

// ask makes a request. JSON in the response is without spaces.
func ask(t *testing.T, s *Server, method, path, body string) (int, string) {
	t.Helper()
	r := with(t, s, t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer
	if json.Compact(&compact, text) == nil {
		text = compact.Bytes()
	}
	return answer.StatusCode, string(text)
}

// sent is one server-sent event.
type sent struct{ kind, id, data string }

// listen reads the stream after the given ID. The returned function waits for the next event of a
// kind.
func listen(t *testing.T, s *Server, after string) func(kinds ...string) sent {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	r := with(t, s, ctx, http.MethodGet, "api/stream", nil)
	r.Header.Set("Last-Event-ID", after)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	lines := bufio.NewReader(answer.Body)
	return func(kinds ...string) sent {
		t.Helper()
		for e := (sent{}); ; {
			line, err := lines.ReadString('\n')
			if err != nil {
				t.Fatalf("no %v: %v", kinds, err)
			}
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			switch name {
			case "event":
				e.kind = value
			case "id":
				e.id = value
			case "data":
				e.data = value
			case "":
				for _, kind := range kinds {
					if e.kind == kind {
						return e
					}
				}
				e = sent{}
			}
		}
	}
}

func taintsOf(t *testing.T, e sent) string {
	t.Helper()
	var d model.Delta
	if err := json.Unmarshal([]byte(e.data), &d); err != nil {
		t.Fatalf("%q: %v", e.data, err)
	}
	var list []string
	if d.Nodes != nil {
		for _, n := range d.Nodes.Rows {
			list = append(list, n.Name+fmt.Sprint(n.Taints))
		}
	}
	return strings.Join(list, " ")
}

func TestAPageThatComesBackGoesOnWhereItWas(t *testing.T) {
	s, api := serving(t)
	next := listen(t, s, "")
	state := next("state")
	api.Set("nodes", node("node-1", "first"))
	first := next("delta")
	if got := taintsOf(t, first); got != "node-1[first:NoSchedule]" {
		t.Fatalf("%s", got)
	}
	api.Set("nodes", node("node-1", "second"))
	second := next("delta")

	back := listen(t, s, first.id)("state", "delta")
	if back.kind != "delta" || back.id != second.id || taintsOf(t, back) != "node-1[second:NoSchedule]" {
		t.Errorf("after the first change: %+v", back)
	}
	for _, id := range []string{"000000000000-2", "another-process-7", "0", "nonsense", s.epoch + "-999999", s.epoch + "--1"} {
		if e := listen(t, s, id)("state", "delta"); e.kind != "state" || !strings.Contains(e.data, "second:NoSchedule") {
			t.Errorf("with the id %q: %s", id, e.kind)
		}
	}
	if state.id == "" || state.id == first.id {
		t.Errorf("ids %q, %q", state.id, first.id)
	}
}

// TestStreamsLeaveConnectionsForQuestions verifies that the third stream of a browser ends after
// the pending changes, but stays open if another stream has ended before. A browser opens six
// connections per host, and requests of any number of tabs must get a connection.
func TestStreamsLeaveConnectionsForQuestions(t *testing.T) {
	s, api := serving(t)
	ask(t, s, "GET", "api/nodes/node-1", "") // wait until the cluster has been read
	held := make([]context.CancelFunc, mostHeld)
	for i := range held {
		var ctx context.Context
		ctx, held[i] = context.WithCancel(t.Context())
		answer, err := http.DefaultClient.Do(with(t, s, ctx, http.MethodGet, "api/stream", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
	}
	next := listen(t, s, "")
	state := next("state")
	next("end")
	api.Set("nodes", node("node-1", "new"))
	for e := (sent{}); e.kind != "delta"; {
		// The server may not have observed the change yet.
		if e = listen(t, s, state.id)("delta", "end"); e.kind == "delta" && taintsOf(t, e) != "node-1[new:NoSchedule]" {
			t.Errorf("%+v", e)
		}
	}
	held[0]()
	// A held stream has beats instead of an end.
	for listen(t, s, state.id)("end", "beat").kind == "end" {
	}
}

func TestStatesAreCompressed(t *testing.T) {
	s, _ := serving(t)
	r := with(t, s, t.Context(), http.MethodGet, "api/stream?once", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	plain, err := gzip.NewReader(answer.Body)
	if err != nil || answer.Header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("%v %v", answer.Header, err)
	}
	if text, err := io.ReadAll(plain); err != nil || !strings.HasSuffix(string(text), "event: end\ndata: {}\n\n") {
		t.Errorf("%s %v", text, err)
	}
}

func TestWhatIsNotSeenIsSaid(t *testing.T) {
	s, _ := serving(t)
	next := listen(t, s, "")
	for !strings.Contains(next("watch").data, "may not list and watch events") {
	}
}

func TestNodesAreDescribedAndFound(t *testing.T) {
	s, _ := serving(t)
	listen(t, s, "")("state")
	if status, body := ask(t, s, "GET", "api/nodes/node-1", ""); status != http.StatusOK || !strings.Contains(body, `"name":"web-1"`) {
		t.Errorf("%d %s", status, body)
	}
	if status, body := ask(t, s, "GET", "api/nodes/node-9", ""); status != http.StatusNotFound {
		t.Errorf("%d %s", status, body)
	}
	if status, body := ask(t, s, "GET", "api/find?q=web", ""); status != http.StatusOK || !strings.Contains(body, `"node":"node-1"`) {
		t.Errorf("%d %s", status, body)
	}
}

// questions returns the public client of the query service, with the token of the dashboard.
func questions(t *testing.T, s *Server) berthv1alpha1.QueryServiceClient {
	t.Helper()
	page, _, _ := strings.Cut(s.URL(), "?")
	c, err := client.New(page, client.Options{Token: s.options.Token})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// inJSON returns a client that sends and receives JSON.
func inJSON(s *Server) berthv1alpha1.QueryServiceClient {
	page, _, _ := strings.Cut(s.URL(), "/?")
	token := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
			r.Header().Set("Authorization", "Bearer "+s.options.Token)
			return next(ctx, r)
		}
	})
	return berthv1alpha1.NewQueryServiceClient(http.DefaultClient, page, connect.WithProtoJSON(), connect.WithInterceptors(token))
}

// TestQuestionsAreAnswered asks every question, in both encodings.
func TestQuestionsAreAnswered(t *testing.T) {
	s, _ := serving(t, func(o *Options) {
		o.Decided = func(_ context.Context, namespace, name string) (*decision.Decision, error) {
			return nil, fmt.Errorf("no answer about %s/%s", namespace, name)
		}
	})
	ctx := t.Context()
	for name, c := range map[string]berthv1alpha1.QueryServiceClient{"JSON": inJSON(s), "protobuf": questions(t, s)} {
		e, err := c.Explain(ctx, &berthv1alpha1.ExplainRequest{Name: "web-1", Node: "node-2"})
		if err != nil || e.State != "Placed" || e.Document.AsMap()["node"] == nil || !slices.Contains(e.Basis.Limits, "the scheduler: no answer about default/web-1") {
			t.Errorf("%s: %v, %v", name, e, err)
		}
		_, err = c.Explain(ctx, &berthv1alpha1.ExplainRequest{Name: "missing"})
		if connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("%s: %v", name, err)
		}
		_, err = c.Explain(ctx, &berthv1alpha1.ExplainRequest{Name: "web-1", AsOf: timestamppb.Now()})
		if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "recording") {
			t.Errorf("%s: %v", name, err)
		}
		f, err := c.Fits(ctx, &berthv1alpha1.FitsRequest{Like: "pod/web-1", Max: true})
		if err != nil || !f.Fits || f.Placed != 3 || f.Nodes["node-1"] != 3 || f.Basis.AsOf == nil {
			t.Errorf("%s: %v, %v", name, f, err)
		}
		p, err := c.Pending(ctx, &berthv1alpha1.PendingRequest{})
		if err != nil || p.Pods != 0 || p.Document == nil {
			t.Errorf("%s: %v, %v", name, p, err)
		}
		k, err := c.Capacity(ctx, &berthv1alpha1.CapacityRequest{By: "node"})
		if err != nil || len(k.Document.Fields["groups"].GetListValue().GetValues()) != 2 {
			t.Errorf("%s: %v, %v", name, k, err)
		}
		w, err := c.WhatIf(ctx, &berthv1alpha1.WhatIfRequest{Operations: []string{"cordon", "node-1"}})
		if err != nil || len(w.ChangedNodes) != 1 || w.ChangedNodes[0].Name != "node-1" || !w.ChangedNodes[0].Cordoned || len(w.RemovedNodes) > 0 {
			t.Errorf("%s: %v, %v", name, w, err)
		}
	}
	manifest := `apiVersion: v1\nkind: Pod\nmetadata: {name: new}\nspec: {containers: [{name: c, image: i, resources: {requests: {cpu: 2}}}]}`
	if status, body := ask(t, s, "POST", whatIfPath, `{"operations": ["apply", "-"], "manifest": "`+manifest+`"}`); status != http.StatusOK || !strings.Contains(body, `"name":"new"`) {
		t.Errorf("%d %s", status, body)
	}
}

// TestForecastsReadNodePools verifies that the kinds for plans of nodes are read for questions, but
// not for a look at an object.
func TestForecastsReadNodePools(t *testing.T) {
	s, api := serving(t)
	for path, read := range map[string]bool{"GET api/objects?node=node-1": false, "POST " + whatIfPath: true} {
		method, path, _ := strings.Cut(path, " ")
		before := len(api.Reads())
		if status, body := ask(t, s, method, path, `{"operations": ["cordon", "node-1"]}`); status != http.StatusOK {
			t.Fatal(status, body)
		}
		if got := slices.Contains(api.Reads()[before:], "/apis/karpenter.sh/v1/nodepools"); got != read {
			t.Errorf("%s reads NodePools: %t", path, got)
		}
	}
}

// TestChangedNodesAreReported verifies that a forecast reports added, changed and removed nodes,
// but no others.
func TestChangedNodesAreReported(t *testing.T) {
	s, api := serving(t)
	api.Set("nodes", node("node-3"))
	w, err := questions(t, s).WhatIf(t.Context(), &berthv1alpha1.WhatIfRequest{Operations: []string{"replace", "node-2"}})
	if err != nil || len(w.ChangedNodes) != 1 || !slices.Equal(w.RemovedNodes, []string{"node-2"}) {
		t.Fatalf("%v, %v", w, err)
	}
	added := w.ChangedNodes[0]
	if added.Name == "node-2" || !added.Added || !slices.Equal(added.Taints, []string{"dedicated:NoSchedule"}) ||
		added.Cpu.Allocatable != 4000 || added.Memory.Allocatable != 8<<30 || added.Pods.Allocatable != 10 || added.Pods.Requested != 0 {
		t.Errorf("%v", added)
	}
}

// TestScoresAreAsManyAsRequested verifies that the page can get the scores of more nodes than fit
// on a terminal.
func TestScoresAreAsManyAsRequested(t *testing.T) {
	s, api := serving(t)
	for i := range 20 {
		api.Set("nodes", node(fmt.Sprint("more-", i)))
	}
	for scores, want := range map[int32]int{0: 6, 15: 16, 100: 21} { // the best and as many others; node-2 has a taint
		e, err := questions(t, s).Explain(t.Context(), &berthv1alpha1.ExplainRequest{Name: "web-1", Scores: scores})
		if err != nil || len(e.Document.Fields["scores"].GetListValue().GetValues()) != want {
			t.Errorf("%d: %v, %v", scores, e.GetDocument().GetFields()["scores"], err)
		}
	}
}

// TestGroupsAreExplained asks about an existing pod group and about a missing one.
func TestGroupsAreExplained(t *testing.T) {
	s, api := serving(t)
	api.Set("podgroups", apitest.Object{"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": map[string]any{"namespace": "default", "name": "train"},
		"spec": map[string]any{"schedulingPolicy": map[string]any{"gang": map[string]any{"minCount": 2}}}})
	e, err := questions(t, s).Explain(t.Context(), &berthv1alpha1.ExplainRequest{Name: "train", Group: true})
	if err != nil || e.Document.AsMap()["kind"] != "PodGroupExplanation" || e.State == "" || e.Summary == "" || e.Text == "" {
		t.Errorf("%v, %v", e, err)
	}
	if _, err := questions(t, s).Explain(t.Context(), &berthv1alpha1.ExplainRequest{Name: "web-1", Group: true}); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a pod's name: %v", err)
	}
}

func TestQuestionsThatMayNotBeAsked(t *testing.T) {
	s, _ := serving(t)
	for _, c := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", whatIfPath, `{"operations": ["apply", "/etc/passwd"]}`, 400, "no file is read"},
		{"POST", whatIfPath, `{"operations": ["flood"]}`, 400, "at most"},
		{"POST", whatIfPath, `{"operations": ["dance"]}`, 400, "what is [dance]?"},
		{"POST", whatIfPath, `nonsense`, 400, "unmarshal"},
		{"POST", whatIfPath, `{"manifest": 1}`, 400, "unmarshal"},
		{"POST", whatIfPath, `{"manifest": "` + strings.Repeat("x", question.MostBody) + `"}`, 400, "cannot be read"},
		{"GET", whatIfPath, "", 405, ""},
		{"GET", explainPath, "", 405, ""},
		{"POST", "berth.v1alpha1.QueryService/Other", "{}", 404, ""},
		{"POST", "api/what-if", "{}", 404, ""},
		{"GET", "api/explain", "", 404, ""},
		{"DELETE", "api/nodes/node-1", "", 405, ""},
		{"GET", "guard.go", "", 404, ""},
		{"GET", "..%2fguard.go", "", 404, ""},
		{"GET", "page/main.js", "", 404, ""},
	} {
		if status, body := ask(t, s, c.method, c.path, c.body); status != c.status || !strings.Contains(body, c.says) {
			t.Errorf("%s %s %.40s: %d %s", c.method, c.path, c.body, status, body)
		}
	}
}

// TestATokenIsMadeEverywhere verifies that a token is also generated for loopback addresses, which
// every user of the machine can reach.
func TestATokenIsMadeEverywhere(t *testing.T) {
	api := apitest.New(t)
	made := map[string]bool{}
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "0.0.0.0:0"} {
		s, err := Listen(api.Config, Options{Address: address})
		if err != nil {
			if strings.Contains(address, "::1") {
				continue // no IPv6 here
			}
			t.Fatal(err)
		}
		if _, token, _ := strings.Cut(s.URL(), "?token="); len(token) < 24 || made[token] {
			t.Errorf("%s: %s", address, s.URL())
		} else {
			made[token] = true
		}
		s.listener.Close()
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := Listen(api.Config, Options{Address: other.Addr().String()}); err == nil || !strings.Contains(err.Error(), other.Addr().String()) {
		t.Errorf("a port that is taken: %v", err)
	}
}

// TestWithoutTheTokenNothingIsTold verifies that nothing about the cluster is disclosed without the
// token, including the event stream. Other sites get nothing even with it.
func TestWithoutTheTokenNothingIsTold(t *testing.T) {
	s, _ := serving(t)
	requests := map[string]string{}
	for _, path := range []string{"api/stream", "api/about", "api/nodes/node-1", "api/find?q=web", "main.js", ""} {
		requests[path] = http.MethodGet
	}
	methods := berthv1alpha1.File_berth_v1alpha1_query_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		requests["berth.v1alpha1.QueryService/"+string(methods.Get(i).Name())] = http.MethodPost
	}
	if len(requests) != 11 || requests[explainPath] == "" {
		t.Fatal(requests)
	}
	for path, method := range requests {
		for want, change := range map[int]func(http.Header){
			http.StatusUnauthorized: func(h http.Header) { h.Del("Authorization") },
			http.StatusForbidden:    func(h http.Header) { h.Set("Origin", "http://evil.example") },
		} {
			r := with(t, s, t.Context(), method, path, strings.NewReader(`{"name": "web-1", "like": "pod/web-1", "operations": ["cordon", "node-1"]}`))
			r.Header.Set("Content-Type", "application/json")
			change(r.Header)
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(answer.Body)
			answer.Body.Close()
			if answer.StatusCode != want || strings.Contains(string(text), "node-1") {
				t.Errorf("/%s: %d %.60s, want %d", path, answer.StatusCode, text, want)
			}
		}
	}
}

// TestObjectsAreReadWithoutTheCluster verifies that a request for objects reads neither the nodes
// nor more pods than the one in question.
func TestObjectsAreReadWithoutTheCluster(t *testing.T) {
	s, api := serving(t)
	listen(t, s, "")("state")
	read := len(api.Reads())
	if status, body := ask(t, s, "GET", "api/objects", ""); status != http.StatusOK || !strings.Contains(body, `"budgets":`) {
		t.Errorf("%d %s", status, body)
	}
	for _, path := range api.Reads()[read:] {
		if strings.HasSuffix(path, "/nodes") || strings.HasSuffix(path, "/pods") {
			t.Errorf("%s was read", path)
		}
	}
	if status, body := ask(t, s, "GET", "api/objects?namespace=default&pod=web-1", ""); status != http.StatusOK || !strings.Contains(body, `"requests":{"cpu":"1"}`) {
		t.Errorf("%d %s", status, body)
	}
}
