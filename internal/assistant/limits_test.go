// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package assistant

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
	"github.com/berth-k8s/berth/internal/queryserver"
)

// TestAnswersNameUnreadableKinds asks an assistant of a cluster whose account may not list the
// persistent volumes.
func TestAnswersNameUnreadableKinds(t *testing.T) {
	api := apitest.New(t)
	api.Refuse("persistentvolumes", 403)
	api.Set("nodes", apitest.Object{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "a"},
		"status": map[string]any{"allocatable": map[string]any{"cpu": "4", "memory": "8Gi", "pods": "10"}}})
	o := queryserver.Defaults()
	o.Running = func(_ context.Context, leases []*coordinationv1.Lease, at time.Time) (*config.Running, error) {
		return config.RunningOf(nil, leases, nil, at)
	}
	asked, err := queryserver.New(api.Config, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() { asked.Follow(ctx) })
	t.Cleanup(func() { stop(); following.Wait() })
	session := connect(t, asked)
	for tool, arguments := range map[string]map[string]any{
		"capacity": {}, "pending": {},
		"fits": {"manifest": "{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: c, image: i}]}}"},
	} {
		r, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool, Arguments: arguments})
		if err != nil {
			t.Fatal(err)
		}
		if text := r.Content[0].(*mcp.TextContent).Text; !strings.Contains(text, "persistentvolumes") {
			t.Errorf("%s: %s", tool, text)
		}
	}
}
