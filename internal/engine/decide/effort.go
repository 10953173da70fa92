package decide

import "github.com/berth-k8s/berth/internal/engine/cluster"

// mostEffort bounds what one attempt may cost beyond one look at every node. The unit is a
// judgement of a node, a tenth of a microsecond: all pods share the goroutine that decides, and one
// pod must not hold it for longer than a tenth of a second. This is enough to preempt on 5,000
// nodes with 100 victims each.
const mostEffort = 1 << 20

// errTooLong is the error of an attempt that has used up its effort.
type errTooLong struct{ what string }

func (e *errTooLong) Error() string {
	return e.what + " takes too long with this many nodes and pods; the pod is tried again after its back-off"
}

// Unschedulable marks the error as a verdict on the pod, not a failure of the scheduler.
func (e *errTooLong) Unschedulable() bool { return true }

// ErrTooLong is the error of a preemption that found no node before its effort was used up. What it
// computed is kept where possible, and the next attempt continues from there.
var ErrTooLong error = &errTooLong{"finding pods to preempt"}

var errTermsTooLong error = &errTooLong{"counting the pods that so many terms may select"}

var errGuestsTooLong error = &errTooLong{"judging nodes that other pods are nominated to"}

// effort is what is left of an attempt's effort; nil is unbounded.
type effort struct {
	left  int
	c     *cluster.Cluster
	looks int // those of c that are subtracted
}

// effortOfAttempt returns the effort of a new attempt.
func (d *Decider) effortOfAttempt() *effort { return &effort{d.mostEffort, d.c, d.c.Looks} }

// spend subtracts from what is left, and the looks since the last time with it. It returns false if
// nothing is left.
func (e *effort) spend(judgements int) bool {
	if e == nil {
		return true
	}
	e.left -= judgements + e.c.Looks - e.looks
	e.looks = e.c.Looks
	return e.left > 0
}

func (e *effort) over() bool { return e != nil && e.left <= 0 }

// Work is about what all decisions, searches for victims and diagnoses have cost so far, in
// judgements of a node. It depends on nothing but what the decider was asked and shown.
func (d *Decider) Work() int { return d.work + d.c.Looks }

// What some things cost, in judgements of a node.
const (
	costOfDecision  = 10 // in which there is nothing to catch up on
	costOfSorting   = 4  // to find out where a node belongs, for all pods like one
	looksAJudgement = 2  // as many looks of a survey cost one
)

// bulkyWork is what it costs beyond that to sort all nodes for pods that list thousands of terms.
func bulkyWork(c *cluster.Cluster, pl *plan) int {
	const judgement = 2 << 10 // so many bytes
	return c.Len() * (pl.example.Class.Bulk / judgement)
}

// heaviness is how many times as long as a plain pod this pod takes to judge: most filters look at
// the items that the pod lists, one by one.
func heaviness(p *cluster.Pod) int {
	ports, spec := 0, p.Spec()
	for i := range spec.Containers {
		ports += len(spec.Containers[i].Ports)
	}
	return 1 + ports/8 + 2*len(spec.Volumes) + 8*len(spec.ResourceClaims)
}

// plainly is the effort of preparing all filters for the cluster as it is: filters that count pods
// by domain look at every node, and the pods there, for each of their terms.
func plainly(c *cluster.Cluster, p *cluster.Pod) int {
	spec := p.Spec()
	terms := 1 + len(spec.TopologySpreadConstraints)
	if a := spec.Affinity; a != nil && a.PodAffinity != nil {
		terms += len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	if a := spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		terms += len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	return heaviness(p) + terms*(c.Len()+c.Pods())/4
}

// allPlainly is the effort of judging all nodes the plain way.
func allPlainly(c *cluster.Cluster, p *cluster.Pod) int { return plainly(c, p) + heaviness(p)*c.Len() }

// manyLabels is from how many labels on it is counted what others' terms say about a pod.
const manyLabels = 1000

// selectsTooMuch reports whether to hold the pod's own terms against the classes that they may
// select, or its labels against the terms of others, would take more than half of an attempt's
// effort. An object has room for tens of thousands of terms, and of labels.
func (d *Decider) selectsTooMuch(p *cluster.Pod) bool {
	class := p.Class
	if len(class.Labels) >= manyLabels && d.looksAtLabels(class) > d.mostEffort/2 {
		return true
	}
	if len(class.RequiredAffinity)+len(class.RequiredAntiAffinity)+len(class.PreferredAffinity)+
		len(class.PreferredAntiAffinity) < d.manyTerms {
		return false
	}

	terms, _ := sizeOf(class)
	most, found := d.mostEffort/2/max(1, terms), &d.placed
	if len(found.classes) <= most {
		return false
	}

	found.begin()
	for _, selector := range termSelectors(class) {
		of, everybody := cluster.RequiredLabels(selector)
		if everybody {
			return true
		}
		for _, at := range of {
			if found.find(found.byLabel[hashOf(at.Key, at.Value)]); len(found.found) > most {
				return true
			}
		}
	}

	return false
}

// looksAtLabels is about how many labels it takes to look at, to hold those of a class against the
// terms of others.
func (d *Decider) looksAtLabels(class *cluster.PodClass) (looks int) {
	for _, users := range d.terms.about(class.Labels) {
		for term := range users.terms() {
			looks += users.selector(term).Looks(class.Labels)
		}
	}
	return looks
}
