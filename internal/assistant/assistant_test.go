// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package assistant

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
	"github.com/berth-k8s/berth/internal/inspect/whatif"
	"github.com/berth-k8s/berth/internal/queryserver"
)

var update = flag.Bool("update", false, "write the transcript into docs/tasks/assistants.md")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const page = "../../docs/tasks/assistants.md"

// cluster is two nodes of 4 CPUs in two zones. On node-a, 3 CPUs are requested; on node-b, 2. A pod
// of 6 CPUs, and one for a missing label, are pending.
func cluster(t *testing.T) *queryserver.Server {
	t.Helper()
	api := apitest.New(t)
	set := func(resource, kind, namespace, name string, spec, status map[string]any) {
		api.Set(resource, apitest.Object{"apiVersion": "v1", "kind": kind, "spec": spec, "status": status, "metadata": map[string]any{
			"namespace": namespace, "name": name, "uid": namespace + name, "resourceVersion": "1",
			"labels": map[string]any{"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": strings.Replace(name, "node", "zone", 1)}}})
	}
	set("namespaces", "Namespace", "", "shop", nil, nil)
	for _, name := range []string{"node-a", "node-b"} {
		set("nodes", "Node", "", name, nil, map[string]any{"allocatable": map[string]any{"cpu": "4", "memory": "8Gi", "pods": "10"},
			"conditions": []map[string]any{{"type": "Ready", "status": "True"}}})
	}
	pod := func(name, on, cpu string, more map[string]any) {
		spec := map[string]any{"nodeName": on, "schedulerName": "default-scheduler", "nodeSelector": more,
			"containers": []map[string]any{{"name": "c", "image": "i", "resources": map[string]any{"requests": map[string]any{"cpu": cpu}}}}}
		set("pods", "Pod", "shop", name, spec, map[string]any{"phase": "Pending"})
	}
	pod("web-1", "node-a", "3", nil)
	pod("web-2", "node-b", "2", nil)
	pod("large", "", "6", nil)
	pod("gpu", "", "1", map[string]any{"accelerator": "gpu"})

	o := queryserver.Defaults()
	o.Running = func(_ context.Context, leases []*coordinationv1.Lease, at time.Time) (*config.Running, error) {
		return config.RunningOf(nil, leases, nil, at)
	}
	o.Parse = func(args []string, namespace string) ([]whatif.Step, error) {
		switch args[0] {
		case "cordon":
			return []whatif.Step{{Words: strings.Join(args, " "), Operation: &simulate.Operation{Cordon: &simulate.Nodes{Node: strings.TrimPrefix(args[1], "node/")}}}}, nil
		case "add-nodes":
			return []whatif.Step{{Words: strings.Join(args, " "), Operation: &simulate.Operation{AddNodes: &simulate.AddNodes{Count: 1, Like: "node-a"}}}}, nil
		}
		return nil, fmt.Errorf("unknown operation %q", args[0])
	}
	s, err := queryserver.New(api.Config, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Follow(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return s
}

type arguments = map[string]any

// questions are an operator's questions, with the tool calls of an assistant and a part of each
// answer.
var questions = []struct {
	asked, tool string
	with        arguments
	says        string
}{
	{"What is pending, and why?", "pending", arguments{}, "pod/large"},
	{"Only in the namespace bank?", "pending", arguments{"namespace": "bank"}, "No pod"},
	{"Why does shop/large not run?", "explain", arguments{"namespace": "shop", "pod": "large"}, "Insufficient cpu"},
	{"And shop/gpu?", "explain", arguments{"namespace": "shop", "pod": "gpu"}, "accelerator"},
	{"Why is web-1 on node-a?", "explain", arguments{"namespace": "shop", "pod": "web-1"}, "node-a"},
	{"Could web-1 also run on node-b?", "explain", arguments{"namespace": "shop", "pod": "web-1", "node": "node-b"}, "node-b"},
	{"How many more pods like web-2 fit?", "fits", arguments{"namespace": "shop", "like": "pod/web-2", "max": true}, "room for 1 more"},
	{"Does a pod with 1500m fit, twice?", "fits", arguments{"namespace": "shop", "count": 2,
		"manifest": "{apiVersion: v1, kind: Pod, metadata: {name: new}, spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 1500m}}}]}}"}, "room for 1 of 2"},
	{"How full are the zones?", "capacity", arguments{"by": "zone"}, "zone-a"},
	{"What if node-b is cordoned?", "what_if", arguments{"operations": []string{"cordon", "node/node-b"}}, "cordon node/node-b"},
	{"What if we had another node?", "what_if", arguments{"operations": []string{"add-nodes", "1", "--like", "node/node-a"}}, "add-nodes"},
	{"Delete web-1.", "delete", arguments{"pod": "web-1"}, "unknown tool"},
}

// TestTwelveQuestionsOfAnOperator asks through the SDK's client, and keeps the transcript of the
// documentation current.
func TestTwelveQuestionsOfAnOperator(t *testing.T) {
	session := connect(t)
	var transcript strings.Builder
	for _, q := range questions {
		text := ""
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: q.tool, Arguments: q.with})
		if err != nil {
			text = err.Error()
		} else {
			text = result.Content[0].(*mcp.TextContent).Text
		}
		if !strings.Contains(text, q.says) {
			t.Errorf("%s: %s", q.asked, text)
		}
		encoded, _ := json.Marshal(q.with)
		fmt.Fprintf(&transcript, "> %s\n%s %s\n\n%s\n\n", q.asked, q.tool, encoded, strings.TrimSpace(text))
	}
	changing := regexp.MustCompile(`http://127\.0\.0\.1:\d+|\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}Z|resourceVersion \d+`)
	age := regexp.MustCompile(`\b\d+s\b`)
	checkTranscript(t, age.ReplaceAllString(changing.ReplaceAllString(transcript.String(), "..."), "0s"))
}

func connect(t *testing.T) *mcp.ClientSession {
	t.Helper()
	here, there := mcp.NewInMemoryTransports()
	served, err := New(cluster(t), "test").Connect(t.Context(), there, nil)
	if err != nil {
		t.Fatal(err)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil).Connect(t.Context(), here, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close(); _ = served.Wait() })
	return session
}

// checkTranscript compares the transcript with the page's last block.
func checkTranscript(t *testing.T, transcript string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(text), "```text\n")
	was, tail, found := strings.Cut(rest, "```\n")
	now := strings.TrimSpace(transcript) + "\n"
	switch {
	case !found:
		t.Fatal("the page has no block of text")
	case was == now:
	case *update:
		if err := os.WriteFile(page, []byte(head+"```text\n"+now+"```\n"+tail), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not current: go test ./internal/assistant -update; now\n%s", page, now)
	}
}

// TestToolsOnlyRead verifies that every tool is marked as reading only.
func TestToolsOnlyRead(t *testing.T) {
	tools, err := connect(t).ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range tools.Tools {
		if tool.Annotations == nil || !tool.Annotations.ReadOnlyHint {
			t.Errorf("%s is not marked", tool.Name)
		}
	}
	if len(tools.Tools) != 5 {
		t.Errorf("%d tools", len(tools.Tools))
	}
}
