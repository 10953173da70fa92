// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package datasets

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/scheduler/extender"
	"github.com/berth-k8s/berth/scheduler/plugintest"
)

// TestTheSchedulerIsAnswered verifies the responses to Berth's own extender client over HTTP.
func TestTheSchedulerIsAnswered(t *testing.T) {
	server := httptest.NewServer(Inventory{"genomes": {"n1": 10, "n2": 2}}.Handler())
	defer server.Close()
	x, err := extender.New(configv1.Extender{URLPrefix: server.URL, FilterVerb: "filter", PrioritizeVerb: "prioritize", Weight: 1, NodeCacheCapable: true})
	if err != nil {
		t.Fatal(err)
	}
	var nodes []fwk.NodeInfo
	for _, name := range []string{"n1", "n2", "n3"} {
		nodes = append(nodes, plugintest.NodeInfo(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}))
	}
	for dataset, want := range map[string]string{
		"genomes": "pass [n1 n2], never map[n3:node(s) cannot reach dataset genomes], scores [{n1 10} {n2 2} {n3 0}]",
		"unknown": "pass [], never map[n1:node(s) cannot reach dataset unknown n2:node(s) cannot reach dataset unknown n3:node(s) cannot reach dataset unknown], " +
			"scores [{n1 0} {n2 0} {n3 0}]",
		"": "pass [n1 n2 n3], never map[], scores [{n1 0} {n2 0} {n3 0}]",
	} {
		pod := &v1.Pod{}
		if dataset != "" {
			pod.Annotations = map[string]string{annotation: dataset}
		}
		passed, _, never, err := x.Filter(pod, nodes)
		if err != nil {
			t.Fatal(err)
		}
		scores, _, err := x.Prioritize(pod, nodes)
		if err != nil {
			t.Fatal(err)
		}
		names := []string{}
		for _, n := range passed {
			names = append(names, n.Node().Name)
		}
		if got := fmt.Sprintf("pass %v, never %v, scores %v", names, never, *scores); got != want {
			t.Errorf("%q:\n got %s\nwant %s", dataset, got, want)
		}
	}
}

func TestWhatIsNoQuestionIsRefused(t *testing.T) {
	server := httptest.NewServer(Inventory{}.Handler())
	defer server.Close()
	for _, body := range []string{"", "{}", `{"Pod": {}}`} {
		response, err := http.Post(server.URL+"/filter", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusBadRequest {
			t.Errorf("%q: %s", body, response.Status)
		}
	}
}
