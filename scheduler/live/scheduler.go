package live

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/controller/eventlog"
	"github.com/berth-k8s/berth/decide"
	"github.com/berth-k8s/berth/plugins"
	"github.com/berth-k8s/berth/queue"
	"github.com/berth-k8s/berth/rules"
)

// Scheduler schedules the pods of its profiles. All fields but the workers belong to the goroutine of Run.
type Scheduler struct {
	client kubernetes.Interface
	events *eventlog.Log

	inbox    *inbox
	feeds    []func(context.Context)
	unsynced int // feeds that have not listed yet; nothing is decided before
	ready    func()

	cluster  *cluster.Cluster
	queue    *queue.Queue
	deciders map[string]*profile // by schedulerName
	news     map[queue.Event]bool
	binding  []*placement // pods whose volumes are being bound

	binders, helpers *workers
}

// profile is a profile with its decider.
type profile struct {
	*plugins.Profile
	*decide.Decider
}

// Options are what a scheduler is made of.
type Options struct {
	Profiles []*plugins.Profile
	// Ready, if set, is called once, when the cluster is known and scheduling begins.
	Ready func()
}

// Number of workers for what has time: status, victims.
const helperCount = 8

// New returns a scheduler for the cluster that client talks to. Events go through a client of their own, so that they are in
// nobody's way.
func New(client, eventClient kubernetes.Interface, o Options) *Scheduler {
	s := &Scheduler{
		client: client, events: eventlog.New(eventClient, o.Profiles[0].SchedulerName), inbox: newInbox(), ready: o.Ready,
		cluster: cluster.New(), queue: queue.New(), deciders: map[string]*profile{}, news: map[queue.Event]bool{},
		binders: newWorkers(), helpers: newWorkers(),
	}
	for _, p := range o.Profiles {
		s.deciders[p.SchedulerName] = &profile{p, decide.New(s.cluster, p, rand.Uint64())}
	}
	return s
}

// Run schedules until the context ends. Bindings under way are finished.
func (s *Scheduler) Run(ctx context.Context, binders int) error {
	if err := s.watch(); err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	for _, f := range s.feeds {
		running.Go(func() { f(ctx) })
	}
	running.Go(func() { s.binders.run(ctx, binders) })
	running.Go(func() { s.helpers.run(ctx, helperCount) })
	running.Go(func() { s.events.Run(ctx) })
	s.own(ctx)
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
		if s.unsynced == 0 {
			if s.ready != nil {
				s.ready()
				s.ready = nil
			}
			if item := s.queue.Pop(time.Now()); item != nil {
				s.schedule(ctx, item)
				continue
			}
		}
		if at, ok := s.queue.NextReady(); ok {
			timer.Reset(time.Until(at))
		}
		select {
		case <-ctx.Done():
		case <-s.inbox.more:
		case <-timer.C:
		case <-flush.C:
			s.queue.Flush(time.Now())
		}
	}
}

// readInbox does what the messages say, and then wakes whom the events among them can help.
func (s *Scheduler) readInbox(spare []func()) []func() {
	messages := s.inbox.take(spare)
	for i, message := range messages {
		message()
		messages[i] = nil
	}
	now := time.Now()
	for event := range s.news {
		s.queue.Happened(event, now)
	}
	if len(s.binding) > 0 {
		s.checkVolumes(now)
	}
	clear(s.news)
	return messages
}

func (s *Scheduler) happened(event queue.Event) { s.news[event] = true }

// schedule decides one pod.
func (s *Scheduler) schedule(ctx context.Context, item *queue.Item) {
	pod := item.Pod
	profile := s.deciders[pod.Spec.SchedulerName]
	p := s.cluster.Pending(pod)
	if nominated := s.cluster.Nominated(p.UID); nominated != nil {
		p.Nominated = nominated.Nominated
	}
	decision := profile.Decide(p)
	switch {
	case decision.Err != nil:
		s.failed(item, fmt.Errorf("%w", decision.Err))
	case decision.Node == nil:
		s.rejected(ctx, profile, item, p)
	default:
		s.assume(ctx, profile, item, p, decision.Node)
	}
}

// assume counts the pod on the node and has it bound, its volumes first.
func (s *Scheduler) assume(ctx context.Context, profile *profile, item *queue.Item, p *cluster.Pod, n *cluster.Node) {
	b := &placement{item: item, p: p, node: n.Name}
	if err := s.reserve(profile, b, n); err != nil {
		b.giveBack()
		s.failed(item, err)
		return
	}
	s.cluster.Place(p, n)
	s.happened(queue.PodPlaced)
	klog.FromContext(ctx).V(2).Info("Decided", "pod", klog.KObj(item.Pod), "node", n.Name)
	if len(b.volumes.Volumes)+len(b.volumes.Claims) > 0 {
		s.bindVolumes(b)
		return
	}
	s.bindPod(b)
}

// bindPod hands a binding over.
func (s *Scheduler) bindPod(b *placement) {
	pod, node, began := b.item.Pod, b.node, time.Now()
	s.binders.do(func(ctx context.Context) {
		err := s.bind(ctx, pod, node)
		if err == nil {
			s.events.Add(reference(pod), v1.EventTypeNormal, "Scheduled", fmt.Sprintf("Successfully assigned %s/%s to %s", pod.Namespace, pod.Name, node))
			klog.FromContext(ctx).V(2).Info("Bound", "pod", klog.KObj(pod), "node", node, "took", time.Since(began))
		}
		s.inbox.put(func() { s.bound(b, err) })
	})
}

// bound hears what came of a binding. A pod that was bound stays in the queue's books until the watch shows it on its node.
func (s *Scheduler) bound(b *placement, err error) {
	if err == nil {
		return
	}
	if s.cluster.Pod(b.p.UID) == b.p { // else a watch has shown the pod meanwhile, bound or gone, and is right
		s.cluster.RemovePod(b.p.UID)
		b.giveBack()
		s.happened(queue.PodRemoved)
		s.failed(b.item, err)
	}
}

// watchedPod takes in a pod that the API shows.
func (s *Scheduler) watchedPod(pod *v1.Pod) {
	if pod.Spec.NodeName != "" || rules.IsTerminal(pod) {
		s.placedPod(pod)
		return
	}
	switch {
	case pod.DeletionTimestamp != nil, len(pod.Spec.SchedulingGates) > 0, s.deciders[pod.Spec.SchedulerName] == nil:
		s.queue.Remove(pod.UID)
		s.cluster.Unnominate(pod.UID)
		return
	case s.cluster.Pod(pod.UID) != nil: // it is being bound
		return
	}
	now, p := time.Now(), s.cluster.Pending(pod)
	changed := false
	if item := s.queue.Get(pod.UID); item != nil {
		changed = s.cluster.Pending(item.Pod).Class != p.Class
	}
	if p.Nominated != "" && s.cluster.Nominated(p.UID) == nil {
		s.cluster.Nominate(p, p.Nominated)
	}
	s.queue.Set(pod, changed, now)
}

func (s *Scheduler) placedPod(pod *v1.Pod) {
	s.queue.Remove(pod.UID)
	before := s.cluster.Pod(pod.UID)
	after := s.cluster.SetPod(pod)
	switch {
	case before != nil && after == nil:
		s.happened(queue.PodRemoved)
	case before == nil && after != nil:
		s.happened(queue.PodPlaced)
	case before != after: // its labels or requests are others now
		s.happened(queue.PodPlaced)
		s.happened(queue.PodRemoved)
	}
}

func (s *Scheduler) gonePod(_ cluster.Name, uid types.UID) {
	s.queue.Remove(uid)
	if s.cluster.Pod(uid) != nil {
		s.happened(queue.PodRemoved)
	}
	s.cluster.RemovePod(uid)
}

func (s *Scheduler) watchedNode(node *v1.Node) {
	known, before := s.cluster.Node(node.Name) != nil, s.cluster.Log.Len()
	s.cluster.SetNode(node)
	switch {
	case !known:
		s.happened(queue.NodeAdded)
	case s.cluster.Log.Len() > before:
		s.happened(queue.NodeChanged)
	}
}
