// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package execute

import (
	"cmp"
	"fmt"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// Line returns a human-readable description of a drain's progress. It returns "" for progress that
// is printed elsewhere, such as a plan, or not at all.
func (a *DrainProgress) Line() string {
	if a.Pod == nil {
		switch a.Result {
		case Cordoned:
			return fmt.Sprintf("node/%s %s", a.Node, a.Message)
		case Awaited:
			return "waiting: " + a.Message
		case Unreserved, Direct:
			return a.Message
		case Withheld:
			return fmt.Sprintf("%s held back: %s", answer.Count(a.Waiting, "pod"), a.Message)
		}
		return ""
	}

	name := nameOf(a.Pod)
	switch a.Result {
	case Evicted:
		return fmt.Sprintf("%s: evicted from %s", name, a.Pod.From)
	case Raised:
		return fmt.Sprintf("%s: surging: %s", name, a.Message)
	case Restored:
		return fmt.Sprintf("%s: not replaced: %s", name, a.Message)
	case Arrived:
		return fmt.Sprintf("%s: %s is on %s", name, a.Message, a.Node)
	case Elsewhere:
		return fmt.Sprintf("%s: %s is on %s, expected on %s", name, a.Message, a.Node, a.Pod.To)
	case Left:
		return name + ": gone"
	case Pending:
		return fmt.Sprintf("%s: left pending: %s", name, a.Message)
	}
	return a.Result.line(name, a.Pod.From, a.Message)
}

// nameOf returns a pod's name in messages. The pod of a surge left behind may be deleted; only its
// UID is known then.
func nameOf(p *rebalance.Departure) string {
	if p.Name == "" {
		return "a deleted pod of " + p.Namespace
	}
	return p.Namespace + "/" + p.Name
}

// line formats results common to drains and moves. Other results print as their name and the
// message.
func (r Result) line(name, from, message string) string {
	switch r {
	case Replaced:
		return fmt.Sprintf("%s: leaves %s: its successor is ready, and the scale is restored", name, from)
	case Awaited:
		return fmt.Sprintf("%s: waiting: %s", name, message)
	}
	return fmt.Sprintf("%s: %s: %s", name, r, message)
}

// Line returns a human-readable description of a roll's progress.
func (a *RollProgress) Line() string {
	if a.Node == "" {
		return a.Message
	}
	return fmt.Sprintf("node/%s: %s", a.Node, a.Message)
}

// Line returns a human-readable description of a move's progress. For progress unrelated to a move,
// it returns only the message.
func (a *MoveProgress) Line() string {
	if a.Move == nil {
		return a.Message
	}

	m := a.Move
	name := m.Namespace + "/" + m.Name
	switch a.Result {
	case Evicted:
		to := m.To
		if len(m.Or) > 0 {
			to += " or " + answer.Count(len(m.Or), "other")
		}
		to = cmp.Or(to, "(removed)")
		if m.NoSurge != "" {
			to += "; cannot surge: " + m.NoSurge
		}
		return fmt.Sprintf("%s: evicted from %s for %s, to %s", name, m.From, m.Cause, to)
	case Arrived:
		return fmt.Sprintf("%s: arrived %s", name, a.Node)
	case Raised:
		return fmt.Sprintf("%s: surging, for %s: %s", name, m.Cause, a.Message)
	case Resumed:
		return fmt.Sprintf("%s: was already evicted from %s; waiting for its successor", name, m.From)
	}
	return a.Result.line(name, m.From, a.Message)
}
