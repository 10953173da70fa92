package cycle

import (
	"context"
)

// PreBinder does what must be done before the pod is bound (PreBind). It runs on a goroutine per
// pod: it may block and call the API. Its context ends when the scheduler stops or the pod is
// preempted.
type PreBinder interface {
	Extension
	// Needed quickly tells whether PreBind has work to do (PreBindPreFlight). If so, or if a
	// permitter makes the pod wait, the node is written to the pod's nominatedNodeName.
	Needed(ctx context.Context, a *Attempt) (PreBindWork, error)
	// PreBind does the work. Plugins whose work is Parallel run at the same time.
	PreBind(ctx context.Context, a *Attempt) error
}

// Binder binds the pod in place of DefaultBinder (Bind). Binders are called in order until one does
// not pass. It runs on a goroutine per pod; its context outlives SIGTERM, so that a binding that
// has begun is completed.
type Binder interface {
	Extension
	Bind(ctx context.Context, a *Attempt) (passed bool, err error)
}

// PostBinder is called after the pod is bound (PostBind). It runs on a goroutine per pod.
type PostBinder interface {
	Extension
	PostBind(ctx context.Context, a *Attempt)
}

// Stages are the out-of-tree plugins that take part in bindings, each list in the order of its
// extension point.
type Stages struct {
	PreBind  []PreBinder
	Bind     []Binder
	PostBind []PostBinder
	// Default: DefaultBinder binds what the Bind plugins pass on.
	Default bool
}

// Bind binds a pod to its node. The answer must be certain: where a request's outcome is unknown,
// the shell looks until it knows whether the pod was bound. It is answered as withdrawn if it was
// cancelled before it began.
type Bind struct {
	Ticket  Ticket
	Attempt *Attempt
	By      *Stages
}

func (Bind) isAction() {}

// Preflight asks the out-of-tree PreBind plugins what they have to do for the pod. The answer
// carries their Work. It is asked even if Berth's own plugins have nothing to write, since only the
// plugins know whether they have.
type Preflight struct {
	Ticket  Ticket
	Attempt *Attempt
	By      *Stages
}

func (Preflight) isAction() {}

// PreBind runs an out-of-tree PreBind plugin for the pod. A fault that is a Verdict makes the pod
// unschedulable; any other is an error.
type PreBind struct {
	Ticket  Ticket
	Attempt *Attempt
	Plugin  PreBinder
}

func (PreBind) isAction() {}
