// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// Requests are the controller's requests to the API.
type Requests struct {
	world *World
	// Line carries the requests. Their kinds are the names of the action types.
	Line virtual.Line[eviction.Event, eviction.Action]
	// Until is the end of the faults. Truth excuses late evictions until shortly after it.
	Until time.Time

	Deleted   int // deletes carried out
	Refusals  int // requests that failed
	Cancelled int // evictions reported as cancelled by the controller
}

func newRequests(w *World) Requests {
	return Requests{world: w, Line: virtual.Line[eviction.Event, eviction.Action]{
		Process: w.Controller, Least: 500 * time.Microsecond, Most: 2 * time.Millisecond, Faults: virtual.Faults{Faulty: w.failed},
	}}
}

// Inject injects faults for a time.
func (r *Requests) Inject(until time.Time, rules ...virtual.Rule) {
	r.Until = until
	for i := range rules {
		if rules[i].Until.IsZero() {
			rules[i].Until = until
		}
	}
	r.Line.Rules = rules
}

// isFaulty reports whether webhooks may refuse deletes now.
func (r *Requests) isFaulty() bool { return r.world.Now.Before(r.Until) }

// slowest returns the maximum delay of a request.
func (r *Requests) slowest() (slowest time.Duration) {
	for _, rule := range r.Line.Rules {
		if rule.Fault == virtual.Slow {
			slowest = max(slowest, rule.Delay)
		}
	}
	return slowest
}

// recovers returns the time until all due pods are deleted after the end of the faults.
func (r *Requests) recovers() time.Duration {
	for _, rule := range r.Line.Rules {
		switch rule.Fault {
		case virtual.Ineffective, virtual.Gone, virtual.GoneDone:
			if rule.Chance > 0 {
				return confirms
			}
		}
	}
	return recovers
}

// failed counts a failure. A failed write of a note makes every node's note doubtful for a while.
func (w *World) failed(kind string) {
	w.Requests.Refusals++
	if kind != "Annotate" {
		return
	}
	for _, n := range w.nodes {
		n.noteTrouble = w.Now
	}
}

// carryOut sends a request. An Evict is always refused, as by a budget that never allows a
// disruption.
func (r *Requests) carryOut(action eviction.Action) {
	if r.world.Trace != nil {
		r.world.Tracef("%s", action)
	}

	switch a := action.(type) {
	case eviction.Record:
		if a.Cancels {
			r.Cancelled++
		}

	case eviction.ReadNode:
		r.send("ReadNode", a.Node, a.Ticket, func() eviction.Answered { return r.readNode(a) }, nil)
	case eviction.ReadPod:
		r.send("ReadPod", a.Name.Name, a.Ticket, func() eviction.Answered { return r.readPod(a.Name) }, nil)
	case eviction.ReadDevices:
		r.send("ReadDevices", a.Pod.Name, a.Ticket, func() eviction.Answered { return r.world.Devices.readDevices(a) }, nil)

	case eviction.WriteStatus:
		r.send("WriteStatus", a.Rule, a.Ticket, func() eviction.Answered { return r.world.Devices.writeStatus(a) }, nothing)
	case eviction.Mark:
		r.send("Mark", a.Name.Name, a.Ticket, func() eviction.Answered { return r.markPod(a, true) },
			func() eviction.Answered { return r.markPod(a, false) })

	case eviction.Delete:
		r.world.Truth.checkSent(a.Name, a.UID)
		r.send("Delete", a.Name.Name, a.Ticket, func() eviction.Answered { return r.deletePod(a) }, nothing)
	case eviction.Evict:
		r.world.Truth.checkSent(a.Name, a.UID)
		r.send("Evict", a.Name.Name, a.Ticket, func() eviction.Answered { return eviction.Answered{Outcome: response.Busy} }, nothing)
	case eviction.Annotate:
		r.send("Annotate", a.Node, a.Ticket, func() eviction.Answered { return r.annotateNode(a) }, nothing)
	}
}

// nothing is a success without effect.
func nothing() eviction.Answered { return eviction.Answered{} }

// send sends a request. It is a read if it cannot succeed without effect.
func (r *Requests) send(kind, object string, ticket response.Ticket, do, ineffective func() eviction.Answered) {
	event := func(of func() eviction.Answered) func() eviction.Event {
		return func() eviction.Event {
			e := of()
			e.Ticket = ticket
			return e
		}
	}
	r.Line.Send(virtual.Request[eviction.Event]{
		Kind: kind, Object: object, Namespace: "default", Reads: ineffective == nil, Do: event(do), Ineffective: event(ineffective),
		Fail: func(outcome response.Outcome, after time.Duration) eviction.Event {
			return eviction.Answered{Ticket: ticket, Outcome: outcome, RetryAfter: after}
		},
	})
}

// readNode, readPod, markPod, deletePod and annotateNode carry out requests on behalf of the API
// server.
func (r *Requests) readNode(a eviction.ReadNode) eviction.Answered {
	n := r.world.nodes[a.Node]
	if n == nil {
		return eviction.Answered{Outcome: response.Gone}
	}
	read := n.Node
	return eviction.Answered{Node: &read}
}

func (r *Requests) readPod(name types.NamespacedName) eviction.Answered {
	p := r.world.pods[name]
	if p == nil {
		return eviction.Answered{Outcome: response.Gone}
	}
	read := p.Pod
	return eviction.Answered{Pod: &read}
}

// markPod sets the condition, if effect is set and the pod has the UID and the version, if given.
func (r *Requests) markPod(a eviction.Mark, effect bool) eviction.Answered {
	p := r.world.pods[a.Name]
	switch {
	case p == nil:
		return eviction.Answered{Outcome: response.Gone}
	case p.UID != a.UID, a.ResourceVersion != "" && a.ResourceVersion != p.ResourceVersion:
		return eviction.Answered{Outcome: response.Conflict}
	}
	if !p.Marked && effect {
		p.Marked, p.ResourceVersion = true, r.world.nextVersion()
		r.world.showPod(p)
	}
	return r.readPod(a.Name)
}

// deletePod records every delete that arrives, and carries it out unless the UID differs or a
// webhook refuses.
func (r *Requests) deletePod(a eviction.Delete) eviction.Answered {
	p := r.world.pods[a.Name]
	if p != nil {
		p.Deletes = append(p.Deletes, r.world.Now)
	}
	switch {
	case p == nil:
		return eviction.Answered{Outcome: response.Gone}
	case a.UID != "" && p.UID != a.UID:
		return eviction.Answered{Outcome: response.Conflict}
	case p.refuse > 0 && !p.Terminating && r.isFaulty():
		p.refuse--
		r.world.Tracef("webhook refuses the delete of %s", p.UID)
		return eviction.Answered{Outcome: response.Refused}
	}

	if !p.Terminating {
		r.world.Truth.checkCarriedOut(p, a.UID)
		r.Deleted++
		r.world.Tracef("pod %s deleted", p.UID)
		r.world.Terminate(p)
	}
	return eviction.Answered{}
}

// annotateNode writes the note if the node still has that version.
func (r *Requests) annotateNode(a eviction.Annotate) eviction.Answered {
	n := r.world.nodes[a.Node]
	switch {
	case n == nil:
		return eviction.Answered{Outcome: response.Gone}
	case n.ResourceVersion != a.ResourceVersion:
		return eviction.Answered{Outcome: response.Conflict}
	}
	n.Note = a.Note
	r.world.showNode(n)
	return eviction.Answered{}
}
