package cycle

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Core is the scheduling cycle of a set of profiles. It has one owner: its methods must not be
// called from two goroutines at once.
//
// What stays true between two steps: a pod to be scheduled is an item of the queue until a watch
// shows it bound or gone, and its place there is queue.Taken while an attempt is under way. A pod
// in placements counts on its node in cluster. Every placement, unanswered action and wait has an
// event or a deadline that ends it. Nothing is decided before all kinds are listed and this
// scheduler leads.
type Core struct {
	options Options
	rng     *rand.Rand
	now     time.Time // of the current step
	actions []Action  // of the current step
	tickets Ticket    // the last one issued

	// What is known about the world.
	cluster  *cluster.Cluster
	mirrors  map[Kind]mirror
	podNames map[cluster.Name]types.UID // of all known pods
	unlisted map[Kind]bool              // kinds not listed yet; nothing is decided before they are
	follows  bool                       // Follows was received
	leads    bool
	begun    bool // Ready was returned

	// Pods to be scheduled, and the profiles that schedule them.
	queue    *queue.Queue
	profiles map[string]*profile       // by scheduler name
	unserved map[types.UID]unservedPod // pending pods of scheduler names without a profile
	whole    bool                      // pending pods are kept whole, for out-of-tree plugins
	outside  bool                      // an out-of-tree plugin sees the objects of events
	news     happenings                // events since pods were last woken

	// Pods on their way to a node.
	placements  placements
	preemptions preemptions
	errands     map[Ticket]errand // actions not answered yet
	asking      int               // how many of them are questions asked aside
	claims      sharedClaims
	conditions  conditions
	groups      *podGroups // nil if pod groups are off
	budgets     usedBudgets
	// keepsBudgets: a profile promises that preemption respects all budgets.
	keepsBudgets bool

	// What was decided and reported about pods.
	decisions decisions
	flushed   time.Time // when the queue was last searched for pods that have waited too long
}

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
	// Observer, if set, is told what happens, for metrics; Stopwatch, if set, is the clock by which
	// it is told how long things take. Neither influences decisions.
	Observer  Observer
	Stopwatch func() time.Time
	// Wall turns a time of the core's clock, which nobody sets, into what clocks on walls show, for
	// times that others read or have written; nil: they are the same.
	Wall func(time.Time) time.Time
	// Objects, if set, is shown the API objects of nodes and pods.
	Objects Objects
	// Groups tells which features of pod groups are on. SearchLimit bounds the search for a
	// placement of a group whose pods differ, in evaluations of a node; 0 means
	// [DefaultSearchLimit].
	Groups      groups.Gates
	SearchLimit int
}

// New returns a core that knows nothing of its cluster yet.
func New(o Options) (*Core, error) {
	c := &Core{
		options: o, rng: rand.New(rand.NewPCG(o.Seed, 1)), cluster: cluster.New(), queue: queue.New(),
		podNames: map[cluster.Name]types.UID{}, unlisted: map[Kind]bool{}, profiles: map[string]*profile{},
		unserved: map[types.UID]unservedPod{}, placements: newPlacements(), preemptions: newPreemptions(), errands: map[Ticket]errand{},
		claims: sharedClaims{byName: map[cluster.Name]*sharedClaim{}}, conditions: conditions{}, decisions: newDecisions(),
		budgets: usedBudgets{},
	}
	if c.options.Observer == nil {
		c.options.Observer = NoObserver{}
	}
	if c.options.Stopwatch == nil {
		c.options.Stopwatch = func() time.Time { return time.Time{} }
	}
	if c.options.Wall == nil {
		c.options.Wall = func(now time.Time) time.Time { return now }
	}
	if o.Groups.Generic {
		c.groups = newPodGroups(o.Groups, cmp.Or(o.SearchLimit, DefaultSearchLimit))
	}
	c.mirrors = c.newMirrors()
	c.queue.Admit, c.queue.Admitted = c.admit, c.admitted
	c.queue.FirstBackoff = cmp.Or(o.FirstBackoff, c.queue.FirstBackoff)
	c.queue.LastBackoff = cmp.Or(o.LastBackoff, c.queue.LastBackoff)
	c.queue.MaxWait = cmp.Or(o.MaxWait, c.queue.MaxWait)
	c.queue.Moved = c.moved
	c.queue.Counted = c.observer().Rejected
	if o.Observer != nil {
		c.queue.Asked = o.Observer.Hinted
	}
	if err := c.configure(o.Profiles); err != nil {
		return nil, err
	}
	c.actions = nil
	return c, nil
}

// Step takes in an event and returns the resulting actions. now must not be before that of the
// previous step. The slice is reused by the next step.
func (c *Core) Step(now time.Time, e Event) []Action {
	clear(c.actions)
	clear(c.decisions.step)
	c.now, c.actions, c.decisions.step = now, c.actions[:0], c.decisions.step[:0]
	switch e := e.(type) {
	case Follows:
		c.follow(e.Kinds)
	case Listing:
		c.mirrors[e.Kind].listing()
	case Listed:
		c.mirrors[e.Kind].listed()
		delete(c.unlisted, e.Kind)
	case Seen:
		c.mirrors[e.Kind].seen(e.Object)
	case Gone:
		c.mirrors[e.Kind].gone(e.Object)
	case Read:
		c.readPod(e.Pod)
	case Led:
		c.leads = true
	case Configured:
		c.reconfigure(e.Profiles)
	case Resumed:
		c.resume(e)
	case Activate:
		for _, uid := range e.Pods {
			c.queue.Activate(uid, now)
		}
	case Happened:
		c.queue.Happened(e.Event, now)
	case PermitAllowed:
		c.permitAllowed(e)
	case PermitRejected:
		c.permitRejected(e)
	case ClaimMade:
		c.claimMade(e)
	case Answered:
		if errand, ok := c.errands[e.Ticket]; ok {
			delete(c.errands, e.Ticket)
			errand.answered(c, e.Outcome)
		}
	case Tick:
		c.tick()
	}
	return c.actions
}

// flushEvery is how often the queue is searched for pods that have waited too long.
const flushEvery = 30 * time.Second

// tick lets time take effect, wakes pods that recent events may help, and decides one pod.
func (c *Core) tick() {
	if c.now.Sub(c.flushed) >= flushEvery {
		c.flushed = c.now
		c.queue.Flush(c.now)
		c.conditions.news = true
	}
	c.timeOut()
	c.wake()
	if !c.decides() {
		return
	}
	if !c.begun {
		c.begun = true
		c.do(Ready{})
		c.settleGroups()
	}
	switch item := c.queue.Pop(c.now); {
	case item == nil:
	case c.groupOf(item) != nil:
		c.scheduleGroup(c.groupOf(item), item)
	default:
		c.schedule(item)
	}
}

// Wake returns when the core needs a Tick if nothing else happens; now, if there is work to do.
func (c *Core) Wake(now time.Time) time.Time {
	if len(c.news.events) > 0 || c.conditions.news || c.decides() && !c.begun {
		return now
	}
	next := c.flushed.Add(flushEvery)
	if at, ok := c.Due(); ok && at.Before(next) {
		return at
	}
	return next
}

// Due returns when the next timed wait ends: a back-off, a wait at Permit or one for objects. If ok
// is false there is none, and a Tick only searches for pods that have waited too long.
func (c *Core) Due() (next time.Time, ok bool) {
	sooner := func(at time.Time) {
		if !ok || at.Before(next) {
			next, ok = at, true
		}
	}
	if at, ready := c.queue.NextReady(); ready && c.decides() {
		sooner(at)
	}
	for _, b := range c.placements.held {
		sooner(b.permit.next())
	}
	if at := c.conditions.next(); !at.IsZero() {
		sooner(at)
	}
	return next, ok
}

// decides tells whether the core may decide pods yet.
func (c *Core) decides() bool { return c.leads && c.Synced() }

// Synced tells whether every followed kind has been listed.
func (c *Core) Synced() bool { return c.follows && len(c.unlisted) == 0 }

func (c *Core) follow(kinds []Kind) {
	c.follows = true
	for _, kind := range kinds {
		c.unlisted[kind] = true
	}
}

// do returns an action from the current step.
func (c *Core) do(a Action) { c.actions = append(c.actions, a) }

// send issues the ticket for an action whose answer e will take.
func (c *Core) send(e errand) Ticket {
	c.tickets++
	c.errands[c.tickets] = e
	return c.tickets
}

// errand takes the answer to an action.
type errand interface{ answered(c *Core, o Outcome) }

func (c *Core) observer() Observer { return c.options.Observer }

// wall is the time of the current step for others to read.
func (c *Core) wall() time.Time { return c.options.Wall(c.now) }

// clock is the time by which durations are measured for metrics.
func (c *Core) clock() time.Time { return c.options.Stopwatch() }

// View is the state that the core decides on. It may be read between two steps.
type View struct {
	Cluster  *cluster.Cluster
	Queue    *queue.Queue
	Profiles map[string]Profile
	Groups   *groups.Set // nil if pod groups are off
}

// View returns the core's state.
func (c *Core) View() View {
	v := View{Cluster: c.cluster, Queue: c.queue, Profiles: map[string]Profile{}}
	if c.groups != nil {
		v.Groups = c.groups.Set
	}
	for name, p := range c.profiles {
		v.Profiles[name] = p.Profile
	}
	return v
}

// Sizes counts what the core keeps.
func (c *Core) Sizes() Sizes {
	return Sizes{
		Active: c.queue.Len(queue.Active), Backoff: c.queue.Len(queue.Backoff), Unschedulable: c.queue.Len(queue.Waiting),
		Gated: c.queue.Len(queue.Gated), Nodes: c.cluster.Len(), Pods: c.cluster.Pods(), Assumed: c.placements.len(),
	}
}

// Books lists what is under way. When the cluster is at rest, all of it is empty.
type Books struct {
	Assumed   []types.UID // pods on their way to a node
	Held      []types.UID // those of them that wait at Permit
	Preemptor []types.UID // pods whose victims' removal is not answered yet
	Leaving   []types.UID // victims that no watch has shown terminating
	Unserved  []types.UID // pending pods of scheduler names without a profile
	Claims    int         // device claims in use whose allocation no watch has shown
	Awaiting  int         // waits for objects
	Errands   int         // actions not answered yet
	Decisions int         // remembered decisions about pending pods
}

// Books shows what is under way.
func (c *Core) Books() Books {
	b := Books{
		Assumed: slices.Sorted(maps.Keys(c.placements.byPod)), Preemptor: slices.Sorted(maps.Keys(c.preemptions.rounds)),
		Leaving: slices.Sorted(maps.Keys(c.preemptions.leaving)), Unserved: slices.Sorted(maps.Keys(c.unserved)),
		Claims: len(c.claims.byName), Awaiting: len(c.conditions.list), Errands: len(c.errands), Decisions: len(c.decisions.waiting),
	}
	for _, held := range c.placements.held {
		b.Held = append(b.Held, held.Pod.UID)
	}
	return b
}
