// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/google/cel-go/common/decls"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	resourcev1 "k8s.io/api/resource/v1"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/quantity"
)

// mostExpressions and mostExpressionText, in bytes, bound the expressions selecting devices for a
// pod's open claims, including the expressions of the classes. A claim may have a hundred
// expressions of 10 KiB, and each takes a quarter of a second to compile. keptExpressionText bounds
// the compiled expressions cached over all pods.
const (
	mostExpressions    = 256
	mostExpressionText = 256 << 10
	keptExpressionText = 1 << 20
)

// expressionSet holds the CEL expressions that select devices for the open claims of a pod. Every
// set has a separate cache, because the library's cache is locked during compilation, and the
// deciding goroutine must not wait for another goroutine to compile.
type expressionSet struct {
	list  []string // sorted, without duplicates
	cache *cel.Cache
	costs expressionCosts
	ready bool // all expressions are compiled; owned by the deciding goroutine
}

// expressionSets holds the recently used sets, by their text. The plugin's mutex guards known and
// size; the mutex of expressionSets guards turns.
type expressionSets struct {
	known map[string]*expressionSet
	size  int
	// compiling is held while one expression is compiled, so that namespaces take turns. Pods of
	// one namespace first wait for each other.
	compiling sync.Mutex
	mutex     sync.Mutex
	turns     map[string]*turn
}

// turn serialises the pods of a namespace; waiting counts its holder and waiters.
type turn struct {
	taken   chan struct{} // capacity 1
	waiting int
}

// setOf returns the set for claims. long is set if there are more or longer expressions than Berth
// evaluates. If the cached texts exceed keptExpressionText, setOf drops all sets; sets in use are
// requested again.
func (s *expressionSets) setOf(c *cluster.Cluster, open []*resourcev1.ResourceClaim) (set *expressionSet, long bool) {
	list := expressionsOf(c, open)
	key := strings.Join(list, "\x00")
	tooLong := func(expression string) bool { return len(expression) > resourcev1.CELSelectorExpressionMaxLength }
	if len(list) > mostExpressions || len(key) > mostExpressionText || slices.ContainsFunc(list, tooLong) {
		return nil, true
	}
	if set := s.known[key]; set != nil {
		return set, false
	}
	const usual = 256 // size of an entry in bytes, in addition to the text
	if s.size += len(key) + usual; s.known == nil || s.size > keptExpressionText {
		s.known, s.size = map[string]*expressionSet{}, len(key)+usual
	}
	set = newExpressionSet(list)
	s.known[key] = set
	return set, false
}

// newExpressionSet returns a set of uncompiled expressions.
func newExpressionSet(list []string) *expressionSet {
	return &expressionSet{list: list, cache: newSelectorCache(mostExpressions)}
}

// expressionsOf lists the expressions of claims and of the classes they name, sorted and without
// duplicates.
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

// eachSelection calls f with the selectors of every request and every alternative, and with the
// selectors of its class if the class exists.
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

// compileSet compiles the expressions of a set for a pod of a namespace. It runs concurrently with
// the deciding goroutine, and stops between two expressions if the context ends; expressions
// compiled so far stay.
func (s *expressionSets) compileSet(ctx context.Context, namespace string, set *expressionSet) {
	defer s.awaitTurn(ctx, namespace)()
	for _, expression := range set.list {
		if ctx.Err() != nil {
			return
		}
		// One expression at a time, to let other namespaces take turns.
		s.compiling.Lock()
		if set.cache.GetOrCompile(expression).Error == nil {
			set.costs.costOf(expression)
		}
		s.compiling.Unlock()
	}
}

// awaitTurn waits for the namespace's turn or the end of the context, and returns a func that
// releases the turn. Pods of one namespace wait for each other, so that a namespace with many sets
// delays other namespaces by only one expression at a time.
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
	// A waiter that gives up does not hold the turn.
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

// Prepare implements [Preparer]. It compiles the expressions of the pod's claims before the pod is
// decided.
func (d *DynamicResources) Prepare(c *cluster.Cluster, p *cluster.Pod) *PendingQuery {
	if !needsDevices(c, p) {
		return nil
	}
	set := d.attemptFor(c, p).expressions
	if set == nil || set.ready || len(set.list) == 0 {
		return nil
	}
	return &PendingQuery{
		Target: "the compiler of device selectors",
		Run:    func(ctx context.Context) { d.sets.compileSet(ctx, p.Namespace(), set) },
		Done:   func() { set.ready = true },
	}
}

// Forget implements [Preparer]. Expressions of later pods are then compiled again.
func (d *DynamicResources) Forget() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.last, d.sets.known, d.sets.size = nil, nil, 0
}

// newSelectorCache returns a cache of compiled device selectors with bounded quantities.
func newSelectorCache(size int) *cel.Cache {
	boundSelectorQuantities()
	return cel.NewCache(size, expressionFeatures)
}

// boundSelectorQuantities replaces the implementations of quantity() and isQuantity() for device
// selectors. CEL counts a call as a few units of cost, regardless of the exponent, and does not
// interrupt the call: quantity("1e60000000").isGreaterThan(quantity("1")) would block the deciding
// goroutine for half a minute. The argument may be computed, so it is bounded when it is parsed.
//
// The allocator compiles selectors in an environment derived from the base environment, which
// shares the functions of the base environment. An environment binds its functions when it compiles
// its first expression, so the functions must be replaced earlier.
var boundSelectorQuantities = sync.OnceFunc(func() {
	base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	functions := base.StoredExpressionsEnv().Functions()
	replace := func(function, overload string, result *types.Type, call func(ref.Val) ref.Val) {
		// The signature matches the existing implementation, so the new implementation replaces it.
		_, err := decls.Overload(overload, []*types.Type{types.StringType}, result, decls.UnaryBinding(call))(functions[function])
		if err != nil {
			panic(err) // the library has changed; any test detects the panic
		}
	}
	replace("quantity", "string_to_quantity", apiservercel.QuantityType, parseSelectorQuantity)
	replace("isQuantity", "is_quantity_string", types.BoolType, isSelectorQuantity)
})

// parseSelectorQuantity is quantity() of a selector.
func parseSelectorQuantity(text ref.Val) ref.Val {
	s, is := text.Value().(string)
	if !is {
		return types.MaybeNoSuchOverloadErr(text)
	}
	quantity, err := quantity.Parse(s)
	if err != nil {
		return types.WrapErr(err)
	}
	return apiservercel.Quantity{Quantity: &quantity}
}

// isSelectorQuantity is isQuantity() of a selector.
func isSelectorQuantity(text ref.Val) ref.Val {
	s, is := text.Value().(string)
	if !is {
		return types.MaybeNoSuchOverloadErr(text)
	}
	_, err := quantity.Parse(s)
	return types.Bool(err == nil)
}
