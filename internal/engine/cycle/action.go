package cycle

import (
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Ticket links an action to its answer. Tickets are given out in order, from 1.
type Ticket uint64

// Action is something that the core wants done: one of the types below. Each can be printed; two
// cores that were told the same print the same. Actions of one Step may be carried out in any
// order, except that what is written about one pod (WriteStatus) must reach the API in the order in
// which it was asked for.
type Action interface {
	fmt.Stringer
	action()
}

// Ready says, once, that the cluster is known, this scheduler leads, and scheduling begins.
type Ready struct{}

// Bind gives a pod its node. It is answered when the pod has the node or will not get it: where the
// API leaves that open, whoever carries it out looks until it is known.
type Bind struct {
	Ticket  Ticket
	Attempt *Attempt
	By      *Stages
}

// Cancel ends an action as soon as possible. It is answered all the same, as withdrawn if it had
// not begun.
type Cancel struct {
	Ticket Ticket
	Reason string
}

// Preflight asks the out-of-tree plugins at PreBind what they have to do for the pod. The answer
// has their Work.
type Preflight struct {
	Ticket  Ticket
	Attempt *Attempt
	By      *Stages
}

// Hold says that plugins have the pod wait at Permit, each for so long at most. It is not answered:
// PermitAllowed and PermitRejected tell what plugins say, and Release that it is over.
type Hold struct {
	Ticket Ticket
	Pod    *v1.Pod
	Node   string
	Waits  map[string]time.Duration
	Since  time.Time
}

// Release ends a Hold, also one that timed out or was given up.
type Release struct {
	Ticket Ticket
	How    string // "allowed", "rejected" or "timed out"
	Took   time.Duration
}

// PreBind has an out-of-tree plugin do its work for the pod.
type PreBind struct {
	Ticket  Ticket
	Attempt *Attempt
	Plugin  PreBinder
}

// WriteVolumes writes the volumes and claims that were matched for the pod.
type WriteVolumes struct {
	Ticket  Ticket
	Attempt *Attempt
	Volumes plugins.PodVolumes
}

// WriteClaims writes allocations and reservations of the pod's device claims.
type WriteClaims struct {
	Ticket  Ticket
	Attempt *Attempt
	Claims  plugins.ReservedClaims
	Uses    []ClaimUse // of Claims, in their order
}

// ClaimUse is what a pod has to do with a claim that others may use, too. Those who write the same
// one take turns, each on what the one before it has written.
type ClaimUse struct {
	Shared uint64 // the same for all who use the claim
	// Decided: the allocation was not in the API when the node was chosen, so whoever comes first
	// writes it, unless it was Written already: then it was taken back.
	Decided, Written bool
}

// ReleaseClaim takes a pod off a device claim, or deletes a claim that was made for it.
type ReleaseClaim struct {
	Claim *resourcev1.ResourceClaim
	Pod   types.UID
}

// GiveBackClaim frees the devices of a claim that a pending pod cannot use: its new status is
// written, or it is deleted.
type GiveBackClaim struct {
	Ticket Ticket
	Claim  *resourcev1.ResourceClaim
	Delete bool
}

// Remove deletes a victim after its condition says why.
type Remove struct {
	Ticket Ticket
	Victim v1.ObjectReference
	By     string // the scheduler name
	For    types.UID
	// Generation is the victim's, for its condition.
	Generation int64
}

// WriteStatus writes a condition, the nominated node, or both, to a pod as it was decided; nil
// leaves that as it is. It is answered if it has a ticket.
type WriteStatus struct {
	Ticket    Ticket
	Pod       *v1.Pod
	Condition *v1.PodCondition
	Nominate  *string
}

// WriteGroup writes the condition PodGroupScheduled to a PodGroup as it was decided.
type WriteGroup struct {
	Group     *groups.PodGroup
	Condition metav1.Condition
}

// Tell writes an event about an object.
type Tell struct {
	Profile               string
	About                 v1.ObjectReference
	Type, Reason, Message string
}

// Announce writes the event that a pod was bound.
type Announce struct{ Attempt *Attempt }

// ReadPod asks for a pod that the core does not keep. It is answered by Read, or not at all if the
// pod is gone.
type ReadPod struct{ Name cluster.Name }

// Compared says where somebody else has placed a pod of the profiles, and what every plugin says of
// the nodes as they were before.
type Compared struct {
	Pod  *v1.Pod
	Node string
	Said *decide.Evaluation
}

// Panicked says that a decision panicked. The attempt has ended, what is counted on nodes was
// counted anew, and the caches are rebuilt.
type Panicked struct {
	Pod   v1.ObjectReference
	Value string
	Stack []byte
	// Mended counts the nodes on which something else was counted than the pods that the API has
	// there.
	Mended int
}

func (Ready) action()         {}
func (Bind) action()          {}
func (Cancel) action()        {}
func (Preflight) action()     {}
func (Hold) action()          {}
func (Release) action()       {}
func (PreBind) action()       {}
func (WriteVolumes) action()  {}
func (WriteClaims) action()   {}
func (ReleaseClaim) action()  {}
func (GiveBackClaim) action() {}
func (Remove) action()        {}
func (WriteStatus) action()   {}
func (WriteGroup) action()    {}
func (Tell) action()          {}
func (Announce) action()      {}
func (ReadPod) action()       {}
func (Compared) action()      {}
func (Panicked) action()      {}
