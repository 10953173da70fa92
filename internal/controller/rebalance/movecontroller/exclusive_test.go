// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package movecontroller

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/internal/kube/fakeapi"
	"github.com/berth-k8s/berth/internal/kube/lead"
)

// process is one of several processes that exchange nodes.
type process struct {
	cut     atomic.Bool // it cannot reach the API server
	server  *fakeapi.Server
	working atomic.Bool
	holder  atomic.Value
	named   string // its identity, or ""
	ended   chan error
}

func (p *process) RoundTrip(r *http.Request) (*http.Response, error) {
	if p.cut.Load() {
		return nil, errors.New("no route to host")
	}
	return p.server.RoundTrip(r)
}

// start begins a process, and verifies that none of the others works meanwhile.
func (p *process) start(t *testing.T, lasts time.Duration, others ...*process) {
	config := &rest.Config{Host: "http://fake", Transport: p, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"}}
	go func() {
		p.ended <- Exclusively(t.Context(), config, p.named, func(holder string) { p.holder.Store(holder) },
			func(ctx context.Context, _ kubernetes.Interface) error {
				for _, other := range others {
					if other.working.Load() {
						t.Error("two processes exchange nodes")
					}
				}
				p.working.Store(true)
				defer p.working.Store(false)
				select {
				case <-ctx.Done():
				case <-time.After(lasts):
				}
				return ctx.Err()
			})
	}()
}

// TestOneProcessExchangesNodesAtATime verifies that a second process waits, with a message, until
// the first has ended, and that a process without connection stops before another one begins.
func TestOneProcessExchangesNodesAtATime(t *testing.T) {
	for _, cut := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			server := fakeapi.New()
			a, b := &process{server: server, ended: make(chan error, 1)}, &process{server: server, ended: make(chan error, 1)}
			a.start(t, time.Minute, b)
			time.Sleep(time.Second)
			b.start(t, time.Minute, a)
			time.Sleep(30 * time.Second)
			if holder, _ := b.holder.Load().(string); !a.working.Load() || b.working.Load() || holder == "" || a.holder.Load() != nil {
				t.Errorf("working: %v and %v; the second waits for %q", a.working.Load(), b.working.Load(), holder)
			}
			a.cut.Store(cut)
			if err := <-a.ended; cut != errors.Is(err, lead.ErrLost) || !cut && err != nil {
				t.Errorf("cut %v: the first ended with %v", cut, err)
			}
			time.Sleep(20 * time.Second)
			if !b.working.Load() {
				t.Errorf("cut %v: the second has not begun", cut)
			}
			if err := <-b.ended; err != nil {
				t.Errorf("the second ended with %v", err)
			}
		})
	}
}

// TestTheNextLeaderDoesNotWaitForExchanges verifies that a process with the identity of a killed
// one begins immediately: it may have this identity because it leads.
func TestTheNextLeaderDoesNotWaitForExchanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fakeapi.New()
		var all []*process
		for range 3 {
			all = append(all, &process{server: server, ended: make(chan error, 1)})
		}
		options := lead.Defaults("berth-controller")
		all[0].named, all[1].named = options.Within(), options.Within()
		killed, leader, command := all[0], all[1], all[2]
		killed.start(t, time.Hour)
		time.Sleep(time.Minute)
		killed.cut.Store(true)
		leader.start(t, time.Minute)
		command.start(t, time.Minute, leader)
		time.Sleep(time.Second)
		if !leader.working.Load() || leader.holder.Load() != nil {
			t.Errorf("working: %v; it waits for %v", leader.working.Load(), leader.holder.Load())
		}
		for _, p := range all {
			if err := <-p.ended; (p == killed) != (err != nil) {
				t.Errorf("%q ended with %v", p.named, err)
			}
		}
	})
	if without := (&lead.Options{Name: "a"}); without.Within() != "" {
		t.Error("without election, processes do not exclude each other by another Lease")
	}
}
