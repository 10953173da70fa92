package agent

import (
	"os"
	"path/filepath"
	"testing"
)

// If memory runs out, the kernel kills pods before the agent.
func TestAgentOutlivesPods(t *testing.T) {
	n, ctx := newNode(t)
	n.config.RuntimeEndpoint = "unix:///nowhere"
	n.machine.oomScore = filepath.Join(t.TempDir(), "oom_score_adj")
	if err := n.prepare(ctx); err == nil {
		t.Fatal("there is no such runtime")
	}
	if now, err := os.ReadFile(n.machine.oomScore); err != nil || string(now) != "-999" {
		t.Errorf("oom_score_adj is %q, %v", now, err)
	}
}
