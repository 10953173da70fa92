package cycle

import (
	"cmp"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/gang"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Core is the scheduling cycle of a set of profiles. It has one owner: its methods must not be
// called from two goroutines at once.
//
// It consists of parts, in the order of the fields. A part uses the parts before it and calls none
// after it; how a placement ends is reported through the interface aftermath. The invariants of a
// part stand at its type. Those of the whole: a pod to be scheduled is an item of the queue until a
// watch shows it bound or gone, and its place there is queue.Taken while an attempt is under way.
// Every placement, unanswered action and wait has an event or a deadline that ends it. Nothing is
// decided before all kinds are listed and this scheduler leads.
type Core struct {
	*common
	ready       *readiness
	news        *happenings
	nominations *nominations
	rooms       *rooms
	decisions   *decisions
	claims      *sharedClaims
	placements  *placements
	podGroups   *podGroups
	reserved    *reservations
	preemptions *preemptions
	profiles    *profiles
	hindsight   *hindsight
	attempts    *attempts
	intake      *intake
	mirrors     map[Kind]mirror
	flushed     time.Time // when the queue was last searched for pods that have waited too long
}

// DefaultSearchLimit is the default of Options.SearchLimit.
const DefaultSearchLimit = gang.DefaultSearchLimit

// Options configure a core.
type Options struct {
	Profiles []Profile
	// Seed determines all random choices: which of several best nodes is taken, and which attempts
	// are timed.
	Seed uint64
	// FirstBackoff, LastBackoff and MaxWait configure the queue; 0 means its default.
	FirstBackoff, LastBackoff, MaxWait time.Duration
	// Shadow makes the core compare where other schedulers place the pods of its profiles. Such a
	// core never leads.
	Shadow bool
	// Observer, if set, is called with what happens, for metrics. Stopwatch, if set, is the clock
	// that measures durations for it. Neither influences decisions.
	Observer  Observer
	Stopwatch func() time.Time
	// Objects, if set, is shown the API objects of nodes and pods.
	Objects Objects
	// Groups tells which features of pod groups are on. SearchLimit bounds the search for a
	// placement of a group whose pods differ, and how many domains of a topology key an attempt
	// tries, in judgements of a node; 0 means [DefaultSearchLimit].
	Groups      groups.Gates
	SearchLimit int
	// Unhurried attempts for groups do not end because others wait: for forecasts.
	Unhurried bool
	Disabled  Disabled
	// PrepareAside: what a plugin has to compute about a pod before the pod is decided is asked
	// aside; see [Ask] and [plugins.Preparer]. Else it is computed by the goroutine that decides,
	// when it is needed.
	PrepareAside bool
	// Prefer, if set, breaks ties between nodes in place of chance; see [decide.Decider].
	Prefer func(*cluster.Pod) string
}

// Disabled are features of the cycle that are on unless a feature gate of upstream disables them.
type Disabled struct {
	// PopFromBackoff (SchedulerPopFromBackoffQ): an idle scheduler does not decide rejected pods
	// before their back-off is over, and one whose victims have gone waits, too.
	PopFromBackoff bool `json:"popFromBackoff,omitempty"`
	// Expectation (NominatedNodeNameForExpectation): the node of a pod that waits at Permit, or for
	// which objects are written, is not written to nominatedNodeName.
	Expectation bool `json:"expectation,omitempty"`
	// DeviceTaintRules (DRADeviceTaintRules): they are not followed, and taint no devices.
	DeviceTaintRules bool `json:"deviceTaintRules,omitempty"`
}

// New returns a core that knows nothing of its cluster yet.
func New(o Options) (*Core, error) {
	c := assembleCore(newCommon(o))
	c.queue.Admit, c.queue.Admitted, c.queue.Moved = c.profiles.firstRejection, c.nominations.podAdmitted, c.nominations.podMoved
	if err := c.replaceProfiles(o.Profiles); err != nil {
		return nil, err
	}
	c.actions = nil
	return c, nil
}

// assembleCore makes the parts of a core, in their order.
func assembleCore(s *common) *Core {
	c := &Core{common: s}
	gates := s.options.Groups
	c.ready = &readiness{unlisted: map[Kind]bool{}}
	c.news = &happenings{common: s}
	c.nominations = &nominations{common: s, ready: c.ready, news: c.news, ofGroups: gates.Generic, lent: map[types.UID]bool{}}
	c.rooms = &rooms{common: s, nominations: c.nominations}
	c.decisions = newDecisions(s)
	c.claims = &sharedClaims{common: s, byName: map[cluster.Name]*sharedClaim{}, releasing: map[cluster.Name]types.UID{}}

	c.placements = newPlacements(s, c.news, c.nominations, c.claims)
	c.podGroups = &podGroups{common: s, ready: c.ready, placements: c.placements, gates: gates,
		held: map[*groups.Group]map[types.UID]string{}}
	if gates.Composite {
		s.queue.EntityOf = c.podGroups.entityOf
	}
	c.podGroups.units = gang.Units{Cluster: s.cluster, Groups: s.groups}
	c.reserved = &reservations{common: s, nominations: c.nominations, podGroups: c.podGroups}
	c.preemptions = newPreemptions(s, c.news, c.nominations, c.placements, c.podGroups)
	c.nominations.keepsOut = c.podGroups.keepsOut
	c.profiles = &profiles{common: s, news: c.news, podGroups: c.podGroups, preemptions: c.preemptions}
	c.hindsight = &hindsight{common: s, ready: c.ready, coming: map[types.UID]struct{}{}, foreseen: map[types.UID]*v1.Pod{},
		rejected: map[types.UID]struct{}{}, generations: map[types.UID]int64{}}

	c.attempts = &attempts{
		common: s, news: c.news, nominations: c.nominations, rooms: c.rooms, decisions: c.decisions,
		placements: c.placements, podGroups: c.podGroups,
		reserved: c.reserved, preemptions: c.preemptions, profiles: c.profiles, hindsight: c.hindsight, preparing: map[string]int{},
		limits: gang.Limits{
			Search: cmp.Or(s.options.SearchLimit, DefaultSearchLimit), Work: max(gang.DefaultWorkLimit, s.options.SearchLimit),
			Unhurried: s.options.Unhurried,
		},
	}

	c.placements.outcome = c.attempts
	c.intake = &intake{
		common: s, news: c.news, nominations: c.nominations, decisions: c.decisions, placements: c.placements, podGroups: c.podGroups,
		preemptions: c.preemptions, profiles: c.profiles, attempts: c.attempts,
		unserved: map[types.UID]unservedPod{},
	}

	c.mirrors = c.newMirrors()
	return c
}

// Check tells whether the profiles are valid. Configured ignores profiles that are not.
func (c *Core) Check(list []Profile) error {
	_, err := c.profiles.compileProfiles(list)
	return err
}

// replaceProfiles replaces the profiles between two attempts. What is known of the cluster,
// nominations and bindings under way stay. Pending pods are retried with the new configuration;
// pods of scheduler names that are no longer served leave the queue, and pods of names that are now
// served enter it.
func (c *Core) replaceProfiles(list []Profile) error {
	f, err := c.profiles.compileProfiles(list)
	if err != nil {
		return err
	}
	c.intake.keepWhole(f.whole)
	c.profiles.useConfiguration(f)
	if !c.news.outside {
		for _, m := range c.mirrors {
			m.forgetStates()
		}
	}
	c.intake.dismissUnserved()
	c.intake.fetchServed()
	return nil
}

// Step takes in an event and returns the resulting actions. now must not be before that of the
// previous step. The slice is reused by the next step.
func (c *Core) Step(now time.Time, e Event) []Action {
	c.beginStep(now)
	c.decisions.clearStep()
	if c.options.Shadow {
		c.hindsight.delayEvent(e, c.applyEvent)
	} else {
		c.applyEvent(e)
	}
	c.podGroups.regateHeld()
	return c.actions
}

func (c *Core) applyEvent(e Event) {
	switch e := e.(type) {
	case Follows:
		c.ready.followKinds(e.Kinds)

	// Objects, as lists and watches show them.
	case Listing:
		c.mirrors[e.Kind].beginList()
	case Listed:
		c.mirrors[e.Kind].endList()
		delete(c.ready.unlisted, e.Kind)
	case Seen:
		c.mirrors[e.Kind].applySeen(e.Object)
	case Gone:
		c.mirrors[e.Kind].applyGone(e.Object)
	case Read:
		c.intake.readPod(e.Pod)

	// What this scheduler is, and how it is configured.
	case Led:
		c.ready.leads = true
	case WallSet:
		c.ahead = e.Ahead
	case Configured:
		_ = c.replaceProfiles(e.Profiles)
	case Resumed:
		c.resume(e)

	// Out-of-tree plugins, and what the API server has made of actions.
	case Activate:
		for _, uid := range e.Pods {
			c.queue.Activate(uid, c.now)
		}
	case Happened:
		c.queue.Happened(e.Event, c.now)
	case PermitAllowed:
		c.placements.permitAllowed(e)
	case PermitRejected:
		c.placements.permitRejected(e)
	case ClaimMade:
		c.claims.replaceStandIn(e)

	case Answered:
		c.routeAnswer(e)
	case Tick:
		c.applyTick()
	}
}

// flushEvery is how often the queue is searched for pods that have waited too long.
const flushEvery = 30 * time.Second

// applyTick lets time take effect, wakes pods that recent events may help, and decides one pod.
func (c *Core) applyTick() {
	if c.now.Sub(c.flushed) >= flushEvery {
		c.flushed = c.now
		c.queue.Flush(c.now)
		c.news.objects = true
	}

	c.placements.timeOut()
	c.nominations.clearGated()
	c.rooms.lapse()
	c.reserved.lapse()
	c.preemptions.wakeDelayed()
	c.preemptions.forgetCounted()
	c.news.flushEvents()
	if !c.ready.mayDecide() {
		return
	}

	if !c.ready.begun {
		c.ready.begun = true
		c.addAction(Ready{})
		c.podGroups.updateAllScheduled()
	}

	switch item := c.queue.Pop(c.now); {
	case item == nil:
	case c.groupOf(item) != nil:
		c.attempts.scheduleGroup(c.groupOf(item), item)
	default:
		c.attempts.startAttempt(item)
	}
}

// Wake returns when the core needs a Tick if nothing else happens; now, if there is work to do.
func (c *Core) Wake(now time.Time) time.Time {
	if len(c.news.events) > 0 || c.news.objects || c.ready.mayDecide() && !c.ready.begun {
		return now
	}
	next := c.flushed.Add(flushEvery)
	if at, ok := c.Due(); ok && at.Before(next) {
		return at
	}
	return next
}

// Due returns when the next timed wait ends: a back-off, a wait at Permit, one for objects, one
// before a preemption, or that for a budget to count a victim that is gone. If ok is false there is
// none, and a Tick only searches for pods that have waited too long.
func (c *Core) Due() (next time.Time, ok bool) {
	sooner := func(at time.Time) {
		if !ok || at.Before(next) {
			next, ok = at, true
		}
	}

	if at, ready := c.queue.NextReady(); ready && c.ready.mayDecide() {
		sooner(at)
	}
	for _, b := range c.placements.held {
		sooner(b.permit.nextTimeout())
	}

	if at := c.placements.conditions.nextDeadline(); !at.IsZero() {
		sooner(at)
	}
	if at, waits := c.hindsight.nextDue(); waits {
		sooner(at)
	}

	if c.reserved.held != nil {
		sooner(c.reserved.next())
	}
	if kept := c.rooms.kept; kept != nil && !kept.over {
		sooner(kept.until)
	}

	if alarms := c.preemptions.alarms; len(alarms) > 0 {
		sooner(alarms[0].until)
	}
	if at := c.preemptions.recount; !at.IsZero() {
		sooner(at)
	}
	return next, ok
}

// Synced tells whether every followed kind has been listed.
func (c *Core) Synced() bool { return c.ready.hasSynced() }

// View is the state that the core decides on. It may be read between two steps.
type View struct {
	Cluster  *cluster.Cluster
	Queue    *queue.Queue
	Profiles map[string]Profile
	Groups   *groups.Set  // nil if pod groups are off
	Reserved *Reservation // the current one, or nil
}

// View returns the core's state.
func (c *Core) View() View {
	v := View{Cluster: c.cluster, Queue: c.queue, Profiles: map[string]Profile{}, Reserved: c.reserved.held}
	if c.podGroups.gates.Generic {
		v.Groups = c.groups
	}
	for name, p := range c.profiles.byName {
		v.Profiles[name] = p.Profile
	}
	return v
}

// Sizes counts what the core keeps.
func (c *Core) Sizes() Sizes {
	return Sizes{
		Active: c.queue.Len(queue.Active), Backoff: c.queue.Len(queue.Backoff), Unschedulable: c.queue.Len(queue.Waiting),
		Gated: c.queue.Len(queue.Gated), Entities: c.queue.Entities(),
		Nodes: c.cluster.Len(), Pods: c.cluster.Pods(), Assumed: c.placements.len(),
	}
}

// Books lists what is under way. When the cluster is at rest, all of it is empty.
type Books struct {
	Assumed   []types.UID // pods on their way to a node
	Held      []types.UID // those of them that wait at Permit
	Preemptor []types.UID // pods whose victims' removal is not answered yet
	Leaving   []types.UID // victims that no watch has shown terminating
	Yielding  int         // victims whose binding is not over
	Unserved  []types.UID // pending pods of scheduler names without a profile
	Claims    int         // device claims in use or given up of which no watch has shown that
	Awaiting  int         // waits for objects
	Errands   int         // actions not answered yet
	Decisions int         // remembered decisions about pending pods
}

// Books shows what is under way.
func (c *Core) Books() Books {
	b := Books{
		Assumed: slices.Sorted(maps.Keys(c.placements.byPod)), Preemptor: slices.Sorted(maps.Keys(c.preemptions.rounds)),
		Leaving: slices.Sorted(maps.Keys(c.preemptions.leaving)), Unserved: slices.Sorted(maps.Keys(c.intake.unserved)),
		Yielding: len(c.preemptions.binding), Claims: len(c.claims.byName) + len(c.claims.releasing),
		Awaiting: len(c.placements.conditions), Errands: len(c.errands), Decisions: len(c.decisions.waiting),
	}
	for _, held := range c.placements.held {
		b.Held = append(b.Held, held.Pod.UID)
	}
	slices.Sort(b.Held)
	return b
}
