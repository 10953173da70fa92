package live

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/queue"
	"github.com/berth-k8s/berth/scheduler/decision"
)

// mostPlaced is of how many pods that were placed the decision is remembered.
const mostPlaced = 1000

// decided remembers the last decision of every pod that waits, and of those placed last.
type decided struct {
	waiting map[types.UID]outcome
	placed  [mostPlaced]outcome // a ring
	next    int
}

// outcome is a decision.
type outcome struct {
	name     cluster.Name
	uid      types.UID
	at       time.Time
	took     time.Duration
	nodes    int
	feasible int
	node     string
	score    int64
	result   decision.Result
	why      *why
	victims  []decision.Name
}

// why is the reason that pods wait for; those of a class share it.
type why struct {
	message string
	plugins []string
	reasons map[string]int
}

// decidedPlace notes where a pod goes.
func (s *Scheduler) decidedPlace(b *placement, node string, score int64, feasible int) {
	o := s.outcomeOf(b, decision.Placed)
	o.node, o.score, o.feasible = node, score, feasible
	d := &s.decided
	delete(d.waiting, o.uid)
	d.placed[d.next] = o
	d.next = (d.next + 1) % mostPlaced
}

// decidedNot notes why a pod goes nowhere, or back to the queue.
func (s *Scheduler) decidedNot(b *placement, result decision.Result, w *why) {
	if s.queue.Get(b.Pod.UID) != b.item {
		return
	}
	o := s.outcomeOf(b, result)
	o.why, o.victims = w, b.victims
	s.decided.waiting[o.uid] = o
}

func (s *Scheduler) outcomeOf(b *placement, result decision.Result) outcome {
	return outcome{
		name: nameOf(b.Pod), uid: b.Pod.UID, at: b.began, took: time.Since(b.began), nodes: s.cluster.Len(), result: result,
	}
}

// Decision is what was decided of a pod last; nil if nothing is known of it (any more). Safe for all goroutines but the owner.
func (s *Scheduler) Decision(ctx context.Context, namespace, name string) (d *decision.Decision, err error) {
	err = s.ask(ctx, func() { d = s.decision(cluster.Name{Namespace: namespace, Name: name}) })
	return d, err
}

func (s *Scheduler) decision(name cluster.Name) *decision.Decision {
	uid, known := s.podNames[name]
	item := s.queue.Get(uid)
	o, ok := s.decided.waiting[uid]
	if !ok {
		o, ok = s.decided.lastPlaced(name, uid)
	}
	if !known && !ok || item == nil && !ok {
		return nil
	}
	d := &decision.Decision{
		APIVersion: decision.APIVersion, Kind: decision.Kind, Namespace: name.Namespace, Name: name.Name, UID: uid, Result: decision.None,
	}
	if ok {
		o.tell(d)
	}
	if item != nil {
		d.Queue = s.placeInQueue(item)
	}
	if p := s.cluster.Nominated(uid); p != nil {
		d.NominatedNode = p.Nominated
	}
	return d
}

// lastPlaced finds a pod; without a UID the last one of the name.
func (d *decided) lastPlaced(name cluster.Name, uid types.UID) (outcome, bool) {
	for i := range mostPlaced {
		o := &d.placed[(d.next+2*mostPlaced-1-i)%mostPlaced]
		if o.name == name && (uid == "" || o.uid == uid) {
			return *o, true
		}
	}
	return outcome{}, false
}

func (o *outcome) tell(d *decision.Decision) {
	d.UID, d.Result, d.At, d.Took = o.uid, o.result, &metav1.Time{Time: o.at}, o.took.Seconds()
	d.Nodes, d.Feasible, d.Node, d.Score, d.Victims = o.nodes, o.feasible, o.node, o.score, o.victims
	if o.why != nil {
		d.Message, d.Plugins, d.Reasons = o.why.message, o.why.plugins, o.why.reasons
	}
}

func (s *Scheduler) placeInQueue(item *queue.Item) *decision.Queue {
	q := &decision.Queue{
		Place: item.Place().String(), Ahead: s.queue.Ahead(item), Gate: item.Gate, Attempts: item.Attempts, Since: metav1.NewTime(item.Since),
	}
	if at := item.Ready(); at.After(time.Now()) {
		q.NotBefore = &metav1.Time{Time: at}
	}
	if item.Place() == queue.Waiting {
		q.NotAfter = &metav1.Time{Time: item.Entered().Add(s.queue.MaxWait)}
	}
	for _, a := range s.queue.Awaits(item) {
		q.Wakes = append(q.Wakes, decision.Wake{Plugin: a.Plugin, Events: a.Events})
	}
	return q
}
