// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// TestStories runs testdata/*.story.txt against an API in virtual time. The commands of a story:
//
//	story                          a new cluster and its controller; budgets=DURATION: BudgetsFor
//	node NAME                      a node is created; "remove-node NAME": it is deleted
//	pod NAME NODE grace=DURATION   a pod is created, with the tolerations given
//	edit NAME                      its tolerations change to those given
//	terminate NAME                 a user deletes it
//	taint NODE KEY [stamped]       as kubectl does, or as a controller, with timeAdded
//	untaint NODE KEY
//	slice NODE DEVICE...           a driver publishes a node's devices; "remove-slice NODE"
//	allocate POD DEVICE            a claim gives the pod a device of its node, with the tolerations given;
//	                               "deallocate POD" takes it back
//	taint-device NODE DEVICE KEY   a device is tainted in its slice; "untaint-device" likewise
//	rule NAME EFFECT [NODE]        a DeviceTaintRule for all devices, or a node's; "remove-rule"
//	late-devices for=D             no change of devices is delivered for that long
//	cut-devices for=D [list]       the watches of devices break, then resume or list again
//	refuse NAME times=N            a webhook refuses N deletes of the pod
//	faults [lost=P] [unanswered=P] [slow=D] [down=D] for=D
//	lose-answers                   the next delete is carried out, and its response is lost
//	late-nodes for=D               no change of a node is delivered for that long
//	cut-pods for=D [list]          the watch of pods breaks, then resumes or lists again
//	cut-nodes for=D [list]         the watch of nodes breaks, then resumes or lists again
//	kill, start                    the controller is killed, or started
//	clock ahead=DURATION           sets the controller's wall clock ahead of the API's by that much;
//	                               accepted=DURATION: pods may be deleted early by that much
//	run DURATION                   time passes; the output is the sequence of events
//
// With the argument "reads", run also prints reads and marks.
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !strings.HasSuffix(path, ".story.txt") {
			return
		}
		s := &story{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return s.tell(t, d)
		})
	})
}

type story struct {
	world *World
	lines strings.Builder
	reads bool
}

func (s *story) begin(t *testing.T, d *datadriven.TestData) {
	s.world = New(1)
	options := eviction.Options{Budgets: d.HasArg("budgets"), BudgetsFor: argument(t, d, "budgets"), Wall: s.world.Controller.Wall}
	s.world.NewCore = func() *eviction.Core { return eviction.New(options) }
	s.world.Trace = func(at time.Time, what string) {
		quiet := strings.HasPrefix(what, "read") || strings.HasPrefix(what, "mark")
		if s.reads || !quiet {
			fmt.Fprintf(&s.lines, "%6.1fs %s\n", at.Sub(Begin).Seconds(), what)
		}
	}
	if options.Budgets {
		s.world.Requests.Until = s.world.Now.Add(time.Hour) // a budget excuses a late eviction
	}
	s.world.Controller.Start()
}

func (s *story) tell(t *testing.T, d *datadriven.TestData) string {
	if d.Cmd == "story" {
		s.begin(t, d)
	}
	w := s.world
	s.lines.Reset()
	words := make([]string, 3)
	for i, arg := range d.CmdArgs {
		if len(arg.Vals) == 0 && i < len(words) {
			words[i] = arg.Key
		}
	}
	limit := w.Now.Add(argument(t, d, "for"))
	switch d.Cmd {
	case "story":
	case "node":
		w.AddNode(words[0])
	case "remove-node":
		w.RemoveNode(words[0])
	case "pod":
		if p := w.AddPod(words[0], words[1], mustTolerations(t, d.Input)); p != nil {
			p.Grace = argument(t, d, "grace")
		}
	case "edit":
		w.Edit(words[0], mustTolerations(t, d.Input))
	case "terminate":
		w.Terminate(w.PodNamed(words[0]))
	case "taint":
		w.Taint(words[0], words[1], "v", words[2] == "stamped")
	case "untaint":
		w.Untaint(words[0], words[1])
	case "slice", "remove-slice", "allocate", "deallocate", "taint-device", "untaint-device", "rule", "remove-rule", "late-devices", "cut-devices":
		s.tellOfDevices(t, d, words, limit)
	case "refuse":
		var times int
		d.ScanArgs(t, "times", &times)
		w.Requests.Until = w.Now.Add(time.Hour)
		w.RefuseDeletes(words[0], times)
	case "lose-answers":
		w.Requests.Line.Rules = []virtual.Rule{{Fault: virtual.Unanswered, Chance: 1, Kind: "Delete", Count: 1}}
	case "faults":
		s.faults(t, d, limit)
	case "late-nodes":
		w.HoldNodes(limit)
	case "cut-pods":
		w.CutPods(limit.Sub(w.Now), d.HasArg("list"))
	case "cut-nodes":
		w.CutNodes(limit.Sub(w.Now), d.HasArg("list"))
	case "kill":
		w.Controller.Kill()
	case "start":
		w.Requests.Until = w.Now // the time without a controller excuses late evictions
		w.Controller.Start()
	case "clock":
		w.Controller.Ahead = argument(t, d, "ahead")
		w.Truth.EarlyBy = argument(t, d, "accepted")
	case "run":
		s.reads = d.HasArg("reads")
		w.Run(mustDuration(t, words[0]))
		s.reads = false
	default:
		return "unknown command " + d.Cmd
	}
	return s.lines.String()
}

func (s *story) tellOfDevices(t *testing.T, d *datadriven.TestData, words []string, limit time.Time) {
	w := s.world
	switch d.Cmd {
	case "slice":
		w.Devices.AddSlice(words[0], words[1:]...)
	case "remove-slice":
		w.Devices.RemoveSlice(words[0])
	case "allocate":
		var tolerations []resourcev1.DeviceToleration
		for _, t := range mustTolerations(t, d.Input) {
			tolerations = append(tolerations, resourcev1.DeviceToleration{
				Key: t.Key, Operator: resourcev1.DeviceTolerationOperator(t.Operator), Value: t.Value,
				Effect: resourcev1.DeviceTaintEffect(t.Effect), TolerationSeconds: t.TolerationSeconds,
			})
		}
		w.Devices.Allocate(words[0], words[1], tolerations)
	case "deallocate":
		w.Devices.Deallocate(words[0])
	case "taint-device", "untaint-device":
		w.Devices.TaintDevice(words[0], words[1], words[2], d.Cmd == "taint-device")
	case "rule":
		w.Devices.SetRule(words[0], words[2], v1.TaintEffect(words[1]))
	case "remove-rule":
		w.Devices.RemoveRule(words[0])
	case "late-devices":
		w.Devices.HoldDevices(limit)
	case "cut-devices":
		w.Devices.CutDevices(limit.Sub(w.Now), d.HasArg("list"))
	}
}

func (s *story) faults(t *testing.T, d *datadriven.TestData, until time.Time) {
	slow := virtual.Rule{Fault: virtual.Slow, Delay: argument(t, d, "slow"), Chance: 1}
	lost, unanswered := virtual.Rule{Fault: virtual.Lost}, virtual.Rule{Fault: virtual.Unanswered}
	d.MaybeScanArgs(t, "lost", &lost.Chance)
	d.MaybeScanArgs(t, "unanswered", &unanswered.Chance)
	rules := []virtual.Rule{lost, unanswered}
	if slow.Delay > 0 {
		rules = append(rules, slow)
	}
	if down := argument(t, d, "down"); down > 0 {
		rules = append(rules, virtual.Rule{Fault: virtual.Lost, Chance: 1, Until: s.world.Now.Add(down)})
	}
	s.world.Requests.Inject(until, rules...)
}

func argument(t *testing.T, d *datadriven.TestData, key string) time.Duration {
	t.Helper()
	text := "0s"
	d.MaybeScanArgs(t, key, &text)
	return mustDuration(t, text)
}
