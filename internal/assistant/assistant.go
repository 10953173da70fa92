// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package assistant

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/queryserver"
)

// longest is the maximum length of an answer in bytes. Assistants read all of it.
const longest = 8 << 10

// New returns a server of the questions to s. The caller must run s.Follow.
func New(s *queryserver.Server, version string) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "berth", Title: "Berth, a Kubernetes scheduler", Version: version}, &mcp.ServerOptions{
		Instructions: "Reports why pods are pending or on their nodes, whether more pods fit, and the outcome of changes, " +
			"by the scheduler's own rules and the current state of the cluster. Nothing is changed.",
	})
	addTool(server, s, "fits", "Whether pods have a node now, how many more fit, where, and what limits them. "+
		"Give an existing object (like) or a manifest.",
		func(ctx context.Context, in fits) (string, error) {
			r, err := s.Fits(ctx, &berthv1alpha1.FitsRequest{
				Namespace: in.Namespace, Manifest: in.Manifest, Like: in.Like, Count: in.Count, Max: in.Max,
			})
			if err != nil {
				return "", err
			}
			return describeFits(r), nil
		})
	addTool(server, s, "explain", "Why a pod is on its node, or pending, and the changes that help.",
		func(ctx context.Context, in explain) (string, error) {
			r, err := s.Explain(ctx, &berthv1alpha1.ExplainRequest{Namespace: in.Namespace, Name: in.Pod, Node: in.Node})
			return limitsOf(r) + r.GetText(), err
		})

	addTool(server, s, "pending", "The pending pods by workload and reason, with the smallest change that helps.",
		func(ctx context.Context, in pending) (string, error) {
			r, err := s.Pending(ctx, &berthv1alpha1.PendingRequest{Namespace: in.Namespace, Selector: in.Selector})
			return limitsOf(r) + r.GetText(), err
		})
	addTool(server, s, "capacity", "Requested, allocatable and stranded room.", func(ctx context.Context, in capacity) (string, error) {
		r, err := s.Capacity(ctx, &berthv1alpha1.CapacityRequest{By: in.By})
		return limitsOf(r) + r.GetText(), err
	})
	addTool(server, s, "what_if", "The outcome of operations, in a simulation: drains, cordons, taints, more pods or nodes, "+
		"new replica counts.",
		func(ctx context.Context, in whatIf) (string, error) {
			r, err := s.WhatIf(ctx, &berthv1alpha1.WhatIfRequest{
				Namespace: in.Namespace, Operations: in.Operations, Manifest: in.Manifest, Catalog: in.Catalog,
			})
			return limitsOf(r) + r.GetText(), err
		})
	return server
}

type fits struct {
	Namespace string `json:"namespace,omitempty" jsonschema:"the namespace; by default, default"`
	Manifest  string `json:"manifest,omitempty" jsonschema:"pods or workloads in YAML or JSON"`
	Like      string `json:"like,omitempty" jsonschema:"an existing pod or workload, such as deployment/web"`
	Count     int32  `json:"count,omitempty" jsonschema:"copies of each pod; by default 1"`
	Max       bool   `json:"max,omitempty" jsonschema:"as many copies as fit"`
}

type explain struct {
	Namespace string `json:"namespace,omitempty" jsonschema:"the namespace; by default, default"`
	Pod       string `json:"pod" jsonschema:"the pod's name"`
	Node      string `json:"node,omitempty" jsonschema:"add the verdict of every plugin on this node"`
}

type pending struct {
	Namespace string `json:"namespace,omitempty" jsonschema:"the namespace; by default, all"`
	Selector  string `json:"selector,omitempty" jsonschema:"labels of the pods, such as app=web"`
}

type capacity struct {
	By string `json:"by,omitempty" jsonschema:"node, zone or shape; by default node"`
}

type whatIf struct {
	Namespace  string   `json:"namespace,omitempty" jsonschema:"the namespace of names without one; by default, default"`
	Operations []string `json:"operations" jsonschema:"arguments of berth what-if, such as [drain, node/a]"`
	Manifest   string   `json:"manifest,omitempty" jsonschema:"the input of apply -f -"`
	Catalog    string   `json:"catalog,omitempty" jsonschema:"the input of provision --catalog -"`
}

// addTool adds a question. Errors are answers for the assistant, not failures of the protocol.
func addTool[In any](server *mcp.Server, s *queryserver.Server, name, description string,
	ask func(context.Context, In) (string, error)) {
	tool := &mcp.Tool{Name: name, Description: description, Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true}}
	mcp.AddTool(server, tool, func(ctx context.Context, _ *mcp.CallToolRequest, in In) (*mcp.CallToolResult, any, error) {
		ctx, err := s.Local(ctx)
		if err != nil {
			return nil, nil, err
		}
		text, err := ask(ctx, in)
		if err != nil {
			return nil, nil, err
		}
		if len(text) > longest {
			text = strings.ToValidUTF8(text[:longest], "") + "\n(The rest is left out: ask about less at a time.)"
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil, nil
	})
}

// describeFits returns an answer in sentences.
func describeFits(r *berthv1alpha1.FitsResponse) string {
	text := fmt.Sprintf("There is room for %d more.", r.GetPlaced())
	if r.GetWanted() > 0 {
		text = fmt.Sprintf("There is room for %d of %d pods.", r.GetPlaced(), r.GetWanted())
	}
	if nodes := slices.Sorted(maps.Keys(r.GetNodes())); len(nodes) > 0 {
		text += " Nodes: " + answer.List(len(nodes), func(i int) string { return fmt.Sprintf("%s (%d)", nodes[i], r.GetNodes()[nodes[i]]) }) + "."
	}
	if r.GetStops() != "" {
		text += " One more does not fit: " + r.GetStops()
	}
	return limitsOf(r) + text
}

// limitsOf names the limits of an answer, before its text, which may be cut.
func limitsOf(r interface{ GetBasis() *berthv1alpha1.Basis }) (text string) {
	for _, reason := range r.GetBasis().GetLimits() {
		text += "Partial: " + reason + ".\n"
	}
	return text
}
