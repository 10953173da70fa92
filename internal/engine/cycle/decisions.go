package cycle

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// MostPlaced is the number of placed pods whose decisions are remembered.
const MostPlaced = 1000

// decisions remembers the last decision of every pending pod, and of the pods placed most recently.
// None of it is used to decide.
type decisions struct {
	*common
	waiting map[types.UID]outcome // of items of the queue that were tried
	most    int                   // of waiting; see cluster.Shrunk
	placed  [MostPlaced]outcome   // a ring
	next    int
	// step lists the outcomes of the current step, in order: of the pods that it decided or
	// returned to the queue. If a pod has several, the last one counts.
	step []outcome
}

// outcome is the result of one decision.
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

// why is the reason why a pod is not placed; pods of a class share it.
type why struct {
	message string
	plugins []string
	pending []string // of plugins, those that asked the pod to wait
	reasons map[string]int
}

func newDecisions(s *common) *decisions {
	return &decisions{common: s, waiting: map[types.UID]outcome{}}
}

// clearStep begins a step.
func (d *decisions) clearStep() {
	clear(d.step)
	d.step = d.step[:0]
}

// adoptFrom takes over what another core remembers.
func (d *decisions) adoptFrom(other *decisions) {
	d.waiting, d.most, d.placed, d.next, d.step = other.waiting, other.most, other.placed, other.next, other.step
}

// rememberPlaced remembers where a pod was placed.
func (d *decisions) rememberPlaced(b *placement, node string, score int64, feasible int) {
	o := d.outcomeOf(b, decision.Placed)
	if feasible == 1 && b.Waiting.Nominated == node { // no other was looked at
		feasible = 0
	}
	o.node, o.score, o.feasible = node, score, feasible
	d.step = append(d.step, o)
	d.forgetFailure(o.uid)
	d.placed[d.next] = o
	d.next = (d.next + 1) % MostPlaced
}

// rememberFailure remembers why a pod was not placed.
func (d *decisions) rememberFailure(b *placement, result decision.Result, w *why) {
	if d.queue.Get(b.Pod.UID) != b.item {
		return
	}
	o := d.outcomeOf(b, result)
	o.why, o.victims = w, b.victims
	d.waiting[o.uid] = o
	d.waiting = cluster.Shrunk(d.waiting, &d.most)
	d.step = append(d.step, o)
}

// forgetFailure forgets the last failure of a pod.
func (d *decisions) forgetFailure(uid types.UID) {
	delete(d.waiting, uid)
	d.waiting = cluster.Shrunk(d.waiting, &d.most)
}

func (d *decisions) outcomeOf(b *placement, result decision.Result) outcome {
	return outcome{
		name: nameOf(b.Pod), uid: b.Pod.UID, at: b.began, took: d.clock().Sub(b.watch), nodes: d.cluster.Len(), result: result,
	}
}

// Decided returns the decisions of the last step: one for each pod that it decided or returned to
// the queue, without the pod's place in the queue. Most steps decide one pod or none. The pods of a
// group are decided together, and share the description of the group.
func (c *Core) Decided() []*decision.Decision {
	step := c.decisions.step
	if len(step) == 0 {
		return nil
	}

	last := make(map[types.UID]int, len(step))
	for i := range step {
		last[step[i].uid] = i
	}

	all := make([]*decision.Decision, 0, len(last))
	told := map[*groups.Group]*decision.Group{}
	for i := range step {
		o := &step[i]
		if last[o.uid] != i {
			continue
		}
		d := &decision.Decision{APIVersion: decision.APIVersion, Kind: decision.Kind, Namespace: o.name.Namespace, Name: o.name.Name}
		o.fillDecision(d)
		if p := c.cluster.Nominated(o.uid); p != nil {
			d.NominatedNode = p.Nominated
		}
		if g := c.groups.Of(o.uid); g != nil {
			if told[g] == nil {
				told[g] = c.podGroups.describeGroup(g)
			}
			d.Group = told[g]
		}
		all = append(all, d)
	}

	return all
}

// Decider returns the decider of a scheduler name, to answer questions on the state that the core
// decides on. It is nil if no profile serves the name.
func (c *Core) Decider(schedulerName string) *decide.Decider {
	if p := c.profiles.byName[schedulerName]; p != nil {
		return p.Decider
	}
	return nil
}

// Decision returns the last decision about a pod, or nil if none is remembered.
func (c *Core) Decision(name cluster.Name) *decision.Decision {
	uid, known := c.intake.named(name)
	item := c.queue.Get(uid)
	o, ok := c.decisions.waiting[uid]
	if !ok {
		o, ok = c.decisions.lastPlaced(name, uid)
	}

	if !known && !ok || item == nil && !ok {
		return nil
	}
	d := &decision.Decision{
		APIVersion: decision.APIVersion, Kind: decision.Kind, Namespace: name.Namespace, Name: name.Name, UID: uid, Result: decision.None,
	}
	if ok {
		o.fillDecision(d)
	}

	if item != nil {
		d.Queue = c.decisions.placeInQueue(item)
		d.Held = c.reserved.told(item)
	}

	if p := c.cluster.Nominated(uid); p != nil {
		d.NominatedNode = p.Nominated
	}
	if g := c.groups.Of(uid); g != nil {
		d.Group = c.podGroups.describeGroup(g)
	}
	return d
}

// lastPlaced finds a placed pod; without a UID, the most recent one of that name.
func (d *decisions) lastPlaced(name cluster.Name, uid types.UID) (outcome, bool) {
	for i := range MostPlaced {
		o := &d.placed[(d.next+2*MostPlaced-1-i)%MostPlaced]
		if o.name == name && (uid == "" || o.uid == uid) {
			return *o, true
		}
	}
	return outcome{}, false
}

func (o *outcome) fillDecision(d *decision.Decision) {
	d.UID, d.Result, d.At, d.Took = o.uid, o.result, &metav1.Time{Time: o.at}, o.took.Seconds()
	d.Nodes, d.Feasible, d.Node, d.Score, d.Victims = o.nodes, o.feasible, o.node, o.score, o.victims
	if o.why != nil {
		d.Message, d.Plugins, d.Reasons = o.why.message, o.why.plugins, o.why.reasons
	}
}

func (d *decisions) placeInQueue(item *queue.Item) *decision.Queue {
	q := &decision.Queue{
		Place: item.Place().String(), Ahead: d.queue.Ahead(item), Gate: item.Gate, Attempts: item.Attempts,
		Since: metav1.NewTime(item.Since),
	}
	if at := item.Ready(); at.After(d.now) {
		q.NotBefore = &metav1.Time{Time: at}
	}
	if item.Place() == queue.Waiting {
		q.NotAfter = &metav1.Time{Time: item.Entered().Add(d.queue.MaxWait)}
	}
	for _, a := range d.queue.Awaits(item) {
		q.Wakes = append(q.Wakes, decision.Wake{Plugin: a.Plugin, Events: a.Events})
	}
	return q
}
