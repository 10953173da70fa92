// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth_test

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// TestStories runs testdata/*.txt. The commands of a story:
//
//	cluster ZONE=NODES... [marks-at-rate]  a new cluster; nodes are ZONE-1, ZONE-2, ...
//	add NAME ZONE [unreported]             adds a node; remove NAME: deletes it
//	silent NAME|ZONE=COUNT                 kubelets fall silent; "speaks": they return
//	condition NAME TYPE=STATUS             the kubelet reports a condition
//	cordon NAME; uncordon NAME
//	taint NAME TAINT; untaint NAME KEY     by another client
//	label NAME KEY=VALUE
//	stale N; fail N                        the next N writes conflict, or fail
//	cut; back                              the watches break, or work again
//	frozen DURATION                        the controller's process is stopped for that time
//	skew DURATION [NAME]                   the clocks of all nodes, or of one node, are ahead
//	restart                                a new controller without state takes over
//	run DURATION [each DURATION]           time passes: prints the actions, or a table at that interval
//	show NAME                              prints the node
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &story{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.tell(t, d) })
	})
}

type story struct {
	*cluster
	lines strings.Builder
}

func (s *story) tell(t *testing.T, d *datadriven.TestData) string {
	s.lines.Reset()
	word := func(i int) string {
		if i < len(d.CmdArgs) {
			return d.CmdArgs[i].Key
		}
		return ""
	}
	switch d.Cmd {
	case "cluster":
		s.begin(t, d)
	case "add":
		if d.HasArg("unreported") {
			s.addUnreported(word(0), word(1))
		} else {
			s.add(word(0), word(1))
		}
	case "remove":
		s.remove(word(0))
	case "silent", "speaks":
		s.silence(t, d, d.Cmd == "silent")
	case "condition":
		m := s.nodes[word(0)]
		s.setCondition(m, v1.NodeConditionType(word(1)), v1.ConditionStatus(d.CmdArgs[1].Vals[0]))
		s.changed(m)
	case "cordon", "uncordon":
		m := s.nodes[word(0)]
		m.Spec.Unschedulable = d.Cmd == "cordon"
		s.changed(m)
	case "taint", "untaint":
		s.taint(t, s.nodes[word(0)], d.Input)
	case "label":
		m := s.nodes[word(0)]
		m.Labels[word(1)] = d.CmdArgs[1].Vals[0]
		s.changed(m)
	case "stale":
		s.stale = number(t, word(0))
	case "fail":
		s.line.Rules = []virtual.Rule{{Fault: virtual.Failing, Chance: 1, Writes: true, Count: number(t, word(0))}}
	case "cut", "back":
		s.see(d.Cmd == "cut")
	case "frozen":
		s.freeze(duration(t, word(0)))
	case "skew":
		if at := duration(t, word(0)); len(d.CmdArgs) > 1 {
			s.nodes[word(1)].skew = at
		} else {
			s.skew = at
		}
	case "restart":
		s.process.Start()
	case "run":
		return s.pass(t, d)
	case "show":
		return show(s.nodes[word(0)])
	default:
		return "unknown command " + d.Cmd
	}
	return s.lines.String()
}

func (s *story) begin(t *testing.T, d *datadriven.TestData) {
	options := nodehealth.Defaults()
	options.MarkPodsAtZoneRate = d.HasArg("marks-at-rate")
	s.cluster = newCluster(options)
	for _, arg := range d.CmdArgs {
		for i := range len(arg.Vals) {
			for n := range number(t, arg.Vals[i]) {
				s.add(fmt.Sprintf("%s-%d", arg.Key, n+1), arg.Key)
			}
		}
	}
	s.Run(time.Minute)
	s.say = func(what string) {
		fmt.Fprintf(&s.lines, "%7.1fs %s\n", s.Now.Sub(begin).Seconds()-60, what)
	}
}

// silence makes kubelets silent, or makes them report again. Each argument is NAME or ZONE=COUNT,
// which selects the first COUNT nodes of the zone that are not in the desired state yet.
func (s *story) silence(t *testing.T, d *datadriven.TestData, silent bool) {
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) == 0 {
			s.nodes[arg.Key].silent = silent
			continue
		}
		left := number(t, arg.Vals[0])
		for _, name := range s.order {
			if m := s.nodes[name]; left > 0 && m.silent != silent && m.Labels[v1.LabelTopologyZone] == arg.Key {
				m.silent = silent
				left--
			}
		}
	}
}

func (s *story) taint(t *testing.T, m *machine, change string) {
	parsed, err := rules.ParseTaintChange(strings.Fields(change))
	if err != nil {
		t.Fatal(err)
	}
	m.Spec.Taints = parsed.Apply(m.Spec.Taints)
	s.changed(m)
}

func (s *story) see(cut bool) {
	for _, w := range s.watches {
		if cut {
			w.Cut(time.Hour, false)
		} else {
			w.Restore(false)
		}
	}
}

func (s *story) pass(t *testing.T, d *datadriven.TestData) string {
	total := duration(t, d.CmdArgs[0].Key)
	if len(d.CmdArgs) == 1 {
		s.Run(total)
		return s.lines.String()
	}
	each := duration(t, d.CmdArgs[1].Vals[0])
	say := s.say
	s.say = func(string) {}
	defer func() { s.say = say }()
	var out strings.Builder
	for passed := time.Duration(0); passed < total; passed += each {
		s.Run(each)
		fmt.Fprintf(&out, "after %v\n%s", passed+each, s.table())
	}
	return out.String()
}

func show(m *machine) string {
	var out strings.Builder
	for _, c := range m.Status.Conditions {
		fmt.Fprintf(&out, "%s=%s %s\n", c.Type, c.Status, c.Reason)
	}
	for i := range m.Spec.Taints {
		taint := &m.Spec.Taints[i]
		at := "no time"
		if taint.TimeAdded != nil {
			at = "since " + strconv.Itoa(int(taint.TimeAdded.Sub(begin).Seconds())-60) + "s"
		}
		fmt.Fprintf(&out, "%s %s\n", taint.ToString(), at)
	}
	labels := maps.Clone(m.Labels)
	delete(labels, v1.LabelTopologyRegion)
	delete(labels, v1.LabelTopologyZone)
	if len(labels) > 0 {
		fmt.Fprintln(&out, labels)
	}
	if m.marked > 0 {
		fmt.Fprintf(&out, "its pods were marked %d times\n", m.marked)
	}
	return out.String()
}

func duration(t *testing.T, s string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
