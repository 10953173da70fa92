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

// Action is something that the core wants done: one of the types below. Two cores that were given
// the same events print the same actions. Actions of one Step may be carried out in any order,
// except that writes to one pod (WriteStatus) must reach the API in the order in which they were
// returned.
type Action interface {
	fmt.Stringer
	isAction()
}

// Ready is returned once, when the cluster is known, this scheduler leads, and scheduling begins.
type Ready struct{}

// Cancel asks for an action to end as soon as possible. The action is still answered, as withdrawn
// if it had not begun. An action that has begun may still succeed; its answer tells.
type Cancel struct {
	Ticket Ticket
	Reason string
}

// Hold says that plugins make the pod wait at Permit, each for a limited time. It is not answered:
// PermitAllowed and PermitRejected carry the plugins' verdicts, and Release ends it.
type Hold struct {
	Ticket Ticket
	Pod    *v1.Pod
	Node   string
	// Waits is how long each plugin makes the pod wait at most, from Since on. The core itself ends
	// a wait that is too long; the shell needs no timer.
	Waits map[string]time.Duration
	Since time.Time
}

// Release ends a Hold, including one that timed out or was given up.
type Release struct {
	Ticket Ticket
	How    string // "allowed", "rejected" or "timed out"
	Took   time.Duration
}

// WriteVolumes writes the volumes and claims that were matched for the pod. It is answered when
// they are written. The core itself then waits until they are bound.
type WriteVolumes struct {
	Ticket  Ticket
	Attempt *Attempt
	Volumes plugins.PodVolumes
}

// WriteClaims writes the allocations and reservations of the pod's device claims. Its Outcome lists
// what was written even if a later claim failed: that has to be released again.
type WriteClaims struct {
	Ticket  Ticket
	Attempt *Attempt
	Claims  plugins.ReservedClaims
	Uses    []ClaimUse // of Claims, in their order
}

// ClaimUse describes a pod's part in a claim that other pods may use too. Pods that write the same
// claim take turns, and each starts from what the previous one wrote.
type ClaimUse struct {
	Shared uint64 // the same for all users of the claim
	// Decided: the allocation was not in the API when the node was chosen, so the first user writes
	// it. Written: a user has written it already; if it is missing now, it was revoked and must not
	// be written again.
	Decided, Written bool
	// Joined: the reservation for the pod's group is another user's, and may not be in the API.
	Joined bool
}

// ReleaseClaim removes a pod's reservation from a device claim, or deletes a claim that was created
// for the pod. Only the release of a pod group's reservation has a ticket.
type ReleaseClaim struct {
	Ticket Ticket
	Claim  *resourcev1.ResourceClaim
	Holder types.UID // the pod or the PodGroup
}

// GiveBackClaim frees the devices of a claim that a pending pod cannot use: by writing the given
// status, or by deleting the claim.
type GiveBackClaim struct {
	Ticket Ticket
	Claim  *resourcev1.ResourceClaim
	Delete bool
}

// Remove deletes a victim, after writing the condition that tells why. It is answered when the
// deletion was accepted, not when the pod is gone.
type Remove struct {
	Ticket Ticket
	Victim v1.ObjectReference
	By     string    // scheduler name of the preemptor
	For    types.UID // the preemptor
	// Generation is the victim's, for the observedGeneration of its condition.
	Generation int64
}

// WriteStatus writes a condition, the nominated node, or both to a pod; nil leaves the field as it
// is. It is answered if it has a ticket. A nominated node of "" clears the field.
type WriteStatus struct {
	Ticket    Ticket
	Pod       *v1.Pod
	Condition *v1.PodCondition
	Nominate  *string
	// Reworded: of what the pod has already, only the message of the condition changes. It may be
	// written later than anything else.
	Reworded bool
}

// WriteGroup writes the condition PodGroupInitiallyScheduled of a PodGroup.
type WriteGroup struct {
	Group     *groups.PodGroup
	Condition metav1.Condition
}

// Tell records an event about an object. It is not answered, and may be dropped.
type Tell struct {
	Profile               string // the reporting component: a scheduler name
	About                 v1.ObjectReference
	Type, Reason, Message string
}

// Announce records the event that a pod was bound. It follows the answer to the Bind, also if a
// watch has shown the binding before.
type Announce struct{ Attempt *Attempt }

// ReadPod fetches a pod that the core does not keep. It is answered by Read, or not at all if the
// pod is gone.
type ReadPod struct{ Name cluster.Name }

// Compared reports where another scheduler placed a pod that a profile serves, and what every
// plugin said of every node before that; see hindsight. Only a shadow core returns it.
type Compared struct {
	Pod  *v1.Pod
	Node string
	Said *decide.Evaluation
	// Unclear is set if the pod can have been decided in a state that is not known.
	Unclear bool
}

// Panicked reports that deciding a pod panicked. The attempt has ended, and everything derived from
// the pods and nodes has been recomputed.
type Panicked struct {
	Pod   v1.ObjectReference
	Value string
	Stack []byte
	// Mended counts the nodes whose sums differed from the pods that the API has there.
	Mended int
}

func (Ready) isAction() {}

func (Cancel) isAction() {}

func (Hold) isAction()    {}
func (Release) isAction() {}

func (WriteVolumes) isAction()  {}
func (WriteClaims) isAction()   {}
func (ReleaseClaim) isAction()  {}
func (GiveBackClaim) isAction() {}
func (Remove) isAction()        {}
func (WriteStatus) isAction()   {}
func (WriteGroup) isAction()    {}
func (Tell) isAction()          {}
func (Announce) isAction()      {}
func (ReadPod) isAction()       {}
func (Compared) isAction()      {}
func (Panicked) isAction()      {}
