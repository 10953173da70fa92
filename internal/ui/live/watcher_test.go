package live_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/inspect/snapshot/fakeapi"
	"github.com/berth-k8s/berth/internal/ui/live"
	"github.com/berth-k8s/berth/internal/ui/model"
)

func node(name string, taints ...map[string]any) fakeapi.Object {
	return fakeapi.Object{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name, "uid": name}, "spec": map[string]any{"taints": taints}}
}

func follow(t *testing.T, api *fakeapi.Server) *live.Watcher {
	t.Helper()
	w, err := live.New(api.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	return w
}

// next reads what comes after a number, as soon as something does.
func next(t *testing.T, w *live.Watcher, after uint64, enough func([]live.Frame, live.Watches) bool) ([]live.Frame, live.Watches) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		frames, watches, changed := w.Read(after)
		if enough(frames, watches) {
			return frames, watches
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("nothing comes after %d: %d frames, %+v", after, len(frames), watches)
		}
	}
}

func some(frames []live.Frame, _ live.Watches) bool { return len(frames) > 0 }

func delta(t *testing.T, f live.Frame) (d model.Delta) {
	t.Helper()
	if err := json.Unmarshal(f.Data, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestTheStateComesFirstAndThenWhatChanges(t *testing.T) {
	api := fakeapi.New(t)
	api.Refuse("events", http.StatusForbidden)
	api.PageLimit = 2
	for _, name := range []string{"node-1", "node-2", "node-3", "node-4", "node-5"} {
		api.Set("nodes", node(name))
	}
	w := follow(t, api)
	frames, _ := next(t, w, 0, some)
	state := delta(t, frames[0])
	if !frames[0].Fresh || !state.Fresh || len(state.Nodes.Rows) != 5 {
		t.Fatalf("%+v", state)
	}
	api.Set("nodes", node("node-2", map[string]any{"key": "k", "effect": "NoSchedule"}))
	frames, _ = next(t, w, frames[0].Seq, some)
	change := delta(t, frames[0])
	if frames[0].Fresh || len(change.Nodes.Rows) != 1 || change.Nodes.Rows[0].Taints[0] != "k:NoSchedule" {
		t.Errorf("%+v", change)
	}
	if frames, _, _ := w.Read(0); len(frames) != 1 || !frames[0].Fresh || !strings.Contains(string(frames[0].Data), "k:NoSchedule") {
		t.Error("who comes now does not get the state of now")
	}
	if frames, _, _ := w.Read(1 << 40); len(frames) != 1 || !frames[0].Fresh {
		t.Error("who has a number that was never given out does not get the state")
	}
}

func TestWhatMayNotBeReadIsSaid(t *testing.T) {
	api := fakeapi.New(t)
	api.Refuse("events", http.StatusForbidden)
	w := follow(t, api)
	_, watches := next(t, w, 0, func(_ []live.Frame, w live.Watches) bool { return w.Listed && len(w.Lost) > 0 })
	if why := watches.Lost["events"]; why != "these credentials may not list and watch events" {
		t.Errorf("%q", why)
	}
	frames, _, _ := w.Read(0)
	if len(frames) != 1 || !frames[0].Fresh {
		t.Error("without events nothing is shown at all, not even an empty cluster")
	}
}
