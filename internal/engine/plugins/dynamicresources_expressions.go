package plugins

import (
	"context"
	"slices"
	"strings"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// mostExpressions and mostExpressionText, in bytes, bound by how many expressions a pod's open
// claims may select devices, with those of the classes. A claim has room for a hundred of 10 KiB,
// and to compile one of these takes a quarter of a second. keptExpressionText bounds what is kept
// compiled of all pods.
const (
	mostExpressions    = 256
	mostExpressionText = 256 << 10
	keptExpressionText = 1 << 20
)

// expressionSet has the CEL expressions by which the open claims of a pod select devices. Every set
// has a cache of its own: the library's locks it while it compiles, and another goroutine compiles
// what the one that decides must not wait for.
type expressionSet struct {
	list  []string // sorted, each once
	cache *cel.Cache
	costs expressionCosts
	ready bool // all of them are compiled; of the goroutine that decides
}

// expressionSets are the sets that were asked for lately, by their text. known and size are guarded
// by the plugin's mutex, turns by mutex.
type expressionSets struct {
	known map[string]*expressionSet
	size  int
	// compiling is held by whoever compiles: one expression at a time, and each namespace in its
	// turn, for which those of one namespace wait among themselves first.
	compiling sync.Mutex
	mutex     sync.Mutex
	turns     map[string]*turn
}

// turn is that of a namespace; waiting counts who wants it.
type turn struct {
	taken   chan struct{} // has room for one
	waiting int
}

// setOf returns the set for claims. long reports that they have more expressions than are
// evaluated. When the texts that are kept exceed keptExpressionText, all sets are dropped: those in
// use are asked for again.
func (s *expressionSets) setOf(c *cluster.Cluster, open []*resourcev1.ResourceClaim) (set *expressionSet, long bool) {
	list := expressionsOf(c, open)
	key := strings.Join(list, "\x00")
	if len(list) > mostExpressions || len(key) > mostExpressionText {
		return nil, true
	}
	if set := s.known[key]; set != nil {
		return set, false
	}
	const usual = 256 // bytes beside the text
	if s.size += len(key) + usual; s.known == nil || s.size > keptExpressionText {
		s.known, s.size = map[string]*expressionSet{}, len(key)+usual
	}
	set = newExpressionSet(list)
	s.known[key] = set
	return set, false
}

// newExpressionSet returns a set of expressions, none of which is compiled yet. What they cost is
// found with what is compiled to evaluate them: to compile is what takes long.
func newExpressionSet(list []string) *expressionSet {
	set := &expressionSet{list: list, cache: newSelectorCache(mostExpressions)}
	set.costs.cache = set.cache
	return set
}

// expressionsOf lists the expressions of claims and of the classes that they name, sorted, each
// once.
func expressionsOf(c *cluster.Cluster, open []*resourcev1.ResourceClaim) (list []string) {
	add := func(selectors []resourcev1.DeviceSelector) {
		for i := range selectors {
			if selectors[i].CEL != nil {
				list = append(list, selectors[i].CEL.Expression)
			}
		}
	}
	eachSelection(c, open, add)
	slices.Sort(list)
	return slices.Compact(list)
}

// eachSelection calls f with the selectors of every request and every alternative, and with those
// of its class. A class that does not exist has none.
func eachSelection(c *cluster.Cluster, open []*resourcev1.ResourceClaim, f func([]resourcev1.DeviceSelector)) {
	request := func(class string, selectors []resourcev1.DeviceSelector) {
		f(selectors)
		if class, known := c.DeviceClasses.Get("", class); known {
			f(class.Spec.Selectors)
		}
	}

	for _, claim := range open {
		for i := range claim.Spec.Devices.Requests {
			r := &claim.Spec.Devices.Requests[i]
			if r.Exactly != nil {
				request(r.Exactly.DeviceClassName, r.Exactly.Selectors)
			}
			for j := range r.FirstAvailable {
				request(r.FirstAvailable[j].DeviceClassName, r.FirstAvailable[j].Selectors)
			}
		}
	}
}

// compileSet compiles the expressions of a set for a pod of a namespace. It runs beside the
// goroutine that decides, and stops between two expressions when the context ends; what is compiled
// by then stays.
func (s *expressionSets) compileSet(ctx context.Context, namespace string, set *expressionSet) {
	defer s.awaitTurn(ctx, namespace)()
	for _, expression := range set.list {
		if ctx.Err() != nil {
			return
		}
		// One expression at a time: other namespaces get their turn in between.
		s.compiling.Lock()
		if set.cache.GetOrCompile(expression).Error == nil {
			set.costs.costOf(expression)
		}
		s.compiling.Unlock()
	}
}

// awaitTurn waits for the namespace's turn, or the end, and returns how to give it back. Pods of
// one namespace wait for each other, so that a namespace with many sets holds up the others by one
// expression at a time.
func (s *expressionSets) awaitTurn(ctx context.Context, namespace string) (leave func()) {
	s.mutex.Lock()
	if s.turns == nil {
		s.turns = map[string]*turn{}
	}
	mine := s.turns[namespace]
	if mine == nil {
		mine = &turn{taken: make(chan struct{}, 1)}
		s.turns[namespace] = mine
	}
	mine.waiting++
	s.mutex.Unlock()

	give := func() {}
	// Whoever gives up waiting has nothing to give back.
	select {
	case mine.taken <- struct{}{}:
		give = func() { <-mine.taken }
	case <-ctx.Done():
	}
	return func() {
		give()
		s.mutex.Lock()
		defer s.mutex.Unlock()
		if mine.waiting--; mine.waiting == 0 {
			delete(s.turns, namespace)
		}
	}
}

// Prepare implements [Preparer]: the expressions of the pod's claims are compiled before it is
// decided.
func (d *DynamicResources) Prepare(c *cluster.Cluster, p *cluster.Pod) *Aside {
	if !needsDevices(c, p) {
		return nil
	}
	set := d.attemptFor(c, p).expressions
	if set == nil || set.ready || len(set.list) == 0 {
		return nil
	}
	return &Aside{
		Whom: "the compiler of device selectors",
		Ask:  func(ctx context.Context) { d.sets.compileSet(ctx, p.Namespace(), set) },
		Done: func() { set.ready = true },
	}
}

// Forget implements [Preparer]. The expressions of later pods are compiled anew then.
func (d *DynamicResources) Forget() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.last, d.sets.known, d.sets.size = nil, nil, 0
}
