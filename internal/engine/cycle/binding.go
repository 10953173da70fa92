// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"context"
)

// PreBinder does the work required before the pod is bound (PreBind). It runs on a goroutine per
// pod: it may block and call the API. Its context ends when the scheduler stops or the pod is
// preempted.
type PreBinder interface {
	Extension
	// Needed is a quick check whether PreBind has work to do (PreBindPreFlight). The node is
	// written to the pod's nominatedNodeName if PreBind has work or a permitter makes the pod wait.
	Needed(ctx context.Context, a *Attempt) (PreBindWork, error)
	// PreBind does the work. Plugins with Parallel work run concurrently.
	PreBind(ctx context.Context, a *Attempt) error
}

// Binder replaces DefaultBinder for the pod (Bind). Binders are called in order until one of them
// handles the pod. It runs on a goroutine per pod; its context outlives SIGTERM, so that a started
// binding is completed.
type Binder interface {
	Extension
	Bind(ctx context.Context, a *Attempt) (passed bool, err error)
}

// PostBinder is called after the pod is bound (PostBind). It runs on a goroutine per pod.
type PostBinder interface {
	Extension
	PostBind(ctx context.Context, a *Attempt)
}

// Stages holds the out-of-tree plugins that take part in bindings, each list in the order of its
// extension point.
type Stages struct {
	PreBind  []PreBinder
	Bind     []Binder
	PostBind []PostBinder
	// Default is set if DefaultBinder binds the pods that no Bind plugin handles.
	Default bool
}

// Bind binds a pod to its node. The outcome must be certain: after a request with an unknown
// result, the executor checks the API until it is certain whether the pod was bound. A Bind
// cancelled before it began is reported as withdrawn.
type Bind struct {
	Ticket  Ticket
	Attempt *Attempt
	By      *Stages
}

func (Bind) isAction() {}

// Preflight queries the out-of-tree PreBind plugins for their work on the pod. The outcome carries
// their Work. It is issued even if Berth's own plugins need no writes, since only the out-of-tree
// plugins can determine their work.
type Preflight struct {
	Ticket  Ticket
	Attempt *Attempt
	By      *Stages
}

func (Preflight) isAction() {}

// PreBind runs an out-of-tree PreBind plugin for the pod. A Verdict fault makes the pod
// unschedulable; any other fault is an error.
type PreBind struct {
	Ticket  Ticket
	Attempt *Attempt
	Plugin  PreBinder
}

func (PreBind) isAction() {}
