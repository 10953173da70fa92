package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/cri"
)

const (
	// silence is how long the runtime may fail to answer before the node is NotReady, as with the
	// kubelet. A restart of the runtime takes less.
	silence = 30 * time.Second
	// listSilence is the same for listing pods, which takes longer the more there are. It is the
	// threshold of the kubelet's PLEG.
	listSilence = 3 * time.Minute
	// askEvery is how often the runtime's status is read.
	askEvery = 5 * time.Second
)

// health is the state of the container runtime. Readers of it never wait for the runtime: its own
// goroutine asks, and may hang for as long as it takes.
type health struct {
	mu sync.Mutex
	// began is when the first question was asked; zero: none yet.
	began time.Time
	// answered is when the runtime last reported its status, and state what it reported.
	answered time.Time
	state    cri.State
	// listed is when its pods were last listed.
	listed time.Time
}

func (h *health) begin(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.began.IsZero() {
		h.began = now
	}
}

func (h *health) answer(now time.Time, state cri.State) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answered, h.state = now, state
}

// told is the runtime's last answer.
func (h *health) told() cri.State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

func (h *health) list(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.listed = now
}

// wrong returns why the node cannot run pods; nil if it can. The message names points in time, not
// durations, so that it stays the same as long as nothing changes.
func (h *health) wrong(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.answered.IsZero() && (h.began.IsZero() || now.Sub(h.began) < silence) {
		return errors.New("container runtime status check may not have completed yet")
	}
	if err := h.unanswered(now); err != nil {
		return err
	}
	if h.state.Complaint != "" {
		return errors.New(h.state.Complaint)
	}
	return h.unlisted(now)
}

func (h *health) unanswered(now time.Time) error {
	if last := later(h.answered, h.began); !h.began.IsZero() && now.Sub(last) >= silence {
		return fmt.Errorf("container runtime is down: it has not answered since %s", last.UTC().Format(time.RFC3339))
	}
	return nil
}

func (h *health) unlisted(now time.Time) error {
	if last := later(h.listed, h.began); !h.began.IsZero() && now.Sub(last) >= listSilence {
		return fmt.Errorf("PLEG is not healthy: pleg was last seen active at %s; threshold is %s", last.UTC().Format(time.RFC3339), listSilence)
	}
	return nil
}

// checks are those of /healthz about the runtime. Problems that the runtime reports about itself
// are no reason to restart the agent.
func (h *health) checks() map[string]func() error {
	check := func(of func(time.Time) error) func() error {
		return func() error {
			h.mu.Lock()
			defer h.mu.Unlock()
			return of(time.Now())
		}
	}
	return map[string]func() error{"runtime": check(h.unanswered), "pleg": check(h.unlisted), "syncloop": check(h.unlisted)}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// askRuntime polls the runtime's status, and triggers a write of the node's status when the verdict
// changes.
func (a *Agent) askRuntime(ctx context.Context) {
	a.health.begin(time.Now())
	var asking sync.WaitGroup
	defer asking.Wait()
	asking.Go(func() {
		for ctx.Err() == nil {
			state, err := a.runtime.State(ctx)
			if err == nil {
				a.health.answer(time.Now(), state)
			} else if ctx.Err() == nil {
				klog.InfoS("The container runtime does not say how it is; it is asked again", "err", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(askEvery):
			}
		}
	})
	told := ""
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		verdict := fmt.Sprint(a.health.wrong(time.Now()))
		if verdict != told {
			told = verdict
			a.reportNode()
		}
	}
}

// reportNode triggers a check of the node's status.
func (a *Agent) reportNode() {
	select {
	case a.nodeChanged <- struct{}{}:
	default:
	}
}
