// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/node/simnodes"
	"github.com/berth-k8s/berth/internal/usage"
)

// TestWhatIsToldOfEvictionsDoesNotSteerTheTerminal verifies that the API server's message about an
// eviction, possibly a webhook's, cannot send control sequences to the terminal.
func TestWhatIsToldOfEvictionsDoesNotSteerTheTerminal(t *testing.T) {
	const evil = "no\x1b]0;title\x07\nnode/n1 drained"
	var out bytes.Buffer
	print.PrintLine(&out, (&execute.DrainProgress{Result: execute.Withheld, Waiting: 1, Message: evil}).Line())
	print.PrintLine(&out, (&execute.DrainProgress{Pod: &rebalance.Departure{Namespace: "a", Name: "b"}, Result: execute.Stuck, Message: evil}).Line())
	print.PrintLine(&out, (&execute.MoveProgress{Message: evil}).Line())
	if got := out.String(); strings.ContainsAny(got, "\x1b\x07") || strings.Count(got, "\n") != 3 || strings.Count(got, `no\x1b]0;title\a\nnode/n1 drained`) != 3 {
		t.Errorf("%q", got)
	}
}

// TestNodesToDrainAreNamedAsInKubectl verifies node arguments in the form of kubectl and of berth
// what-if drain.
func TestNodesToDrainAreNamedAsInKubectl(t *testing.T) {
	for args, want := range map[string]string{
		"a b": "a b", "node/a nodes/b no/c": "a b c", "node a": "a", "nodes a b": "a b", "node": "node", "a node/a a": "a", "pod/a": "", "node/": "",
	} {
		names, err := parse.Node.NamesOf(strings.Fields(args))
		if strings.Join(names, " ") != want || (err != nil) != (want == "") || err != nil && !usage.IsError(err) {
			t.Errorf("%s: %v, %v", args, names, err)
		}
	}
	nodes, _, err := parse.NodesAndConditions([]string{"node", "node/a", "b", "MemoryPressure=True"})
	which := simnodes.Selection{Names: []string{"no/c", "d"}}
	if err = errors.Join(err, addNamed(&which, nodes)); err != nil || strings.Join(which.Names, " ") != "a b c d" {
		t.Errorf("nodes to fail: %v, %v", which, err)
	}
	for _, wrong := range []string{"pod/a", "node/", ""} {
		if err := addNamed(&simnodes.Selection{Names: []string{wrong}}, nil); !usage.IsError(err) {
			t.Errorf("--node %q: %v", wrong, err)
		}
	}
	if err := addNamed(&simnodes.Selection{}, nil); !usage.IsError(err) {
		t.Errorf("no node: %v", err)
	}
}

// TestServerDryRunFailsIfAnEvictionWouldBeRefused verifies that scripts see a refused eviction in a
// server dry run as a failure.
func TestServerDryRunFailsIfAnEvictionWouldBeRefused(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/api/v1/namespaces/shop/pods/held/eviction" {
			w.WriteHeader(http.StatusTooManyRequests)
			fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "Cannot evict pod", "code": 429}`)
			return
		}
		fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Success"}`)
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	plan := &rebalance.Draining{Pods: []rebalance.Departure{{Namespace: "shop", Name: "free"}, {Namespace: "shop", Name: "held"}}}
	var out bytes.Buffer
	err = (&drain{}).askEvictions(t.Context(), &out, client, plan)
	if err == nil || !strings.Contains(err.Error(), "1 of 2 pods") || !strings.Contains(out.String(), "shop/held: would be refused") {
		t.Errorf("%v, says %s", err, out.String())
	}
	plan.Pods = plan.Pods[:1]
	if err := (&drain{}).askEvictions(t.Context(), &out, client, plan); err != nil {
		t.Error(err)
	}
}
