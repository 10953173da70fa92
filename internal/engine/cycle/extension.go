package cycle

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Profile is a profile with its plugins from outside.
type Profile struct {
	*plugins.Profile
	// Extensions are plugins whose work is beside that of judging and scoring nodes. Each stands
	// here once; Profile.At says at which extension points it is asked, and in which order.
	Extensions []Extension
}

// Extension is an out-of-tree plugin that the cycle itself asks. It implements one or more of the
// interfaces below. What is asked on the goroutine that owns the state must not block; what may is
// asked on a goroutine of the pod's own.
type Extension interface{ Name() string }

// Attempt is one try to schedule a pod, from the queue to its binding. Before it is handed to
// another goroutine the owner is done with it, and the other way round: it needs no lock.
type Attempt struct {
	Pod     *v1.Pod      // as the API last showed it; shared, not to be changed
	Waiting *cluster.Pod // the same pod as decisions see it
	Profile string       // the scheduler name
	// Cluster is what decisions are made on; to be looked at on the owner alone.
	Cluster *cluster.Cluster
	Node    string // the node that was chosen; empty before
	// Sampled: the time of each plugin is taken.
	Sampled bool
	// State is free for the plugins of a profile: what they keep between extension points.
	State any
	// Aside: questions that take long are to be asked aside.
	Aside bool
	// Answers are to questions that were asked aside in this attempt; see plugins.Aside.
	Answers any
}

// Beginner is told of the attempt before anything else is asked for it. On the owner.
type Beginner interface {
	Extension
	Begin(a *Attempt)
}

// Assumer is told when the scheduling cycle of an attempt has succeeded: the pod has its node, and
// all at Reserve and Permit were asked. What follows goes on beside the cycles of other pods. A
// cycle that fails is told of by End alone. On the owner.
type Assumer interface {
	Extension
	Assumed(a *Attempt)
}

// Ender is told when an attempt is over: the pod was bound, or goes back to the queue. On the
// owner.
type Ender interface {
	Extension
	End(a *Attempt, bound bool)
}

// Sorter orders the pods that may be decided (QueueSort). Only one is asked, and the same in all
// profiles. On the owner.
type Sorter interface {
	Extension
	Less(a, b *queue.Item) bool
}

// Gate keeps a pod from being decided (PreEnqueue). It is asked when the pod comes, when it
// changes, when one of the gate's own events happens, and whenever the pod would come back from
// waiting. On the owner.
type Gate interface {
	Extension
	Admit(pod *v1.Pod) *plugins.Rejection
}

// Rescuer is asked when no node can take the pod (PostFilter), in the order of the profile,
// together with DynamicResources and DefaultPreemption. On the owner.
type Rescuer interface {
	Extension
	// Rescue may look at every node's verdict; evaluate computes them when it is first called.
	Rescue(a *Attempt, evaluate func() *decide.Evaluation) Rescue
}

// Rescue is what a rescuer did.
type Rescue struct {
	// Nominate, if not nil, becomes the pod's nominated node; an empty name takes the nomination
	// away.
	Nominate *string
	// Rejectors are plugins that keep the pod waiting beside those that rejected nodes as they are.
	Rejectors []string
	// Message is added to why the pod is not scheduled.
	Message string
	// Final: nobody is asked after it, because it helped (upstream: Success), or because nobody can
	// (UnschedulableAndUnresolvable).
	Final bool
	// Err: it went wrong; nobody is asked after it.
	Err error
}

// Reserver takes something for a pod that has its node (Reserve). If that fails, or anything later
// does, Unreserve is called for all reservers of the profile in the reverse order, whether they
// were asked or not, as upstream does. On the owner.
type Reserver interface {
	Extension
	Reserve(a *Attempt) *plugins.Rejection
	Unreserve(a *Attempt)
}

// Permitter may hold the pod up before it is bound (Permit). A wait above zero holds it for so long
// at most; every permitter that said so must allow it (PermitAllowed), and a single one can reject
// it. On the owner.
type Permitter interface {
	Extension
	Permit(a *Attempt) (rejection *plugins.Rejection, wait time.Duration)
}

// PreBinder does what must be done before the pod is bound (PreBind). On a goroutine of the pod's
// own: it may wait and call the API. A context that ends says that the scheduler stops, or that the
// pod was preempted.
type PreBinder interface {
	Extension
	// Needed says quickly whether PreBind has work to do (PreBindPreFlight). Then, or when a
	// permitter has the pod wait, the node is written to the pod as nominated.
	Needed(ctx context.Context, a *Attempt) (PreBindWork, error)
	// PreBind does it. Plugins that said so do it at the same time.
	PreBind(ctx context.Context, a *Attempt) error
}

// PreBindWork is what a plugin has to do before a pod is bound.
type PreBindWork struct {
	Needed   bool // anything
	Parallel bool // and others may do theirs meanwhile
}

// Binder binds the pod in place of DefaultBinder (Bind). The first that does not pass is the last
// that is asked. On a goroutine of the pod's own; its context outlives SIGTERM, so that a binding
// that was begun is finished.
type Binder interface {
	Extension
	Bind(ctx context.Context, a *Attempt) (passed bool, err error)
}

// PostBinder is told that the pod is bound (PostBind). On a goroutine of the pod's own.
type PostBinder interface {
	Extension
	PostBind(ctx context.Context, a *Attempt)
}

// Interested says what can change the mind of a plugin that rejected a pod, or keeps it out
// (EnqueueExtensions). Filters and gates from outside that are not interested in anything are asked
// again on every event. On the owner, hints included.
type Interested interface {
	Extension
	Interests() ([]queue.Interest, error)
}

// Objects is shown the API objects of nodes and pods as they come and go, each before the cluster
// is told.
type Objects interface {
	Pod(pod *v1.Pod) // seen or changed, pending or placed
	PodGone(uid types.UID)
	Node(node *v1.Node) // every update, also those that change nothing for decisions
	NodeGone(name string)
	// Shown is a pod as it was shown last, if it is kept.
	Shown(uid types.UID) *v1.Pod
}
