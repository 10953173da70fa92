// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"context"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// wonders is an extender that returns a PendingQuery until answered is set.
type wonders struct{ answered *bool }

func (wonders) Name() string                 { return "Wonders" }
func (wonders) Interested(*cluster.Pod) bool { return true }
func (e wonders) Filter(*cluster.Cluster, *cluster.Pod, []*cluster.Node) (map[*cluster.Node]*plugins.Rejection, error) {
	if !*e.answered {
		return nil, &plugins.PendingQuery{Target: e.Name(), Run: func(context.Context) {}}
	}
	return nil, nil
}
func (wonders) Score(*cluster.Cluster, *cluster.Pod, []*cluster.Node) ([]int64, error) {
	return nil, nil
}
func (wonders) Spare(_ *cluster.Cluster, _ *cluster.Pod, places []plugins.Place) ([]plugins.Place, error) {
	return places, nil
}

// TestAnAnswerForAPodThatIsGone verifies that the answer to a question is dropped if the pod was
// deleted, or replaced under the same name, in the meantime. The new pod is decided separately.
func TestAnAnswerForAPodThatIsGone(t *testing.T) {
	answered := false
	w := newWorld(1, false, func() []Profile {
		p := Profile{Profile: plugins.Default()}
		own := *p.Profile
		own.Extenders = append(own.Extenders, wonders{&answered})
		p.Profile = &own
		return []Profile{p}
	})
	w.putNode(aNode("n", "1"))
	w.deliver(Nodes)
	w.put(aPod("p", "1"))
	w.deliver(Pods)
	var asked Ticket
	for _, a := range w.core.Step(w.now, Tick{}) {
		if ask, ok := a.(Ask); ok {
			asked = ask.Ticket
		}
	}
	if asked == 0 {
		t.Fatal("nothing is asked aside")
	}
	gone := aPod("p", "1")
	w.core.Step(w.now, Gone{Pods, gone})
	answered = true
	for _, a := range w.core.Step(w.now, Answered{Ticket: asked}) {
		t.Errorf("for a pod that is gone: %s", a)
	}
	if b := w.core.Books(); b.Handlers+len(b.Assumed) != 0 {
		t.Errorf("under way: %+v", b)
	}
	next := aPod("p", "1")
	next.UID = "another"
	w.core.Step(w.now, Seen{Pods, next})
	text := ""
	for _, a := range w.core.Step(w.now, Tick{}) {
		text += a.String()
	}
	if !strings.Contains(text, "bind default/p to n") {
		t.Errorf("the pod that has its name: %q", text)
	}
}
