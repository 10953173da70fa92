// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// MostPlaced is the number of remembered decisions about placed pods.
const MostPlaced = 1000

// decisions remembers the last decision of every pending pod, and of the most recently placed pods.
// They do not influence scheduling. A pending pod has one outcome; a placed pod's decision is
// dropped after MostPlaced further placements.
type decisions struct {
	*common
	waiting map[types.UID]pendingOutcome // outcomes of tried items of the queue
	most    int                          // largest length of waiting; see cluster.Shrunk
	placed  [MostPlaced]pendingOutcome   // ring buffer
	next    int
	// step lists the outcomes of the current step, in order, for the decided and requeued pods. If
	// a pod has several outcomes, the last outcome counts.
	step []pendingOutcome
}

// pendingOutcome is the result of one decision. There is one for each pending pod, so it is more
// compact than the [decision.Decision] built from it on request.
type pendingOutcome struct {
	name     cluster.Name
	uid      types.UID
	at       time.Time // start of the attempt
	took     time.Duration
	nodes    int // number of nodes in the cluster at that time
	feasible int // number of feasible nodes; 0: not counted
	node     string
	score    int64 // score of node
	result   decision.Result
	why      *unschedulableReason
	victims  []decision.Name
}

// adoptFrom takes over another core's decisions.
func (d *decisions) adoptFrom(other *decisions) {
	d.waiting, d.most, d.placed, d.next, d.step = other.waiting, other.most, other.placed, other.next, other.step
}

// rememberPlaced records a pod's placement.
func (d *decisions) rememberPlaced(a *podAttempt, node string, score int64, feasible int) {
	o := d.outcomeOf(a, decision.Placed)
	if feasible == 1 && a.Waiting.Nominated == node { // no other node was examined
		feasible = 0
	}
	o.node, o.score, o.feasible = node, score, feasible
	d.step = append(d.step, o)
	d.forgetFailure(o.uid)
	d.placed[d.next] = o
	d.next = (d.next + 1) % MostPlaced
}

// rememberFailure records the reason why a pod was not placed.
func (d *decisions) rememberFailure(a *podAttempt, result decision.Result, w *unschedulableReason) {
	if d.queue.Get(a.Pod.UID) != a.item {
		return
	}
	o := d.outcomeOf(a, result)
	o.why, o.victims = w, a.victims
	d.waiting[o.uid] = o
	d.waiting = cluster.Shrunk(d.waiting, &d.most)
	d.step = append(d.step, o)
}

// forgetFailure drops the last failure of a pod.
func (d *decisions) forgetFailure(uid types.UID) {
	delete(d.waiting, uid)
	d.waiting = cluster.Shrunk(d.waiting, &d.most)
}

// outcomeOf returns the facts common to all attempts, regardless of their result.
func (d *decisions) outcomeOf(a *podAttempt, result decision.Result) pendingOutcome {
	return pendingOutcome{
		name: nameOf(a.Pod), uid: a.Pod.UID, at: a.began, took: d.clock().Sub(a.watch), nodes: d.cluster.Len(), result: result,
	}
}

// lastPlaced finds the outcome of a placed pod. Without a UID, it finds the most recently placed
// pod of that name. The UID distinguishes a deleted pod from its successor under the same name.
func (d *decisions) lastPlaced(name cluster.Name, uid types.UID) (pendingOutcome, bool) {
	for i := range MostPlaced {
		o := &d.placed[(d.next+2*MostPlaced-1-i)%MostPlaced]
		if o.name == name && (uid == "" || o.uid == uid) {
			return *o, true
		}
	}
	return pendingOutcome{}, false
}

// fillDecision copies the outcome into the document, but not the pod's place in the queue.
func (o *pendingOutcome) fillDecision(d *decision.Decision) {
	d.UID, d.Result, d.At, d.Took = o.uid, o.result, &metav1.Time{Time: o.at}, o.took.Seconds()
	d.Nodes, d.Feasible, d.Node, d.Score, d.Victims = o.nodes, o.feasible, o.node, o.score, o.victims
	if o.why != nil {
		d.Message, d.Plugins, d.Reasons = o.why.message, o.why.plugins, o.why.reasons
	}
}

// placeInQueue describes a pending pod's place in the queue, the beginning and end of its wait, and
// the reason.
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
