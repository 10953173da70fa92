// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controllerjournal

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/response"
)

// Options are the options of a replay. The zero Options compare up to the first difference, and
// print nothing.
type Options struct {
	// Story, if set, is printed during the replay.
	Story *Story
	// Each, if set, is called for every record.
	Each func(n int, at time.Time)
	// Continue makes the replay continue after the first difference.
	Continue bool
}

// player is a core in a replay. E and A are the types of its events and actions. A difference means
// that this build decides differently, or that the core had an input missing from the journal.
type player[E any, A fmt.Stringer] struct {
	words   words[E]
	step    func(now time.Time, event E) []A
	narrate func(at time.Time, event E, actions []A) // nil without a story
}

// Replay feeds a journal to a new core and compares the actions. It replays the core's clock: each
// event has its recorded time, regardless of the replay's speed. An unreadable file is an error; a
// difference is part of the result.
func Replay(r *Reader, o Options) (records.Result, error) {
	// wall is the wall clock of the replay. playFile sets it before each step, and the core reads
	// it through its options.
	var wall time.Time
	clock := func(time.Time) time.Time { return wall }
	switch r.Header.Component {
	case Eviction:
		var options eviction.Options
		var knows eviction.Knowledge
		if cut, err := r.beginReplay(&options, &knows); err != nil || cut {
			return records.Result{Cut: cut}, err
		}
		options.Wall = clock
		core := eviction.Restore(options, knows)
		o.Story.beginFile(r.Header, &knows)
		p := player[eviction.Event, eviction.Action]{words: ofEviction, step: core.Step}
		if o.Story != nil {
			p.narrate = o.Story.ofEviction(core)
		}
		return p.playFile(r, o, &wall)
	case NodeHealth:
		var options nodehealth.Options
		var knows nodehealth.Knowledge
		if cut, err := r.beginReplay(&options, &knows); err != nil || cut {
			return records.Result{Cut: cut}, err
		}
		options.Wall = clock
		o.Story.beginFile(r.Header, &eviction.Knowledge{})
		core, err := nodehealth.Restore(options, knows)
		if err != nil {
			return records.Result{}, err
		}
		p := player[nodehealth.Event, nodehealth.Action]{words: ofNodeHealth, step: core.Step}
		if o.Story != nil && o.Story.Node != "" { // node health has no data about pods
			p.narrate = o.Story.ofNodeHealth
		}
		return p.playFile(r, o, &wall)
	}
	return records.Result{}, fmt.Errorf("a journal of %q, which this build does not support", r.Header.Component)
}

// beginReplay reads the core's options and state. cut is set if the file ends before the end of the
// state.
func (r *Reader) beginReplay(options, knowledge any) (cut bool, err error) {
	if err := json.Unmarshal(r.Header.Options, options); err != nil {
		return false, fmt.Errorf("options of the core: %w", err)
	}
	text, err := r.readKnowledge()
	// A process killed while starting a file leaves an incomplete state. That does not count as a
	// fault of the file.
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	if err != nil || len(text) == 0 {
		return false, err
	}
	if err := json.Unmarshal(text, knowledge); err != nil {
		return false, fmt.Errorf("state of the core: %w", err)
	}
	return false, nil
}

// playFile replays the records of one file, up to its end or to the point of truncation.
func (p *player[E, A]) playFile(r *Reader, o Options, wall *time.Time) (records.Result, error) {
	var event E
	var actions []A
	step := func(int) (records.Replayed, error) {
		d, err := r.nextRecord()
		if err != nil {
			return records.Replayed{}, err
		}
		event = p.words.readEvent(d)
		recorded := d.ReadText()
		if d.Err != nil {
			return records.Replayed{}, r.Wrong(d.Err)
		}
		// The wall clock is set before the step, because the core reads it during the step.
		*wall = r.at.Add(r.skew)
		actions = p.step(r.at, event)
		return records.Replayed{At: r.at, Recorded: recorded, Again: formatActions(actions), Actions: len(actions)}, nil
	}

	told := func(n int) {
		if p.narrate != nil {
			p.narrate(r.at, event, actions)
		}
		if o.Each != nil {
			o.Each(n, r.at)
		}
	}
	return r.Reader.Replay(r.Header.Began, o.Continue, step, told)
}

// Story prints the contents of a journal about one pod, or one node: a line for each observation,
// for each change of its deadline, and for each request about it with its response. A story
// continues across the files of one journal. A nil Story prints nothing.
type Story struct {
	Out  io.Writer            // destination; one line per fact
	Pod  types.NamespacedName // pod of the story, if Node is ""
	Node string

	node   string            // the pod's node
	uid    types.UID         // UID of the pod that currently has the name
	due    string            // deadline of the pod, as last recorded
	leaves bool              // the pod terminates
	taints string            // taints of the node, as last printed
	state  string            // conditions of the node, as last printed
	asked  map[uint64]string // requests without a response yet, by ticket
}

// beginFile starts a file. The previous state is kept only if the file continues the same core;
// otherwise the pod's story restarts. For a file that begins with a state, it prints the pod's node
// and deadline at that time.
func (s *Story) beginFile(h Header, knows *eviction.Knowledge) {
	if s == nil {
		return
	}
	// This is the first file of a process, so its core has no prior state.
	if h.Knowledge == 0 {
		*s = Story{Out: s.Out, Pod: s.Pod, Node: s.Node}
	}
	for i := range knows.Pods {
		if p := &knows.Pods[i]; s.Node == "" && p.Name == s.Pod && p.UID != s.uid {
			s.uid, s.node, s.due, s.leaves = p.UID, p.On, p.Due.String(), p.Terminating
			s.writeLine(h.Began, "known, on node %s, %s", s.node, s.due)
		}
	}
}

// writeLine prints a line with the time of the core's clock.
func (s *Story) writeLine(at time.Time, format string, args ...any) {
	records.WriteLine(s.Out, at, fmt.Sprintf(format, args...))
}

// nodeOfInterest returns the requested node, or the node of the requested pod. It returns "", which
// is not a valid node name, as long as the pod's node is unknown.
func (s *Story) nodeOfInterest() string {
	return cmp.Or(s.Node, s.node)
}

// noteTaints prints the taints of the node of interest if they have changed since they were last
// printed.
func (s *Story) noteTaints(at time.Time, taints []v1.Taint) {
	words := rules.Mapped(taints, func(t v1.Taint) string { return t.ToString() })
	slices.Sort(words)
	if is := strings.Join(words, ", "); is != s.taints {
		s.taints = is
		is = cmp.Or(is, "none")
		s.writeLine(at, "taints of %s: %s", s.nodeOfInterest(), is)
	}
}

// recordRequest records a request, so that its response is printed.
func (s *Story) recordRequest(ticket uint64, what string) {
	if s.asked == nil {
		s.asked = map[uint64]string{}
	}
	s.asked[ticket] = what
}

// printAnswer prints the response to a recorded request, and ignores all other responses.
func (s *Story) printAnswer(at time.Time, ticket uint64, outcome fmt.Stringer) {
	if what, ok := s.asked[ticket]; ok {
		delete(s.asked, ticket)
		s.writeLine(at, "answer: %s (%s)", outcome, what)
	}
}

// ofEviction returns a function that prints a step of taint eviction. It must be called after the
// step, when core has the resulting deadline.
func (s *Story) ofEviction(core *eviction.Core) func(time.Time, eviction.Event, []eviction.Action) {
	return func(at time.Time, event eviction.Event, actions []eviction.Action) {
		switch e := event.(type) {
		case eviction.PodSeen:
			if s.Node == "" && e.Pod.Name == s.Pod {
				s.podSeen(at, &e.Pod)
			}
		case eviction.PodGone:
			if s.Node == "" && e.UID == s.uid {
				s.writeLine(at, "gone")
				s.uid, s.node, s.due = "", "", ""
			}
		case eviction.NodeSeen:
			if e.Node.Name == s.nodeOfInterest() {
				s.noteTaints(at, e.Node.Taints)
			}
		case eviction.NodeGone:
			if e.Name == s.nodeOfInterest() {
				s.taints = ""
				s.writeLine(at, "node %s gone", e.Name)
			}
		case eviction.Answered:
			s.printAnswer(at, uint64(e.Ticket), e.Outcome)
		}

		// The deadline is read from the core, because events about a node or a device may change it
		// as well.
		if due, ok := core.Due(s.uid); ok && s.due != due.String() {
			if !due.Stays() || s.due != "" && !s.leaves {
				s.writeLine(at, "%s", due)
			}
			s.due = due.String()
		}

		for _, action := range actions {
			if ticket, mine := s.isConcerned(action); mine {
				s.writeLine(at, "  %s", action)
				s.recordRequest(ticket, action.String())
			}
		}
	}
}

// podSeen prints that the pod was observed. If the pod or its node is a different one, the taints
// will be printed again.
func (s *Story) podSeen(at time.Time, pod *eviction.Pod) {
	if pod.UID != s.uid || pod.Node != s.node {
		s.taints = ""
	}
	s.uid, s.node, s.leaves = pod.UID, pod.Node, pod.Terminating
	leaving := ""
	if pod.Terminating {
		leaving = ", terminating"
	}
	s.writeLine(at, "seen on node %s, version %s%s", pod.Node, pod.ResourceVersion, leaving)
}

// isConcerned reports whether an action is about the pod, or about the node. Reads of a pod's node
// belong to the node's story.
func (s *Story) isConcerned(action eviction.Action) (ticket uint64, mine bool) {
	pod := func(ticket response.Ticket, name types.NamespacedName) (uint64, bool) {
		return uint64(ticket), s.Node == "" && name == s.Pod
	}
	switch a := action.(type) {
	case eviction.ReadPod:
		return pod(a.Ticket, a.Name)
	case eviction.ReadDevices:
		return pod(a.Ticket, a.Pod)
	case eviction.Mark:
		return pod(a.Ticket, a.Name)
	case eviction.Delete:
		return pod(a.Ticket, a.Name)
	case eviction.Evict:
		return pod(a.Ticket, a.Name)
	case eviction.Record:
		return pod(0, a.Name)
	case eviction.ReadNode:
		return uint64(a.Ticket), a.Node == s.Node
	case eviction.Annotate:
		return uint64(a.Ticket), a.Node == s.Node
	}

	return 0, false
}

// ofNodeHealth prints a step of node health. A loss of all heartbeats concerns all nodes, and is
// part of the story of each node.
func (s *Story) ofNodeHealth(at time.Time, event nodehealth.Event, actions []nodehealth.Action) {
	switch e := event.(type) {
	case nodehealth.NodeSeen:
		if e.Node.Name == s.Node {
			s.nodeSeen(at, &e.Node)
		}
	case nodehealth.NodeGone:
		if e.Name == s.Node {
			s.taints, s.state = "", ""
			s.writeLine(at, "node %s gone", e.Name)
		}
	case nodehealth.Blind:
		s.writeLine(at, "heartbeats of nodes cannot be observed")
	case nodehealth.Polled:
		s.writeLine(at, "heartbeats of all nodes were listed")
	case nodehealth.Away:
		s.writeLine(at, "the controller was stopped for %v", at.Sub(e.From).Round(time.Second))
	case nodehealth.Sighted:
		s.writeLine(at, "heartbeats can be observed again")
	case nodehealth.Answered:
		s.printAnswer(at, uint64(e.Ticket), e.Outcome)
	}

	for _, action := range actions {
		ticket, node := response.Ticket(0), ""
		switch a := action.(type) {
		case nodehealth.ReadLease:
			ticket, node = a.Ticket, a.Node
		case nodehealth.WriteStatus:
			ticket, node = a.Ticket, a.Node
		case nodehealth.WriteNode:
			ticket, node = a.Ticket, a.Node
		case nodehealth.MarkPods:
			ticket, node = a.Ticket, a.Node
		case nodehealth.StopMarking:
			node = a.Node
		case nodehealth.Record:
			node = a.Node
		}
		if node != "" && node == s.Node {
			s.writeLine(at, "  %s", action)
			s.recordRequest(uint64(ticket), action.String())
		}
	}
}

// nodeSeen prints the node's conditions if their statuses have changed since they were last
// printed, and its taints likewise.
func (s *Story) nodeSeen(at time.Time, n *nodehealth.Node) {
	words := rules.Mapped(n.Conditions, func(c v1.NodeCondition) string { return string(c.Type) + "=" + string(c.Status) })
	if is := strings.Join(words, " "); is != s.state {
		s.state = is
		s.writeLine(at, "conditions of %s: %s", n.Name, is)
	}
	s.noteTaints(at, n.Taints)
}
