// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/kube/loglimit"
)

// keeper begins and ends the sessions of a profile. It precedes the profile's plugins (see
// buildProfile), so that the session exists before the first call. A profile with only an extender
// needs a keeper as well: the extender's responses are kept in the session.
type keeper struct{ f *framework }

var (
	_ cycle.Beginner = keeper{}
	_ cycle.Assumer  = keeper{}
	_ cycle.Ender    = keeper{}
)

// Name is for logs; no extension point lists it.
func (keeper) Name() string { return "plugins from outside" }

// Begin opens the session shared by all extension points of the attempt. If a pod is decided again
// because an extender has responded (see askExtender), its new session inherits the extenders'
// responses, but none of the plugins' state.
func (k keeper) Begin(a *cycle.Attempt) {
	// Wait before the snapshot is taken, because a plugin may list pods from its informer in any
	// later call.
	k.f.set.informers.awaitPod(a.Pod, k.f.set.store)
	y := newSession(k.f, k.f.set.ctx, a.Pod, a.Waiting)
	y.beginCycle()
	k.f.set.countAttempts(1, false)
	a.State, k.f.current = y, y
	y.aside = a.Async
	if kept, ok := a.Answers.(*extenderAnswers); ok {
		y.answers = kept
	}
	// Plugins see the cluster as of the beginning of the pod's turn. If the attempt has no cluster,
	// the snapshot is taken on first use.
	if a.Cluster != nil {
		y.takeSnapshot(a.Cluster)
	}
}

// Assumed ends the scheduling cycle. It activates the pods that plugins have left for activation,
// and cancels the cycle's context, so that goroutines started with it end. The following steps,
// waiting and binding, use the context of the Set.
func (k keeper) Assumed(a *cycle.Attempt) {
	if y, ok := a.State.(*session); ok {
		y.activatePods()
		y.endCycle()
	}
}

// End forgets the session, and ends the Set if it was closed and this was its last attempt. It may
// be called more than once for an attempt; the attempt is counted only once.
func (k keeper) End(a *cycle.Attempt, bound bool) {
	if y, ok := a.State.(*session); ok {
		if bound {
			y.activatePods()
		}
		y.endCycle()
		y.prebind.endPod()
		if k.f.current == y {
			k.f.current = nil
		}
		if !y.ended.Swap(true) && k.f.set.countAttempts(-1, false) {
			k.f.set.cancel()
			go k.f.set.endSet() // decisions do not wait for the plugins' shutdown
		}
	}
}

// extension is a plugin at the extension points called by the live scheduler itself. It implements
// the interfaces of all these points. Profile.At lists the plugins enabled at each point, in the
// order of calls, so each method may assume that the plugin implements the point.
//
// If a plugin panics while a pod is decided, the cycle recovers and the pod's attempt fails. Only
// calls outside of an attempt recover here (callGuarded). In kube-scheduler, any panic ends the
// process.
type extension struct {
	f         *framework
	name      string
	plugin    fwk.Plugin
	complaint loglimit.Line // about panics
}

var (
	_ cycle.Sorter       = &extension{}
	_ cycle.Gate         = &extension{}
	_ cycle.PostFilterer = &extension{}
	_ cycle.Reserver     = &extension{}
	_ cycle.Permitter    = &extension{}
	_ cycle.PreBinder    = &extension{}
	_ cycle.Binder       = &extension{}
	_ cycle.PostBinder   = &extension{}
	_ cycle.Interested   = &extension{}
)

// Name is the plugin's name in the configuration and in Profile.At.
func (x *extension) Name() string { return x.name }

// sessionOf returns the attempt's session. If there is none, it begins a session that has only the
// Set's context.
func (x *extension) sessionOf(a *cycle.Attempt) *session {
	if y, ok := a.State.(*session); ok {
		return y
	}
	y := newSession(x.f, x.f.set.ctx, a.Pod, a.Waiting)
	a.State = y
	return y
}

// callGuarded calls the plugin where a panic cannot fail an attempt. If the plugin panics, only the
// call fails: a pod that makes a plugin panic must not end the process at every start.
func (x *extension) callGuarded(point string, call func()) (err error) {
	defer func() {
		value := recover()
		if value == nil {
			return
		}
		err = fmt.Errorf("plugin %q panicked at %s: %v", x.name, point, value)
		if count := x.f.set.options.Panicked; count != nil {
			count()
		}
		if x.complaint.Due() {
			klog.FromContext(x.f.set.ctx).Error(err, "An out-of-tree plugin panicked", "stack", string(debug.Stack()))
		}
	}()
	call()
	return nil
}

// Less implements cycle.Sorter. Pods are equal if comparing them panics.
func (x *extension) Less(a, b *queue.Item) (less bool) {
	_ = x.callGuarded("QueueSort", func() { less = x.plugin.(fwk.QueueSortPlugin).Less(queued{a}, queued{b}) })
	return less
}

// Admit implements cycle.Gate. Like upstream, an error gates the pod like a rejection.
func (x *extension) Admit(pod *v1.Pod) *plugins.Rejection {
	var status *fwk.Status
	err := x.callGuarded("PreEnqueue", func() { status = x.plugin.(fwk.PreEnqueuePlugin).PreEnqueue(x.f.set.ctx, pod) })
	if err != nil {
		return &plugins.Rejection{Err: err}
	}
	if status.IsSuccess() {
		return nil
	}
	if !status.IsRejected() {
		klog.FromContext(x.f.set.ctx).Error(statusError(status, "PreEnqueue"),
			"Unexpected error running PreEnqueue plugin", "pod", klog.KObj(pod), "plugin", x.name)
	}
	return toRejection(status, x.name)
}

// RunPostFilter implements cycle.PostFilterer. The verdicts of all nodes are computed before the
// plugin is called, since PostFilter gets them as an argument.
//
// The status follows upstream's rules: Success and UnschedulableAndUnresolvable end the round of
// PostFilter plugins, Unschedulable continues with the next, everything else is an error. A result
// in override mode with an empty node name clears the nomination; other modes leave it unchanged.
func (x *extension) RunPostFilter(a *cycle.Attempt, evaluate func() *decide.Evaluation) cycle.PostFilterResult {
	y := x.sessionOf(a)
	var result *fwk.PostFilterResult
	var status *fwk.Status
	verdicts := newVerdicts(evaluate())
	y.whileOpen(func() { result, status = x.plugin.(fwk.PostFilterPlugin).PostFilter(y.ctx, y.state, y.pod, verdicts) })
	answer := cycle.PostFilterResult{Message: status.Message()}
	if result != nil && result.Mode() == fwk.ModeOverride {
		answer.Nominate = new(result.NominatedNodeName)
	}

	switch {
	case status.IsSuccess(), status.Code() == fwk.UnschedulableAndUnresolvable:
		answer.Final = true
	case !status.IsRejected():
		answer.Err, answer.Final = statusError(status, "PostFilter"), true
	}
	return answer
}

// Reserve implements cycle.Reserver. The plugin gets a copy of the pod with its node in the spec,
// like upstream's assumed pod.
func (x *extension) Reserve(a *cycle.Attempt) *plugins.Rejection {
	y := x.sessionOf(a)
	var status *fwk.Status
	y.whileOpen(func() {
		status = x.plugin.(fwk.ReservePlugin).Reserve(y.ctx, y.state, y.onNode(a.Node), a.Node)
	})
	return rejectionOf(status, x.name, "Reserve")
}

// Unreserve implements cycle.Reserver. It is guarded: other plugins' reservations must be undone
// even if this plugin panics.
func (x *extension) Unreserve(a *cycle.Attempt) {
	y := x.sessionOf(a)
	_ = x.callGuarded("Unreserve", func() { x.plugin.(fwk.ReservePlugin).Unreserve(y.ctx, y.state, y.onNode(a.Node), a.Node) })
}

// rejectionOf converts a plugin's status at an extension point that can reject a pod; nil for
// success.
func rejectionOf(status *fwk.Status, plugin, point string) *plugins.Rejection {
	switch {
	case status.IsSuccess():
		return nil
	case status.IsRejected():
		return toRejection(status, plugin)
	}
	return &plugins.Rejection{Err: statusError(status, point)}
}

// maxWait bounds the wait of a pod at Permit, whatever timeout the plugin requests. It is
// upstream's maximum.
const maxWait = 15 * time.Minute

// Permit implements cycle.Permitter. Only the status Wait holds the pod; like upstream, the timeout
// returned with any other status is ignored.
func (x *extension) Permit(a *cycle.Attempt) (*plugins.Rejection, time.Duration) {
	y := x.sessionOf(a)
	var status *fwk.Status
	var wait time.Duration
	y.whileOpen(func() {
		status, wait = x.plugin.(fwk.PermitPlugin).Permit(y.ctx, y.state, y.onNode(a.Node), a.Node)
	})
	if status.IsWait() {
		return nil, max(min(wait, maxWait), 1) // a zero wait ends immediately, but it is still a wait
	}
	return rejectionOf(status, x.name, "Permit"), 0
}

// Needed implements cycle.PreBinder. It calls the plugin's PreBindPreFlight before PreBind is
// called for any plugin, so that the cycle can determine which plugins have work and which of them
// may run in parallel. A plugin that returns Skip is not called at PreBind.
func (x *extension) Needed(ctx context.Context, a *cycle.Attempt) (work cycle.PreBindWork, err error) {
	y := x.sessionOf(a)
	result, status := x.plugin.(fwk.PreBindPlugin).PreBindPreFlight(ctx, y.state, y.onNode(a.Node), a.Node)
	work.Parallel = result != nil && result.AllowParallel
	switch {
	case status.IsSuccess():
		work.Needed = true
		y.toPreBind()
		return work, nil
	case status.IsSkip():
		y.skipPreBind(x.plugin.Name())
		return work, nil
	case status.IsError():
		return work, statusError(status, "PreBindPreFlight")
	}
	return work, fmt.Errorf("PreBindPreFlight %s returned %q, which is unsupported. It is supposed to return Success, "+
		"Skip, or Error status", x.name, status.Code())
}

// skipPreBind records that a plugin skips PreBind.
func (y *session) skipPreBind(plugin string) {
	if y.state.skipPreBind == nil {
		y.state.skipPreBind = sets.New[string]()
	}
	y.state.skipPreBind.Insert(plugin)
}

// PreBind implements cycle.PreBinder. It runs on a goroutine of the pod, possibly in parallel with
// other plugins' PreBind. A rejection becomes a verdict on the pod (see [Refusal]); any other
// failure is an error.
func (x *extension) PreBind(ctx context.Context, a *cycle.Attempt) error {
	y := x.sessionOf(a)
	if y.state.skipPreBind.Has(x.plugin.Name()) {
		return nil
	}

	ctx, err := y.prebind.beginPlugin(ctx)
	if err != nil {
		return err
	}

	status := x.plugin.(fwk.PreBindPlugin).PreBind(ctx, y.state, y.onNode(a.Node), a.Node)
	switch {
	case status.IsSuccess():
		return nil
	case status.IsRejected():
		return x.refusalOf(status)
	}

	// An interrupted plugin returns its context's error. The cause of the interruption is more
	// specific, for instance that the pod was preempted.
	if err = statusError(status, "PreBind"); errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Bind implements cycle.Binder. After MarkPrebound, the binding can no longer be canceled, because
// it may already have been sent to the API server.
func (x *extension) Bind(ctx context.Context, a *cycle.Attempt) (passed bool, err error) {
	y := x.sessionOf(a)
	if !y.prebind.MarkPrebound() {
		return false, y.prebind.cause()
	}
	status := x.plugin.(fwk.BindPlugin).Bind(ctx, y.state, y.onNode(a.Node), a.Node)
	if status.IsSkip() {
		return true, nil
	}
	if status.IsSuccess() {
		return false, nil
	}
	if status.IsRejected() {
		return false, x.refusalOf(status)
	}
	return false, fmt.Errorf("running Bind plugin %q: %w", x.name, statusError(status, "Bind"))
}

// refusalOf returns the error for a plugin that rejects a pod after its node was chosen.
func (x *extension) refusalOf(status *fwk.Status) error {
	return &Refusal{Plugin: x.name, Reasons: slices.Clone(status.Reasons())}
}

// PostBind implements cycle.PostBinder.
func (x *extension) PostBind(ctx context.Context, a *cycle.Attempt) {
	y := x.sessionOf(a)
	x.plugin.(fwk.PostBindPlugin).PostBind(ctx, y.state, y.onNode(a.Node), a.Node)
}

var _ fwk.NodeToStatusReader = &verdicts{}
