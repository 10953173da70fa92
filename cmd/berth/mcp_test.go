// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"sigs.k8s.io/yaml"

	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
)

const (
	assistantPage = "../../docs/tasks/assistants.md"
	// longestShown is the maximum length of an answer on the page in lines.
	longestShown = 20
)

type toolArguments = map[string]any

// operatorQuestions are an operator's questions about testdata/mcp.yaml, with the tool calls of an
// assistant and a part of each answer.
var operatorQuestions = []struct {
	asked, tool string
	with        toolArguments
	answer      string
}{
	{"What is pending, and why?", "pending", toolArguments{}, "job/train"},
	{"Only in the namespace bank?", "pending", toolArguments{"namespace": "bank"}, "No pod is pending in namespace bank"},
	{"Why does shop/reports not run?", "explain", toolArguments{"namespace": "shop", "pod": "reports"}, "cpu: wants 3, 2500m free of 4 (node-a)"},
	{"And the training pod?", "explain", toolArguments{"namespace": "ml", "pod": "train-x7"}, "Insufficient nvidia.com/gpu"},
	{"Could the cache also run on node-a?", "explain", toolArguments{"namespace": "shop", "pod": "cache", "node": "node-a"}, "node-a"},
	{"How many more replicas of web have room?", "fits", toolArguments{"namespace": "shop", "like": "deployment/web", "max": true},
		"There is room for 1 more. Nodes: node-a (1)."},
	{"I want to start a Job with four pods of 2 CPUs. Do they all fit?", "fits", toolArguments{"namespace": "ml",
		"manifest": "{apiVersion: batch/v1, kind: Job, metadata: {name: load}, spec: {parallelism: 4, completions: 4, template: " +
			"{spec: {restartPolicy: Never, containers: [{name: c, image: i, resources: {requests: {cpu: 2}}}]}}}}"},
		"There is room for 1 of 4 pods."},
	{"How full are the zones?", "capacity", toolArguments{"by": "zone"}, "zone-c"},
	{"Can I drain node-a?", "what_if", toolArguments{"operations": []string{"drain", "node/node-a"}}, "shop/web"},
	{"What if I scale web to 4?", "what_if", toolArguments{"namespace": "shop", "operations": []string{"scale", "deployment/web", "--replicas", "4"}}, "pending"},
	{"What if we had another node like node-a?", "what_if", toolArguments{"operations": []string{"add-nodes", "1", "--like", "node/node-a"}}, "shop/reports"},
	{"Then delete the cache.", "delete", toolArguments{"pod": "cache"}, `unknown tool "delete"`},
}

// TestTwelveQuestionsOfAnOperator starts berth mcp as an assistant does, asks through the SDK's
// client, and keeps the transcript of the documentation current. The API server fails the test on
// every request that is not a read.
func TestTwelveQuestionsOfAnOperator(t *testing.T) {
	api := apitest.New(t)
	objects, err := os.ReadFile("testdata/mcp.yaml")
	if err != nil {
		t.Fatal(err)
	}
	before := func(age time.Duration) string { return time.Now().Add(-age).UTC().Format(time.RFC3339) }
	dated := strings.NewReplacer("CREATED", before(210*time.Minute), "LATER", before(70*time.Minute)).Replace(string(objects))
	for text := range strings.SplitSeq(dated, "\n---\n") {
		var o apitest.Object
		if err := yaml.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		api.Set("", o)
	}
	kubeconfig := file(t, "kubeconfig", fmt.Sprintf(
		"{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c}}], clusters: [{name: c, cluster: {server: %q}}]}", api.Config.Host))

	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	child := exec.Command(program, "mcp", "--kubeconfig", kubeconfig)
	child.Env, child.Stderr = append(os.Environ(), asCommand+"=1"), &logged
	client := mcp.NewClient(&mcp.Implementation{Name: "test"}, nil)
	session, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: child, TerminateDuration: time.Minute}, nil)
	if err != nil {
		t.Fatal(err, logged.String())
	}
	var transcript strings.Builder
	for _, q := range operatorQuestions {
		text := ""
		result, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: q.tool, Arguments: q.with})
		if err != nil {
			text = err.Error()
		} else {
			text = result.Content[0].(*mcp.TextContent).Text
		}
		if !strings.Contains(text, q.answer) || err == nil && result.IsError {
			t.Errorf("%s: %s", q.asked, text)
		}
		encoded, _ := json.Marshal(q.with)
		fmt.Fprintf(&transcript, "> %s\n%s %s\n\n%s\n\n", q.asked, q.tool, encoded, shorten(text))
	}
	if err := session.Close(); err != nil || logged.Len() > 0 {
		t.Errorf("%v, %s", err, logged.String())
	}
	changing := regexp.MustCompile(`http://127\.0\.0\.1:\d+|\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}Z`)
	checkTranscript(t, changing.ReplaceAllString(strings.TrimSpace(transcript.String())+"\n", "..."))
}

// shorten returns the first lines of an answer.
func shorten(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if more := len(lines) - longestShown; more > 1 {
		lines = append(lines[:longestShown], fmt.Sprintf("(and %d more lines)", more))
	}
	return strings.Join(lines, "\n")
}

// checkTranscript compares the transcript with the page's block of text.
func checkTranscript(t *testing.T, transcript string) {
	t.Helper()
	text, err := os.ReadFile(assistantPage)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(text), "```text\n")
	was, tail, found := strings.Cut(rest, "```\n")
	switch {
	case !found:
		t.Fatal("the page has no block of text")
	case was == transcript:
	case *update:
		if err := os.WriteFile(assistantPage, []byte(head+"```text\n"+transcript+"```\n"+tail), 0o600); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not current: go test ./cmd/berth -run Operator -update; now\n%s", assistantPage, transcript)
	}
}
