// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// saver is an out-of-tree plugin at PostFilter.
type saver struct{ answers PostFilterResult }

func (*saver) Name() string { return "Saver" }

func (s *saver) RunPostFilter(*Attempt, func() *decide.Evaluation) PostFilterResult { return s.answers }

// secondSaver is another out-of-tree plugin at PostFilter.
type secondSaver struct{ *saver }

func (secondSaver) Name() string { return "Second" }

// TestARescueThatFailsNominatesNothing verifies that, as upstream, a nomination by one plugin at
// PostFilter is kept if the next plugin cannot help, and is discarded if the next plugin fails.
func TestARescueThatFailsNominatesNothing(t *testing.T) {
	node := "n"
	for _, row := range []struct {
		name      string
		second    PostFilterResult
		nominated bool
		message   string
	}{
		{"it cannot help either", PostFilterResult{Message: "no luck"}, true, "wait for n, no luck"},
		{"it fails", PostFilterResult{Err: errors.New("broken"), Final: true}, false, "broken"},
		{"it fails and nominates", PostFilterResult{Err: errors.New("broken"), Final: true, Nominate: &node}, false, "broken"},
	} {
		t.Run(row.name, func(t *testing.T) {
			first, second := &saver{answers: PostFilterResult{Nominate: &node, Message: "wait for n"}}, secondSaver{&saver{answers: row.second}}
			d := plugins.Default()
			points := map[plugins.Point][]string{}
			for point, names := range d.At {
				points[point] = slices.Clone(names)
			}
			points[plugins.PostFilter] = []string{first.Name(), second.Name()}
			made, err := plugins.NewProfile(v1.DefaultSchedulerName, points, d.Weights, nil)
			if err != nil {
				t.Fatal(err)
			}
			core, err := New(Options{Profiles: []Profile{{Profile: made, Extensions: []Extension{first, second}}}})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range []Event{Follows{}, Led{}, Seen{Nodes, aNode("n", "1")}, Seen{Pods, aPod("p", "2")}} {
				core.Step(begin, e)
			}
			text := ""
			for _, action := range core.Step(begin, Tick{}) {
				text += action.String() + "\n"
			}
			if nominated := strings.Contains(text, `nominated "n"`); nominated != row.nominated || !strings.Contains(text, row.message) {
				t.Errorf("nominated: %t, want %t with %q in:\n%s", nominated, row.nominated, row.message, text)
			}
		})
	}
}
