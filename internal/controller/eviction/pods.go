package eviction

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// pod is a placed pod. It is in Core.queue exactly while it has a deadline, is not terminating as
// far as watches show, and no attempt holds it.
type pod struct {
	Pod
	on       *node
	list     uint32    // the last list that showed it
	bound    time.Time // Pod.Bound by the Core's clock: what is tolerated counts from then
	due      Due       // of the newest taints and tolerations that watches showed: the sooner of
	byNode   Due       // that of its node's taints, and
	byDevice Due       // that of its devices'
	asked    []string  // the rules that ask it to go
	device   bool      // the taint that was due last was one of a device
	place    int       // in Core.queue, -1: not there
	number   uint64    // of its first sight: pods that are due together are evicted in this order
	among    int       // in on.pods
	attempt  *attempt  // the attempt in progress, nil: none
	tries    int       // attempts for this deadline that failed
	notYet   time.Time // no attempt before: back-off
	marked   bool      // the event of its eviction has been recorded
	cancels  bool      // the event of the cancellation is to be recorded once the attempt is over
	accepted bool      // the API took the delete, or says that the pod is gone
}

// nextAttempt is when the pod's next attempt begins.
func (p *pod) nextAttempt() time.Time { return laterOf(p.due.At, p.notYet) }

func (c *Core) podSeen(now time.Time, seen Pod) {
	if seen.Node == "" {
		return
	}
	if holder, ok := c.names[seen.Name]; ok && holder != seen.UID {
		c.forgetPod(now, c.pods[holder])
	}

	p := c.pods[seen.UID]
	if p == nil {
		p = &pod{Pod: seen, on: c.nodeNamed(seen.Node), bound: c.toClockSince(now, seen.Bound, c.podsAreListing), place: -1}
		c.sights++
		p.number = c.sights
		p.on.addPod(p)
		c.pods[seen.UID] = p
		c.names[seen.Name] = seen.UID
	}

	p.bound = c.boundAt(now, p, &seen)
	c.dropClaimUser(p)
	p.Pod, p.list = seen, c.podList
	c.addClaimUser(p)
	c.decidePod(now, p)
}

// boundAt returns when a known pod came to its node, given how it looks now: as before, or as its
// scheduler now reports.
func (c *Core) boundAt(now time.Time, p *pod, seen *Pod) time.Time {
	if seen.Bound.Equal(p.Bound) {
		return p.bound
	}
	return c.toClockSince(now, seen.Bound, c.podsAreListing)
}

// forgetPod removes a pod that is gone. The answer to a request in flight for it is ignored.
func (c *Core) forgetPod(now time.Time, p *pod) {
	c.leaveQueue(p)
	c.dropClaimUser(p)
	c.recordRules(now, p, nil)
	c.setDue(p, Due{})
	if p.attempt != nil {
		p.attempt.pod = nil
	}
	delete(c.pods, p.UID)
	if c.names[p.Name] == p.UID {
		delete(c.names, p.Name)
	}
	p.on.dropPod(p)
	c.dropIfUnused(p.on)
}

// podsListed removes the pods that the list did not show, in the order in which they were first
// seen.
func (c *Core) podsListed(now time.Time) {
	var gone []*pod
	for _, p := range c.pods {
		if p.list != c.podList {
			gone = append(gone, p)
		}
	}
	slices.SortFunc(gone, func(a, b *pod) int { return cmp.Compare(a.number, b.number) })
	for _, p := range gone {
		c.forgetPod(now, p)
	}
}

// decidePod computes the pod's deadline from what is known now. A deadline that has changed starts
// over, without back-off.
func (c *Core) decidePod(now time.Time, p *pod) {
	asked := c.judgePod(p)
	c.recordRules(now, p, asked)
	if due := p.byNode.soonerOf(p.byDevice); !due.equalTo(p.due) {
		p.cancels = due.Stays() && !p.Terminating && !p.accepted && (p.on.known || p.due.OfDevice())
		c.setDue(p, due)
		p.tries = 0
		if !p.accepted {
			p.notYet = time.Time{}
		}
		if p.cancels && p.attempt == nil {
			c.cancelEviction(p)
		}
	}
	c.enqueuePod(p)
}

// judgePod computes when the pod has to leave, and returns the rules that ask it to.
func (c *Core) judgePod(p *pod) (asked []string) {
	p.byNode, p.byDevice = Due{}, Due{}
	if p.Terminating {
		return nil
	}
	if p.on.known {
		p.byNode = Deadline(p.Tolerations, p.bound, p.on.held)
	}
	p.byDevice, asked = c.devices.deadlineOf(&p.Pod)
	return asked
}

// cancelEviction records that the pod stays after all.
func (c *Core) cancelEviction(p *pod) {
	p.cancels, p.marked = false, false
	c.stats.Cancelled++
	c.addAction(Record{Name: p.Name, UID: p.UID, Cancels: true, Device: p.device})
}

func (c *Core) setDue(p *pod, due Due) {
	if !p.due.Stays() {
		key := taintLabel(p.due)
		if c.pending[key]--; c.pending[key] == 0 {
			delete(c.pending, key)
		}
	}
	if !due.Stays() {
		c.pending[taintLabel(due)]++
		p.device = due.OfDevice()
	}
	p.due = due
}

// taintLabel identifies a taint without its value, which users choose freely and without bound.
func taintLabel(d Due) string { return d.Taint.Key + ":" + string(d.Taint.Effect) }

// enqueuePod puts the pod where its deadline and back-off say, or removes it.
func (c *Core) enqueuePod(p *pod) {
	switch {
	case p.due.Stays() || p.attempt != nil:
		c.leaveQueue(p)
	case p.place < 0:
		heap.Push(&c.queue, p)
	default:
		heap.Fix(&c.queue, p.place)
	}
}

func (c *Core) leaveQueue(p *pod) {
	if p.place >= 0 {
		heap.Remove(&c.queue, p.place)
	}
}

// queue is a heap of pods by the time of their next attempt.
type queue []*pod

func (q queue) Len() int { return len(q) }
func (q queue) Less(i, j int) bool {
	a, b := q[i].nextAttempt(), q[j].nextAttempt()
	return a.Before(b) || a.Equal(b) && q[i].number < q[j].number
}
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}
func (q *queue) Push(x any) {
	x.(*pod).place = len(*q)
	*q = append(*q, x.(*pod))
}
func (q *queue) Pop() any {
	old := *q
	p := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	p.place = -1
	return p
}
