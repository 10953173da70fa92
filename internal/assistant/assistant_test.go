// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package assistant

import (
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
	"github.com/berth-k8s/berth/internal/queryserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestToolsOnlyRead verifies that every tool is marked as reading only. The answers are tested with
// the command, in cmd/berth.
func TestToolsOnlyRead(t *testing.T) {
	asked, err := queryserver.New(apitest.New(t).Config, queryserver.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	session := connect(t, asked)
	tools, err := session.ListTools(t.Context(), nil)
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

// connect returns a client of the assistant.
func connect(t *testing.T, asked *queryserver.Server) *mcp.ClientSession {
	here, there := mcp.NewInMemoryTransports()
	served, err := New(asked, "test").Connect(t.Context(), there, nil)
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
