// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"context"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Profile is a scheduling profile with its out-of-tree plugins.
type Profile struct {
	*plugins.Profile
	// Extensions lists the out-of-tree plugins with more extension points than filtering and
	// scoring. Each is listed once; Profile.At defines its extension points and their order.
	Extensions []Extension
}

// Extension is an out-of-tree plugin called by the cycle itself. It implements one or more of the
// interfaces below. Methods documented as running on the owner are called on the goroutine that
// owns the core, and must not block. The other methods run on a goroutine per pod.
type Extension interface{ Name() string }

// Attempt is one try to schedule a pod, from the queue to its binding. It needs no lock: while
// another goroutine uses it, the owner does not access it. Issuing an asynchronous question ends
// the attempt; a new attempt begins when the answer arrives.
type Attempt struct {
	Pod     *v1.Pod      // latest version observed from the API; shared, read-only
	Waiting *cluster.Pod // the same pod in the cluster model
	Profile string       // the scheduler name
	// Cluster is the model used by decisions. Only the owner may read it.
	Cluster *cluster.Cluster
	Node    string // the chosen node; empty before the decision
	// Sampled attempts measure the duration of each plugin.
	Sampled bool
	// State holds the data that out-of-tree plugins keep between extension points.
	State any
	// Async: potentially blocking questions must be issued asynchronously; see [Ask].
	Async bool
	// Answers holds the results of this attempt's asynchronous questions; see plugins.PendingQuery.
	Answers any
}

// String returns the pod's namespace and name.
func (a *Attempt) String() string {
	if a.Pod == nil {
		return strings.TrimSpace(a.Profile)
	}
	return podName(a.Pod)
}

// podName returns a pod's name in messages and printed actions.
func podName(pod *v1.Pod) string { return pod.Namespace + "/" + pod.Name }

// Beginner is called first in an attempt. It runs on the owner.
type Beginner interface {
	Extension
	Begin(a *Attempt)
}

// Assumer is called when the scheduling cycle of an attempt has succeeded: the pod has its node,
// and all Reserve and Permit plugins were called. The remaining steps run concurrently with the
// cycles of other pods. A failed cycle calls Ender only. It runs on the owner.
type Assumer interface {
	Extension
	Assumed(a *Attempt)
}

// Ender is called when an attempt is over: the pod was bound or requeued. It runs on the owner.
type Ender interface {
	Extension
	End(a *Attempt, isBound bool)
}

// Sorter orders the active queue (QueueSort). All profiles share one. It runs on the owner.
type Sorter interface {
	Extension
	Less(a, b *queue.Item) bool
}

// Gate keeps a pod out of the active queue (PreEnqueue). It is called when the pod appears or
// changes, when one of the gate's own events happens, and whenever the pod is about to leave the
// unschedulable queue. It runs on the owner. A nil rejection admits the pod.
type Gate interface {
	Extension
	Admit(pod *v1.Pod) *plugins.Rejection
}

// PostFilterer is called when no node can take the pod (PostFilter), in the order of the profile,
// which also lists DynamicResources and DefaultPreemption. It runs on the owner.
type PostFilterer interface {
	Extension
	// RunPostFilter may inspect every node's verdict. The first call of evaluate computes the
	// verdicts.
	RunPostFilter(a *Attempt, evaluate func() *decide.Evaluation) PostFilterResult
}

// PostFilterResult is a PostFilterer's result. The zero value means that the plugin could not help
// and leaves the nomination unchanged.
type PostFilterResult struct {
	// Nominate, if not nil, becomes the pod's nominated node; an empty name clears the nomination.
	Nominate *string
	// Rejectors lists plugins that keep the pod waiting, in addition to the plugins that rejected
	// nodes.
	Rejectors []string
	// Message is appended to the reason why the pod is not scheduled.
	Message string
	// Final: no further plugin is called, because this plugin helped (upstream: Success) or because
	// no plugin can help (UnschedulableAndUnresolvable).
	Final bool
	// Err: the plugin failed, and no further plugin is called.
	Err error
}

// Reserver reserves something for a pod after a node was chosen (Reserve). If Reserve or any later
// step fails, Unreserve is called for all reservers of the profile in reverse order, including
// reservers not called yet, as in kube-scheduler. It runs on the owner.
type Reserver interface {
	Extension
	Reserve(a *Attempt) *plugins.Rejection
	Unreserve(a *Attempt)
}

// Permitter may delay the binding of a pod (Permit). A positive hold delays the binding for at most
// that duration. Every permitter that requested a wait must allow the pod (PermitAllowed); a single
// permitter can reject it. It runs on the owner. The wait is capped at maxPermitWait.
type Permitter interface {
	Extension
	Permit(a *Attempt) (refused *plugins.Rejection, hold time.Duration)
}

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

// PreBindWork describes a plugin's work before a pod is bound. The zero value means no work.
type PreBindWork struct {
	Needed   bool // the plugin has work to do
	Parallel bool // other plugins may run concurrently
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

// Interested declares the events that may make a pod schedulable after the plugin rejected or gated
// it (EnqueueExtensions). Out-of-tree filters and gates without declared events are called again on
// every event. Interests and the hints run on the owner.
type Interested interface {
	Extension
	Interests() ([]queue.Interest, error)
}

// Objects receives every API change of nodes, pods and pod groups, before the cluster model is
// updated.
type Objects interface {
	Pod(pod *v1.Pod) // called for a new or changed pod, pending or placed
	PodGone(uid types.UID)
	Node(node *v1.Node) // called for every update, even if the update does not affect decisions
	NodeGone(name string)
	Group(object *groups.PodGroup)
	GroupGone(name cluster.Name)
	// Shown returns the version of the pod last passed to Pod, or nil if none is kept.
	Shown(uid types.UID) *v1.Pod
}

// NoObjects keeps no objects.
type NoObjects struct{}

func (NoObjects) Pod(*v1.Pod)             {}
func (NoObjects) PodGone(types.UID)       {}
func (NoObjects) Node(*v1.Node)           {}
func (NoObjects) NodeGone(string)         {}
func (NoObjects) Group(*groups.PodGroup)  {}
func (NoObjects) GroupGone(cluster.Name)  {}
func (NoObjects) Shown(types.UID) *v1.Pod { return nil }
