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

// Core schedules the pods of its profiles. It has one owner: nothing here may be called from two
// goroutines at once.
type Core struct {
	options Options
	rng     *rand.Rand
	now     time.Time // of the step under way
	actions []Action  // of the step under way
	tickets Ticket    // the last one given out

	// What is known of the world.
	cluster  *cluster.Cluster
	mirrors  map[Kind]mirror
	podNames map[cluster.Name]types.UID // of all pods
	unlisted map[Kind]bool              // kinds that were not listed yet; nothing is decided before they are
	follows  bool                       // it was said which kinds there are
	leads    bool
	begun    bool // Ready was said

	// Pods that are to be scheduled, and by what.
	queue    *queue.Queue
	profiles map[string]*profile       // by scheduler name
	unserved map[types.UID]unservedPod // pods of scheduler names that no profile has
	whole    bool                      // out-of-tree plugins may look at anything of a pending pod
	outside  bool                      // an out-of-tree plugin is shown the objects of events
	news     happenings                // since pods were last woken

	// Pods on their way.
	placements  placements
	preemptions preemptions
	errands     map[Ticket]errand // actions that are to be answered
	asking      int               // of these, how many are questions asked aside
	claims      sharedClaims
	conditions  conditions
	groups      *podGroups // nil where pod groups are switched off
	budgets     usedBudgets
	// keepsBudgets: a profile promises that preemption breaks none.
	keepsBudgets bool

	// What was said of pods.
	decisions decisions
	flushed   time.Time // when pods that have waited too long were last looked for
}

// Options are what a core is made of.
type Options struct {
	Profiles []Profile
	// Seed is where all chance comes from: which of equally good nodes is taken, and which attempts
	// are timed.
	Seed uint64
	// FirstBackoff, LastBackoff and MaxWait are the queue's; 0 stands for its default.
	FirstBackoff, LastBackoff, MaxWait time.Duration
	// Shadow: it is compared where others place the pods of the profiles. It goes with a core that
	// never leads.
	Shadow bool
	// Observer, if set, is told what happens, for metrics, and Stopwatch, if set, is the clock by
	// which it is told how long things take. Neither has a say in what is decided.
	Observer  Observer
	Stopwatch func() time.Time
	// Objects, if set, is shown the API objects of nodes and pods.
	Objects Objects
	// Groups says what of pod groups is switched on, and SearchLimit how much is tried at most to
	// place one whose pods differ, in judgements of a node; 0 stands for [DefaultSearchLimit].
	Groups      groups.Gates
	SearchLimit int
}

// New returns a core that knows nothing of any cluster yet.
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
	if o.Groups.Generic {
		c.groups = newPodGroups(o.Groups, cmp.Or(o.SearchLimit, DefaultSearchLimit))
	}
	c.mirrors = c.newMirrors()
	c.queue.Admit, c.queue.Admitted = c.admit, c.admitted
	c.queue.FirstBackoff = cmp.Or(o.FirstBackoff, c.queue.FirstBackoff)
	c.queue.LastBackoff = cmp.Or(o.LastBackoff, c.queue.LastBackoff)
	c.queue.MaxWait = cmp.Or(o.MaxWait, c.queue.MaxWait)
	c.queue.Moved = func(item *queue.Item, label string) { c.observer().Queued(item.Place(), label) }
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

// Step takes an event in, at a time that is not before that of the last step, and returns what
// follows from it. The slice is the core's own and holds until the next step.
func (c *Core) Step(now time.Time, e Event) []Action {
	clear(c.actions)
	c.now, c.actions, c.decisions.last = now, c.actions[:0], ""
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

// flushEvery is how often pods that have waited for too long are looked for.
const flushEvery = 30 * time.Second

// tick does what time brings, wakes whom the events since the last time can help, and decides one
// pod.
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

// Wake returns when the core wants a Tick if nothing else happens: now, if there is something to be
// done.
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

// Due returns when something ends that is timed: a back-off, a wait at Permit or for objects. There
// is nothing if it is not ok; then a Tick does nothing but look for pods that have waited too long.
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

// decides tells whether anything is to be decided yet.
func (c *Core) decides() bool { return c.leads && c.Synced() }

// Synced tells whether the cluster is known: every kind that is followed was listed.
func (c *Core) Synced() bool { return c.follows && len(c.unlisted) == 0 }

func (c *Core) follow(kinds []Kind) {
	c.follows = true
	for _, kind := range kinds {
		c.unlisted[kind] = true
	}
}

// do asks for an action.
func (c *Core) do(a Action) { c.actions = append(c.actions, a) }

// send gives out the ticket of an action that is to be answered.
func (c *Core) send(e errand) Ticket {
	c.tickets++
	c.errands[c.tickets] = e
	return c.tickets
}

// errand is what an answer is for.
type errand interface{ answered(c *Core, o Outcome) }

func (c *Core) observer() Observer { return c.options.Observer }

// clock is the time by which durations are measured for metrics.
func (c *Core) clock() time.Time { return c.options.Stopwatch() }

// View is the state that the core decides on. It may be looked at between two steps.
type View struct {
	Cluster  *cluster.Cluster
	Queue    *queue.Queue
	Profiles map[string]Profile
}

// View shows the core's state.
func (c *Core) View() View {
	v := View{Cluster: c.cluster, Queue: c.queue, Profiles: map[string]Profile{}}
	for name, p := range c.profiles {
		v.Profiles[name] = p.Profile
	}
	return v
}

// Sizes tells how many there are of what the core keeps.
func (c *Core) Sizes() Sizes {
	return Sizes{
		Active: c.queue.Len(queue.Active), Backoff: c.queue.Len(queue.Backoff), Unschedulable: c.queue.Len(queue.Waiting),
		Gated: c.queue.Len(queue.Gated), Nodes: c.cluster.Len(), Pods: c.cluster.Pods(), Assumed: c.placements.len(),
	}
}

// Books are what the core keeps of what is under way. When all is calm every one is empty.
type Books struct {
	Assumed   []types.UID // pods on their way to a node
	Held      []types.UID // of these, those that wait at Permit
	Preemptor []types.UID // pods whose victims are still to be told
	Leaving   []types.UID // victims that no watch has shown leaving
	Unserved  []types.UID // pods of scheduler names that no profile has
	Claims    int         // allocations of devices that no watch has shown
	Awaiting  int         // placements that wait for objects
	Errands   int         // actions that were not answered
	Decisions int         // what is remembered of pending pods
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
