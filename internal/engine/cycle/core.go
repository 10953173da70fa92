// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Core is the scheduling cycle of a set of profiles. It has one owner: its methods must not be
// called concurrently.
//
// It consists of parts, in the order of the fields. A part uses only the parts listed before it;
// the end of a placement is reported through the interface placementListener. Each part's type
// documents its own invariants. The following invariants hold for the whole core. A pod to be
// scheduled is an item of the queue until a watch shows it bound or deleted, and its place in the
// queue is queue.Taken during an attempt. Every placement, outstanding action and wait has an event
// or a deadline that ends it. No decision is made before all kinds are listed and this scheduler
// leads.
type Core struct {
	*common
	ready            *readiness
	events           *clusterEvents
	nominations      *nominations
	moveReservations *moveReservations
	decisions        *decisions
	claims           *sharedClaims
	placements       *placements
	podGroups        *podGroups
	reserved         *reservations
	preemptions      *preemptions
	profiles         *profiles
	attempts         *attempts
	intake           *intake
	mirrors          map[Kind]mirror
	flushed          time.Time // time of the last scan for pods stuck in the unschedulable queue
}

// New returns a core with an empty cluster model.
func New(o Options) (*Core, error) {
	c := assembleCore(newCommon(o))
	c.queue.Admit, c.queue.Admitted, c.queue.Moved = c.profiles.firstRejection, c.nominations.podAdmitted, c.nominations.podMoved
	if err := c.replaceProfiles(o.Profiles); err != nil {
		return nil, err
	}
	c.actions = nil
	if o.Shadow != nil {
		c.shadow = o.Shadow(c)
	}
	return c, nil
}

// assembleCore creates the parts of a core, in their order. Each part receives the earlier parts
// that it uses. An earlier part calls a later part only through a function or an interface that is
// set afterwards: nominations.keepsOut, placements.listener, and the hooks of the queue.
func assembleCore(s *common) *Core {
	c := &Core{common: s}
	gates := s.options.Groups
	c.ready = &readiness{unlisted: map[Kind]bool{}}
	c.events = &clusterEvents{common: s}
	c.nominations = &nominations{common: s, ready: c.ready, events: c.events, ofGroups: gates.Generic, lent: map[types.UID]bool{}}
	c.moveReservations = &moveReservations{common: s, nominations: c.nominations}
	c.decisions = &decisions{common: s, waiting: map[types.UID]pendingOutcome{}}
	c.claims = &sharedClaims{common: s, byName: map[cluster.Name]*sharedClaim{}, releasing: map[cluster.Name]types.UID{}}

	c.placements = &placements{
		common: s, events: c.events, nominations: c.nominations, claims: c.claims,
		byPod: map[types.UID]*placement{}, held: map[Ticket]*placement{},
	}
	c.podGroups = &podGroups{
		common: s, ready: c.ready, placements: c.placements, gates: gates,
		progress: groupProgress{common: s, placements: c.placements},
		held:     heldMembers{held: map[*groups.Group]map[types.UID]string{}},
	}
	if gates.Composite {
		s.queue.EntityOf = c.podGroups.entityOf
	}
	c.podGroups.units = gang.Units{Cluster: s.cluster, Groups: s.groups}
	c.reserved = &reservations{common: s, nominations: c.nominations, podGroups: c.podGroups}
	c.preemptions = &preemptions{
		common: s, events: c.events, nominations: c.nominations, placements: c.placements, podGroups: c.podGroups,
		rounds: map[types.UID]*round{}, leaving: map[types.UID]bool{}, binding: map[*placement]*removal{}, budgets: usedBudgets{},
		leavers: map[types.UID]bool{},
	}
	c.nominations.keepsOut = c.podGroups.keepsOut
	c.profiles = &profiles{common: s, events: c.events, podGroups: c.podGroups, preemptions: c.preemptions}

	c.attempts = &attempts{
		common: s, events: c.events, nominations: c.nominations, decisions: c.decisions,
		placements: c.placements, podGroups: c.podGroups,
		reserved: c.reserved, preemptions: c.preemptions, profiles: c.profiles, preparing: map[string]int{},
		limits: gang.Limits{
			Search: cmp.Or(s.options.SearchLimit, DefaultSearchLimit), Work: max(gang.DefaultWorkLimit, s.options.SearchLimit),
			Unhurried: s.options.Unhurried,
		},
	}

	c.placements.listener = c.attempts
	c.intake = &intake{
		common: s, events: c.events, nominations: c.nominations, decisions: c.decisions, placements: c.placements, podGroups: c.podGroups,
		preemptions: c.preemptions, profiles: c.profiles, attempts: c.attempts,
		unserved: map[types.UID]unservedPod{},
	}

	s.cluster.IsPending = func(uid types.UID) bool {
		_, unserved := c.intake.unserved[uid]
		return unserved || s.queue.Get(uid) != nil
	}
	c.mirrors = c.newMirrors()
	return c
}

// Check reports whether the profiles are valid. Configured ignores invalid profiles. Check compiles
// the profiles like Configured, and discards the result.
func (c *Core) Check(list []Profile) error {
	_, err := c.profiles.compileProfiles(list)
	return err
}

// replaceProfiles replaces the profiles between two attempts. The cluster model, nominations and
// pending bindings are kept. Pending pods are retried with the new configuration; pods of scheduler
// names no longer served leave the queue, and pods of newly served names enter it.
func (c *Core) replaceProfiles(list []Profile) error {
	f, err := c.profiles.compileProfiles(list)
	if err != nil {
		return err
	}
	c.intake.keepWhole(f.whole)
	c.profiles.useConfiguration(f)
	if !c.events.outOfTree {
		for _, m := range c.mirrors {
			m.forgetStates()
		}
	}
	c.intake.dismissUnserved()
	c.intake.fetchServed()
	return nil
}

// dismissUnserved removes pods with an unserved scheduler name from the queue, and retries the
// remaining pods.
func (i *intake) dismissUnserved() {
	for _, item := range i.queue.Sorted() {
		pod := item.Pod
		if i.profiles.servesName(pod.Spec.SchedulerName) {
			i.queue.Wake(pod.UID, queue.ForceActivate, i.now)
			continue
		}
		name := unservedPod{nameOf(pod), pod.Spec.SchedulerName}
		i.dropPending(pod.UID)
		if item.Resizes() {
			continue
		}
		i.unserved[pod.UID] = name
		i.unserved = cluster.Shrunk(i.unserved, &i.mostUnserved)
	}
}

// fetchServed fetches the pending pods of newly served scheduler names, in a fixed order. Each pod
// enters the queue when its Read arrives.
func (i *intake) fetchServed() {
	for _, uid := range slices.Sorted(maps.Keys(i.unserved)) {
		if pod := i.unserved[uid]; i.profiles.servesName(pod.scheduler) {
			i.addAction(ReadPod{pod.Name})
		}
	}
}

// keepWhole sets whether whole pod objects are kept from now on. Pods already pending are fetched
// again from Options.Objects.
func (i *intake) keepWhole(whole bool) {
	if whole && !i.trimmer.whole {
		for item := range i.queue.Each {
			if pod := i.options.Objects.Shown(item.Pod.UID); pod != nil { // otherwise the pod stays trimmed
				item.Pod = pod
			}
		}
	}
	i.trimmer.whole = whole
}

// Synced reports whether every followed kind has been listed.
func (c *Core) Synced() bool { return c.ready.hasSynced() }

// DefaultSearchLimit is the default of Options.SearchLimit.
const DefaultSearchLimit = gang.DefaultSearchLimit

// Options configures a core. New requires at least one profile; the zero value of every other field
// is useful.
type Options struct {
	Profiles []Profile
	// Seed determines all random choices: the choice between equally good nodes, and the choice of
	// the attempts whose plugins are timed.
	Seed uint64
	// FirstBackoff, LastBackoff and MaxWait configure the queue; 0 means the queue's default.
	FirstBackoff, LastBackoff, MaxWait time.Duration
	// Shadow, if set, makes the core compare the placements made by other schedulers for the pods
	// of its profiles, as its result judges them. Such a core never leads.
	Shadow func(*Core) Shadow
	// Observer, if set, receives metrics. Stopwatch, if set, is the clock for the durations in
	// metrics. Neither influences decisions.
	Observer  Observer
	Stopwatch func() time.Time
	// Objects, if set, receives the API objects of nodes, pods and pod groups.
	Objects Objects
	// Groups enables features of pod groups. SearchLimit is the maximum number of node evaluations
	// in a search for a placement of a group with differing pods. It also limits the domains of a
	// topology key tried by an attempt. 0 means [DefaultSearchLimit].
	Groups      groups.Gates
	SearchLimit int
	// Unhurried attempts for groups do not end early for other waiting pods. It is set for
	// forecasts.
	Unhurried bool
	Disabled  Disabled
	// ResizePreemption (InPlacePodVerticalScalingSchedulerPreemption): a resize deferred by the
	// kubelet preempts pods of lower priority on its node.
	ResizePreemption bool
	// PrepareAside makes plugins prepare a pod's data asynchronously before the pod is decided; see
	// [Ask] and [plugins.Preparer]. Otherwise the deciding goroutine computes it on demand.
	PrepareAside bool
	// Prefer, if set, replaces the random choice between nodes with equal scores; see
	// [decide.Decider].
	Prefer func(*cluster.Pod) string
}

// Disabled lists features of the cycle that are enabled unless disabled by an upstream feature
// gate.
type Disabled struct {
	// PopFromBackoff (SchedulerPopFromBackoffQ): an idle scheduler does not decide rejected pods
	// before their back-off is over, including pods with terminated victims.
	PopFromBackoff bool `json:"popFromBackoff,omitempty"`
	// Expectation (NominatedNodeNameForExpectation): the node of a pod waiting at Permit, or for
	// writes of objects, is not written to nominatedNodeName.
	Expectation bool `json:"expectation,omitempty"`
	// DeviceTaintRules (DRADeviceTaintRules): DeviceTaintRules are not followed, and taint no
	// devices.
	DeviceTaintRules bool `json:"deviceTaintRules,omitempty"`
}

// Shadow stands between the events and a core that compares the placements of another scheduler. It
// restores the cluster states in which that scheduler may have decided; see package reconstruct.
type Shadow interface {
	// DelayEvent passes an event to take, now or in a later step, and the delayed events now due.
	DelayEvent(now time.Time, e Event, take func(Event))
	// NextDue returns the time at which the next delayed event is due. ok is false if there is
	// none.
	NextDue() (at time.Time, ok bool)
	// Judge calls evaluate in possible states of the cluster at the decision about a pod bound to a
	// node. It returns one of the evaluations, and whether other states were possible.
	Judge(item *queue.Item, node string, evaluate func() *decide.Evaluation) (evaluation *decide.Evaluation, unclear bool)
}
