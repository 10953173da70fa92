package live

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/controller/eventlog"
	"github.com/berth-k8s/berth/queue"
)

// Scheduler schedules the pods of its profiles. Fields belong to the goroutine of Run unless it is said otherwise.
type Scheduler struct {
	client   kubernetes.Interface
	observer Observer
	inbox    *inbox
	feeds    []func(context.Context)
	unsynced int // feeds that have not listed yet; nothing is decided before
	ready    func()
	lead     <-chan struct{}
	objects  Objects

	cluster       *cluster.Cluster
	queue         *queue.Queue
	profiles      map[string]*profile // by scheduler name
	unserved      map[types.UID]waitingName
	placements    map[types.UID]*placement // pods that are counted on a node and that no watch has shown there
	held          int                      // of these, how many a plugin at Permit has wait
	rescuing      bool                     // room is being made for a pod that is not in the queue's hands yet
	preempting    map[types.UID]int        // victims that are still to be told, by preemptor
	victims       map[types.UID]bool       // pods that are being removed for others and that no watch has shown leaving
	happenings    []queue.Event            // since pods were last woken
	outside       bool                     // a plugin from outside wants to see the objects of events
	whole         bool                     // one may look at anything of a pod that waits
	conditions    map[*condition]struct{}  // what pods wait for before they are bound
	conditionNews bool                     // an object that these may depend on has changed
	claims        sharedClaims
	decided       decided
	shadow        Shadow
	podNames      map[cluster.Name]types.UID // of all pods

	life             context.Context // ends when the scheduler is to stop; set before anything runs
	binders, helpers *workers
	post             func(context.Context, *v1.Binding) error // one binding
	announcing       announcing

	// Safe for all.
	stages  sync.WaitGroup // goroutines of pods
	waiting waitingPods
	events  eventLogs
	sizes   [7]atomic.Int64
	synced  atomic.Bool
	ended   chan struct{}
}

// waitingName is a pod that waits for a scheduler of another name.
type waitingName struct {
	cluster.Name
	scheduler string
}

// Options are what a scheduler is made of.
type Options struct {
	Profiles []Profile
	// Ready, if set, is called once, when the cluster is known and scheduling begins.
	Ready func()
	// Observer, if set, is told what happens.
	Observer Observer
	// Lead, if set, is closed when this scheduler is to decide. Before, it only gets to know the cluster: pods queue up, and nothing is
	// decided, written or said.
	Lead <-chan struct{}
	// Objects, if set, is shown the API objects of nodes and pods.
	Objects Objects
	// Shadow, if set, is told what others choose for the pods of the profiles, with what is said of all nodes as they were before. It
	// goes with a Lead that is never given.
	Shadow Shadow
	// ContentType is that of bindings and of the events that tell of them; protobuf if it is empty.
	ContentType string
	// FirstBackoff, LastBackoff and MaxWait are the queue's; 0 stands for its default.
	FirstBackoff, LastBackoff, MaxWait time.Duration
}

// Objects is shown the API objects of nodes and pods as they come and go, each before the cluster is told. On the owner.
type Objects interface {
	Pod(pod *v1.Pod) // seen or changed, waiting or placed
	PodGone(uid types.UID)
	Node(node *v1.Node) // every update, also those that change nothing for decisions
	NodeGone(name string)
	// Shown is a pod as it was shown last, if it is kept.
	Shown(uid types.UID) *v1.Pod
}

// Number of workers for what has time: status, victims.
const helperCount = 32

// New returns a scheduler for the cluster that client talks to. Events go through a client of their own, at a rate of their own, so
// that they are in nobody's way. Bindings take its connections, too: what is best for many small requests is best for both.
func New(client, eventClient kubernetes.Interface, o Options) (*Scheduler, error) {
	bindings, err := newPoster(eventClient, client, o.ContentType)
	if err != nil {
		return nil, err
	}
	announcements, err := newPoster(eventClient, eventClient, o.ContentType)
	if err != nil {
		return nil, err
	}
	s := &Scheduler{
		client: client, observer: o.Observer, inbox: newInbox(), ready: o.Ready, lead: o.Lead, objects: o.Objects, shadow: o.Shadow,
		cluster: cluster.New(), queue: queue.New(), profiles: map[string]*profile{}, unserved: map[types.UID]waitingName{},
		placements: map[types.UID]*placement{}, preempting: map[types.UID]int{}, victims: map[types.UID]bool{}, conditions: map[*condition]struct{}{},
		claims: sharedClaims{}, decided: decided{waiting: map[types.UID]outcome{}}, life: context.Background(),
		binders: newWorkers(), helpers: newWorkers(), ended: make(chan struct{}),
	}
	s.post = bindings.bind
	if s.observer == nil {
		s.observer = NoObserver{}
	}
	s.waiting.pods = map[types.UID]*WaitingPod{}
	s.events = eventLogs{client: eventClient, logs: map[string]*eventlog.Log{}, busy: s.binders.busy}
	s.announcing = announcing{write: announcements.event, busy: s.binders.busy, more: make(chan struct{}, 1)}
	s.queue.Admit = s.admit
	s.queue.FirstBackoff = cmp.Or(o.FirstBackoff, s.queue.FirstBackoff)
	s.queue.LastBackoff = cmp.Or(o.LastBackoff, s.queue.LastBackoff)
	s.queue.MaxWait = cmp.Or(o.MaxWait, s.queue.MaxWait)
	s.queue.Moved = func(item *queue.Item, label string) { s.observer.Queued(item.Place(), label) }
	s.queue.Counted = s.observer.Rejected
	if o.Observer != nil {
		s.queue.Asked = s.observer.Hinted
	}
	if err := s.use(o.Profiles); err != nil {
		return nil, err
	}
	return s, nil
}

// Run schedules until the context ends. Bindings under way are finished; those that were not begun are not.
func (s *Scheduler) Run(ctx context.Context, binders int) error {
	defer close(s.ended)
	s.life = ctx
	if err := s.watch(ctx); err != nil {
		return err
	}
	var running, telling sync.WaitGroup
	tellCtx, silence := context.WithCancel(context.WithoutCancel(ctx))
	defer silence()
	for _, f := range s.feeds {
		running.Go(func() { f(ctx) })
	}
	running.Go(func() { s.binders.run(ctx, binders) })
	running.Go(func() { s.helpers.run(ctx, helperCount) })
	telling.Go(func() { s.events.run(tellCtx) })
	telling.Go(func() { s.announcing.run(tellCtx) })
	s.own(ctx) // if it panics, nothing is waited for: the process is to end
	s.stages.Wait()
	running.Wait()
	silence() // what is said comes behind what is done, to the end
	telling.Wait()
	return nil
}

// flushEvery is how often pods that have waited for too long are looked for.
const flushEvery = 30 * time.Second

// own is the loop of the goroutine that owns the state.
func (s *Scheduler) own(ctx context.Context) {
	flush := time.NewTicker(flushEvery)
	defer flush.Stop()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var spare []func()
	for ctx.Err() == nil {
		spare = s.readInbox(spare)
		if s.step(ctx) {
			continue
		}
		s.measure()
		if at, ok := s.queue.NextReady(); ok {
			timer.Reset(time.Until(at))
		}
		select {
		case <-ctx.Done():
		case <-s.inbox.more:
		case <-s.lead: // nil once it leads
		case <-timer.C:
		case <-flush.C:
			s.queue.Flush(time.Now())
			s.conditionNews = true
		}
	}
}

// step decides one pod, and returns false if there is none to decide.
func (s *Scheduler) step(ctx context.Context) bool {
	if !s.leads() {
		return false
	}
	item := s.queue.Pop(time.Now())
	if item == nil {
		return false
	}
	s.schedule(ctx, item)
	return true
}

// leads tells whether anything is to be decided yet.
func (s *Scheduler) leads() bool {
	if s.lead != nil {
		select {
		case <-s.lead:
			s.lead = nil
		default:
		}
	}
	if s.unsynced > 0 {
		return false
	}
	s.synced.Store(true)
	if s.lead != nil {
		return false
	}
	if s.ready != nil {
		s.ready()
		s.ready = nil
	}
	return true
}

// readInbox does what the messages say, and then wakes whom the events among them can help.
func (s *Scheduler) readInbox(spare []func()) []func() {
	messages := s.inbox.take(spare)
	for i, message := range messages {
		message()
		messages[i] = nil
	}
	s.wake()
	if len(messages) > 0 {
		s.measure()
	}
	if s.conditionNews {
		s.conditionNews = false
		s.checkConditions()
	}
	return messages
}

// measure notes the sizes of what is kept.
func (s *Scheduler) measure() {
	for i, n := range [...]int{
		s.queue.Len(queue.Active), s.queue.Len(queue.Backoff), s.queue.Len(queue.Waiting), s.queue.Len(queue.Gated),
		s.cluster.Len(), s.cluster.Pods(), len(s.placements),
	} {
		s.sizes[i].Store(int64(n))
	}
}

// Sizes tells how many there are of what the scheduler keeps. Safe for all goroutines.
func (s *Scheduler) Sizes() Sizes {
	n := func(i int) int { return int(s.sizes[i].Load()) }
	return Sizes{Active: n(0), Backoff: n(1), Unschedulable: n(2), Gated: n(3), Nodes: n(4), Pods: n(5), Assumed: n(6)}
}

// Synced tells whether the cluster is known, so that scheduling can begin. Safe for all goroutines.
func (s *Scheduler) Synced() bool { return s.synced.Load() }

// View is the state that the scheduler decides on. It may be read only while [Scheduler.Inspect] shows it.
type View struct {
	Cluster  *cluster.Cluster
	Queue    *queue.Queue
	Profiles map[string]Profile
}

// Inspect shows the scheduler's state between two decisions. Safe for all goroutines but the one that shows it.
func (s *Scheduler) Inspect(ctx context.Context, look func(View)) error {
	return s.ask(ctx, func() {
		v := View{Cluster: s.cluster, Queue: s.queue, Profiles: map[string]Profile{}}
		for name, p := range s.profiles {
			v.Profiles[name] = p.Profile
		}
		look(v)
	})
}

// ask has the owner do something and waits until it is done.
func (s *Scheduler) ask(ctx context.Context, what func()) error {
	done := make(chan struct{})
	s.inbox.put(func() { defer close(done); what() })
	select {
	case <-done:
		return nil
	case <-s.ended:
		return context.Canceled
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Activate has pods that wait tried at once, whatever they wait for. Safe for all goroutines.
func (s *Scheduler) Activate(pods ...types.UID) {
	s.inbox.put(func() {
		for _, uid := range pods {
			s.queue.Activate(uid, time.Now())
		}
	})
}
