// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package extender_test

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/scheduler/extender"
	"github.com/berth-k8s/berth/internal/scheduler/outoftree"
)

// serve responds to every request with a status and a body, and keeps the request.
func serve(t *testing.T, status int, body string) (url string, asked *request) {
	asked = &request{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.path, asked.contentType = r.URL.Path, r.Header.Get("Content-Type")
		data, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(data, &asked.body)
		}
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(server.Close)
	return server.URL, asked
}

type request struct {
	path, contentType string
	body              map[string]any
}

func configured(t *testing.T, c configv1.Extender) *extender.Extender {
	t.Helper()
	e, err := extender.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func node(name string) *v1.Node { return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }

func pod(name string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name + "-uid")}}
}

var three = []fwk.NodeInfo{outoftree.NewNodeInfo(node("n1"), pod("victim")), outoftree.NewNodeInfo(node("n2")), outoftree.NewNodeInfo(node("n3"))}

func names(nodes []fwk.NodeInfo) string {
	var all []string
	for _, n := range nodes {
		all = append(all, n.Node().Name)
	}
	return strings.Join(all, " ")
}

func TestFilter(t *testing.T) {
	for _, c := range []struct {
		name    string
		capable bool
		status  int
		body    string
		want    string
	}{
		{"names", true, 200, `{"NodeNames": ["n3", "n1"], "FailedNodes": {"n2": "busy"}}`, "n3 n1, failed map[n2:busy], never map[]"},
		{"whole nodes", false, 200, `{"Nodes": {"items": [{"metadata": {"name": "n2"}}]}, "FailedAndUnresolvableNodes": {"n1": "wrong kind"}}`,
			"n2, failed map[], never map[n1:wrong kind]"},
		{"nothing passes", true, 200, `{}`, ", failed map[], never map[]"},
		{"an error in the answer", true, 200, `{"Error": "out of order"}`, "out of order"},
		{"another status", true, 503, `{}`, "failed filter with extender at URL %s/filter, code 503"},
		{"a node that was not asked about", true, 200, `{"NodeNames": ["n4"]}`, `extender "%s/" claims a filtered node "n4" which is not found in the input node list`},
		{"no JSON", true, 200, `no`, "invalid character 'o' in literal null (expecting 'u')"},
	} {
		t.Run(c.name, func(t *testing.T) {
			url, asked := serve(t, c.status, c.body)
			e := configured(t, configv1.Extender{URLPrefix: url + "/", FilterVerb: "filter", NodeCacheCapable: c.capable})
			passed, failed, never, err := e.Filter(pod("p"), three)
			got := fmt.Sprintf("%s, failed %v, never %v", names(passed), failed, never)
			if err != nil {
				got = err.Error()
			}
			if want := strings.ReplaceAll(c.want, "%s", url); got != want {
				t.Errorf("got %s\nwant %s", got, want)
			}
			if asked.path != "/filter" || asked.contentType != "application/json" {
				t.Errorf("asked %s as %s", asked.path, asked.contentType)
			}
			if text := fmt.Sprint(asked.body["NodeNames"]); c.capable && text != "[n1 n2 n3]" || !c.capable && text != "<nil>" {
				t.Errorf("names that were sent: %s", text)
			}
			if (asked.body["Nodes"] == nil) != c.capable {
				t.Errorf("nodes that were sent: %v", asked.body["Nodes"])
			}
			if name := asked.body["Pod"].(map[string]any)["metadata"].(map[string]any)["name"]; name != "p" {
				t.Errorf("the pod that was sent: %v", name)
			}
		})
	}
}

func TestWithoutAVerbNothingIsSent(t *testing.T) {
	e := configured(t, configv1.Extender{URLPrefix: "http://192.0.2.1:1"})
	if passed, failed, _, err := e.Filter(pod("p"), three); err != nil || names(passed) != "n1 n2 n3" || len(failed) != 0 {
		t.Errorf("filter: %v, %v", passed, err)
	}
	if scores, weight, err := e.Prioritize(pod("p"), three); err != nil || weight != 0 || fmt.Sprint(*scores) != "[{n1 0} {n2 0} {n3 0}]" {
		t.Errorf("prioritize: %v, %v", scores, err)
	}
	if err := e.Bind(&v1.Binding{}); err == nil || err.Error() != "unexpected empty bindVerb in extender" {
		t.Errorf("bind: %v", err)
	}
	if _, err := e.ProcessPreemption(pod("p"), nil, nil); err == nil || err.Error() != "preempt verb is not defined for extender http://192.0.2.1:1 but run into ProcessPreemption" {
		t.Errorf("preempt: %v", err)
	}
	if e.IsFilter() || e.IsPrioritizer() || e.IsBinder() || e.SupportsPreemption() || e.IsIgnorable() {
		t.Error("it is configured for something")
	}
}

func TestPrioritize(t *testing.T) {
	url, asked := serve(t, 200, `[{"Host": "n1", "Score": 10}, {"Host": "n2", "Score": 3}]`)
	e := configured(t, configv1.Extender{URLPrefix: url, PrioritizeVerb: "score", Weight: 5, NodeCacheCapable: true})
	scores, weight, err := e.Prioritize(pod("p"), three)
	if err != nil || weight != 5 || fmt.Sprint(*scores) != "[{n1 10} {n2 3}]" || asked.path != "/score" {
		t.Errorf("got %v, weight %d, %v by %s", scores, weight, err, asked.path)
	}
}

func TestBind(t *testing.T) {
	binding := &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Target: v1.ObjectReference{Name: "n1"}}
	url, asked := serve(t, 200, `{}`)
	if err := configured(t, configv1.Extender{URLPrefix: url, BindVerb: "bind"}).Bind(binding); err != nil {
		t.Error(err)
	}
	if got := fmt.Sprint(asked.body); got != "map[Node:n1 PodName:p PodNamespace:ns PodUID:u]" {
		t.Errorf("sent %s", got)
	}
	url, _ = serve(t, 200, `{"Error": "no"}`)
	if err := configured(t, configv1.Extender{URLPrefix: url, BindVerb: "bind"}).Bind(binding); err == nil || err.Error() != "no" {
		t.Errorf("got %v", err)
	}
}

// lister knows the three nodes.
type lister struct{ fwk.NodeInfoLister }

func (lister) Get(name string) (fwk.NodeInfo, error) {
	for _, n := range three {
		if n.Node().Name == name {
			return n, nil
		}
	}
	return nil, errors.New("no such node")
}

func TestPreemption(t *testing.T) {
	for _, c := range []struct {
		name    string
		capable bool
		body    string
		want    string
	}{
		{"names", true, `{"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "victim-uid"}], "NumPDBViolations": 2}}}`, "n1: victim, 2 violations"},
		{"whole pods", false, `{"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "victim-uid"}]}}}`, "n1: victim, 0 violations"},
		{"nothing is left", true, `{}`, ""},
		{"an unknown node", true, `{"NodeNameToMetaVictims": {"n9": {}}}`, "no such node"},
		{"an unknown pod", true, `{"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "x"}]}}}`,
			"extender: %s claims to preempt pod (UID: x) on node: n1, but the pod is not found on that node"},
	} {
		t.Run(c.name, func(t *testing.T) {
			url, asked := serve(t, 200, c.body)
			e := configured(t, configv1.Extender{URLPrefix: url, PreemptVerb: "preempt", NodeCacheCapable: c.capable})
			victims := map[string]*extenderv1.Victims{"n1": {Pods: []*v1.Pod{pod("victim")}, NumPDBViolations: 1}}
			left, err := e.ProcessPreemption(pod("p"), victims, lister{})
			got := ""
			for name, v := range left {
				got = fmt.Sprintf("%s: %s, %d violations", name, v.Pods[0].Name, v.NumPDBViolations)
			}
			if err != nil {
				got = err.Error()
			}
			if want := strings.ReplaceAll(c.want, "%s", url); got != want {
				t.Errorf("got %s\nwant %s", got, want)
			}
			if (asked.body["NodeNameToMetaVictims"] == nil) == c.capable || (asked.body["NodeNameToVictims"] == nil) != c.capable {
				t.Errorf("sent %v", asked.body)
			}
		})
	}
}

func TestOnlyPodsWithAManagedResourceAreOfInterest(t *testing.T) {
	e := configured(t, configv1.Extender{ManagedResources: []configv1.ExtenderManagedResource{{Name: "example.com/gpu"}}})
	with := func(set func(*v1.PodSpec, v1.ResourceRequirements)) *v1.Pod {
		p := pod("p")
		set(&p.Spec, v1.ResourceRequirements{Limits: v1.ResourceList{"example.com/gpu": resource.MustParse("1")}})
		return p
	}
	container := with(func(s *v1.PodSpec, r v1.ResourceRequirements) { s.Containers = []v1.Container{{}, {Resources: r}} })
	first := with(func(s *v1.PodSpec, r v1.ResourceRequirements) { s.InitContainers = []v1.Container{{Resources: r}} })
	if !e.IsInterested(container) || !e.IsInterested(first) || e.IsInterested(pod("p")) {
		t.Error("interest is not told by the managed resources")
	}
	if !configured(t, configv1.Extender{}).IsInterested(pod("p")) {
		t.Error("an extender without managed resources is not interested")
	}
}

func TestASlowExtenderIsNotWaitedFor(t *testing.T) {
	end := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
	defer server.Close()
	defer close(end)
	e := configured(t, configv1.Extender{URLPrefix: server.URL, FilterVerb: "filter", HTTPTimeout: metav1.Duration{Duration: 20 * time.Millisecond}})
	if _, _, _, err := e.Filter(pod("p"), three); err == nil || !strings.Contains(err.Error(), "Client.Timeout exceeded") {
		t.Errorf("got %v", err)
	}
}

// TestCertificates verifies that with a CA, the extender's certificate must be signed by it, and
// that enableHTTPS without a CA accepts any certificate.
func TestCertificates(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))
	defer server.Close()
	server.Config.ErrorLog = nil
	ca := pemOf(server)
	for _, c := range []struct {
		name   string
		config configv1.Extender
		ok     bool
	}{
		{"https without authority", configv1.Extender{EnableHTTPS: true}, true},
		{"its authority", configv1.Extender{TLSConfig: &configv1.ExtenderTLSConfig{CAData: ca}}, true},
		{"its authority, another name", configv1.Extender{TLSConfig: &configv1.ExtenderTLSConfig{CAData: ca, ServerName: "example.org"}}, false},
		{"the system's authorities", configv1.Extender{}, false},
	} {
		c.config.URLPrefix, c.config.FilterVerb = server.URL, "filter"
		_, _, _, err := configured(t, c.config).Filter(pod("p"), three)
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	_, err := extender.New(configv1.Extender{URLPrefix: "u", TLSConfig: &configv1.ExtenderTLSConfig{CAFile: "/no/such/file"}})
	if err == nil || err.Error() != "extender u: open /no/such/file: no such file or directory" {
		t.Errorf("got %v", err)
	}
}

func pemOf(server *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
}
