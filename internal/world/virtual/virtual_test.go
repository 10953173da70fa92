// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package virtual_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

var begin = time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)

// toggle is a core that turns a switch on, and forgets it when it is deleted. Its events are the
// states "off", "on" and "gone" of the switch, the outcomes of its requests, and "tick".
type toggle struct {
	wait   time.Duration // time between two requests
	leaks  bool
	state  string
	flies  bool
	next   time.Time
	now    time.Time
	events *[]string
}

func (c *toggle) Step(now time.Time, event string) (actions []string) {
	c.now = now
	if c.events != nil {
		*c.events = append(*c.events, event)
	}
	switch event {
	case "off", "on":
		c.state = event
	case "gone":
		if !c.leaks {
			c.state = ""
		}
	case "tick":
	default:
		c.flies = false
	}
	if c.state == "off" && !c.flies && !now.Before(c.next) {
		c.flies, c.next = true, now.Add(c.wait)
		return []string{"turn"}
	}
	return nil
}

func (c *toggle) Wake() (time.Time, bool) {
	return c.next, c.state == "off" && !c.flies && c.next.After(c.now)
}

type world struct {
	*virtual.Time
	process *virtual.Process[string, string]
	line    virtual.Line[string, string]
	watch   *virtual.Watch
	state   string
}

func newWorld(core toggle) *world {
	w := &world{Time: virtual.NewTime(begin, 1, 1), state: "off"}
	w.process = &virtual.Process[string, string]{
		Time: w.Time, Tick: "tick", Do: w.send,
		New: func() virtual.Core[string, string] {
			life := core
			return &life
		},
	}
	w.process.Add()
	w.watch = virtual.NewWatch(w.process, 10*time.Millisecond, func() { w.process.Step(w.state) })
	w.line = virtual.Line[string, string]{Process: w.process, Least: time.Millisecond, Most: 2 * time.Millisecond}
	return w
}

func (w *world) send(string) {
	w.line.Send(virtual.Request[string]{
		Kind: "turn", Object: "switch",
		Do:          func() string { w.set("on"); return "OK" },
		Ineffective: func() string { return "OK" },
		Fail:        func(outcome response.Outcome, _ time.Duration) string { return outcome.String() },
	})
}

func (w *world) set(state string) {
	w.state = state
	w.watch.Show(func() { w.process.Step(state) })
}

func (w *world) subject() *virtual.Subject {
	return &virtual.Subject{
		Time: w.Time, Process: w.process, Faults: &w.line.Faults, Requests: &w.line.Requests, Watches: []*virtual.Watch{w.watch},
		Kinds: []string{"turn"}, SetClock: func(time.Duration) {}, Begin: func() { w.set("off") }, Recovers: 10 * time.Second,
		Wrong: func() []string {
			if w.state == "on" {
				return nil
			}
			return []string{"it is " + w.state}
		},
		Clear:   func() { w.set("gone") },
		Entries: func() int { return len(w.process.Core().(*toggle).state) },
	}
}

// TestVerifyFindsWhatItPromises verifies that Verify accepts a correct core, and finds a core that
// repeats requests without a pause, waits too long, or keeps deleted objects.
func TestVerifyFindsWhatItPromises(t *testing.T) {
	for name, test := range map[string]struct {
		core toggle
		want string
	}{
		"correct": {toggle{wait: 5 * time.Second}, ""},
		"storm":   {toggle{wait: 2 * time.Second}, "more than 20 requests within a minute"},
		"late":    {toggle{wait: time.Minute}, "it is off"},
		"leak":    {toggle{wait: 5 * time.Second, leaks: true}, "entries are left"},
	} {
		reports := []string{}
		injected := virtual.Verify(func() *virtual.Subject { return newWorld(test.core).subject() },
			func(format string, args ...any) { reports = append(reports, fmt.Sprintf(format, args...)) })
		found := slices.ContainsFunc(reports, func(r string) bool { return strings.Contains(r, test.want) })
		if (test.want == "") != (len(reports) == 0) || test.want != "" && !found {
			t.Errorf("%s: %d reports, expected %q: %q", name, len(reports), test.want, reports[:min(3, len(reports))])
		}
		for f := virtual.Lost; f <= virtual.Slow; f++ {
			if injected[virtual.Injection{Kind: "turn", Fault: f}] == 0 {
				t.Errorf("%s: no request was %s", name, f)
			}
		}
	}
}

// TestEachRequestHasOneResponse verifies for each fault that a request gets exactly one response,
// and whether it is carried out.
func TestEachRequestHasOneResponse(t *testing.T) {
	for fault, want := range map[virtual.Fault]string{
		virtual.None: "off, OK, on", virtual.Lost: "off, Failed", virtual.Unanswered: "off, on, Failed", virtual.Belated: "off, Failed, on",
		virtual.Forbidden: "off, Refused", virtual.Gone: "off, Gone", virtual.Busy: "off, Busy", virtual.Ineffective: "off, OK",
		virtual.ConflictingDone: "off, Conflict, on", virtual.Slow: "off, on, OK",
	} {
		events := []string{}
		w := newWorld(toggle{wait: time.Hour, events: &events})
		w.line.Rules = []virtual.Rule{{Fault: fault, Chance: 1, Delay: time.Second}}
		w.process.Start()
		w.Run(time.Minute)
		if got := strings.Join(events, ", "); got != want {
			t.Errorf("%s: %s, expected %s", fault, got, want)
		}
	}
}

// TestTwoProcessesGetTheirOwnResponses verifies that two processes with the same tasks see the same
// changes, including lists, that each gets the response to its own request only, and that responses
// are lost when the second process has ended.
func TestTwoProcessesGetTheirOwnResponses(t *testing.T) {
	for name, test := range map[string]struct {
		until time.Duration // time at which the second process ends
		want  string
	}{
		"both":   {time.Minute, "OK OK off off off on on on on"},
		"killed": {1500 * time.Microsecond, "OK off off off on on"},
	} {
		events := []string{}
		w := newWorld(toggle{wait: time.Hour, events: &events})
		w.line.Least, w.watch.Lag = w.line.Most, 20*time.Millisecond
		w.process.Start()
		w.process.SetTwin(true)
		w.After(test.until, func() { w.process.SetTwin(false) })
		w.Run(2 * time.Minute)
		slices.Sort(events)
		if got := strings.Join(events, " "); got != test.want {
			t.Errorf("%s: %s, expected %s", name, got, test.want)
		}
		if w.line.Sent["turn"] != 2 {
			t.Errorf("%s: %d requests, expected 2", name, w.line.Sent["turn"])
		}
	}
}

// TestWatchesKeepTheOrder verifies which changes a process sees, and in which order, if its watch
// lags, is held, breaks or is refused, and if the process is frozen or killed.
func TestWatchesKeepTheOrder(t *testing.T) {
	for name, test := range map[string]struct {
		act  func(w *world)
		want string
	}{
		"lag":     {func(w *world) { w.watch.Jitter = time.Second }, "0 1 2 3 4"},
		"hold":    {func(w *world) { w.watch.Hold(w.Now.Add(20 * time.Second)) }, "0 1 2 3 4"},
		"resume":  {func(w *world) { w.watch.Cut(20*time.Second, false) }, "0 1 2 3 4"},
		"list":    {func(w *world) { w.watch.Cut(2500*time.Millisecond, true) }, "0 2 3 4"},
		"refused": {func(w *world) { w.watch.Refuse(3 * time.Second) }, "0 2 4 4 4 4 4 4 4 4 4"},
		"frozen":  {func(w *world) { w.process.Freeze(20*time.Second, func() []string { return []string{"away"} }) }, "0 away 1 2 3 4"},
		"killed":  {func(w *world) { w.process.Kill(); w.After(2500*time.Millisecond, w.process.Start) }, "0 2 3 4"},
	} {
		events := []string{}
		w := newWorld(toggle{wait: time.Hour, events: &events})
		w.state = "0"
		w.process.Start()
		test.act(w)
		for i := range 4 {
			w.After(time.Duration(i+1)*time.Second, func() { w.set(fmt.Sprint(i + 1)) })
		}
		w.Run(30 * time.Second)
		if got := strings.Join(events, " "); got != test.want {
			t.Errorf("%s: %s, expected %s", name, got, test.want)
		}
	}
}
