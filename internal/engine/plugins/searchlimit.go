package plugins

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

// searchLimit bounds how much all searches for devices may cost together that a pod is decided
// with. With a limit for each node, a claim that is hard to satisfy could hold up all pods for that
// long on every node.
//
// What a search costs is counted, and no clock is read, so that a pod gets the same verdicts on a
// busy machine as on an idle one, and when a journal is replayed.
type searchLimit struct {
	most  int64 // 0: none
	spent atomic.Int64
}

// searchCost is about how long a part of a search takes on one core of a machine of 2020.
const searchCost = time.Microsecond

// longestSearch bounds the limit itself, whatever is configured: while a goroutine searches, no
// other pod is decided. What was found on a node is kept, so the pod's next attempt goes on from
// there. An attempt may search twice, see attempt.mustRetry.
const longestSearch = 30 * time.Millisecond

// boundedSearch is how long a search may take if this much is configured; 0 configures no limit. A
// limit that is configured is strict: beyond it the attempt fails, as upstream's does. The other
// one is not the operator's wish: a node on which it is not enough for the search is rejected, so
// that the pod can go to others.
func boundedSearch(configured time.Duration) (limit time.Duration, strict bool) {
	if configured <= 0 || configured > longestSearch {
		return longestSearch, false
	}
	return configured, true
}

// spendCost adds a cost, and returns whether the limit is exceeded.
func (l *searchLimit) spendCost(cost int64) (over bool) {
	return l.isExceeded(l.spent.Add(cost))
}

// isExceeded compares a total cost with the limit. Exactly the limit is still within it.
func (l *searchLimit) isExceeded(spent int64) bool { return spent > l.most && l.most > 0 }

// What a search costs: costOfSearch for a node and 1 for every requestsPerCost requests and
// alternatives; for each step, 1 and another 1 for every checksPerCost checks of devices; for an
// expression, costOfExpression and 1 for every expressionCostsEach of its cost in the API server's
// units.
const (
	costOfSearch        = 20
	requestsPerCost     = 4
	checksPerCost       = 16
	expressionCostsEach = 6
	costOfExpression    = 3
)

// What it takes to find out that a device is no further use, in checks. A step may do so for every
// device of the node.
const (
	checksOfDevice     = 4
	checksOfConstraint = 4 // also on the way back
	checksOfNames      = 4 // of a constraint: requests are compared by their names
	checksOfCapacity   = 8
	tolerationsPerMany = 4
)

// costOfSearching is the cost of beginning a search for claims, and of each of its steps, on a node
// that can reach so many devices. A claim has room for 32 requests with 8 alternatives and for 32
// constraints.
//
//	one claim with one plain request, 8 devices:  20 to begin, 1 + 8*4/16 = 3 for each step
//	a limit of 30 ms is 30,000, or some 10,000 such steps
func costOfSearching(open []*resourcev1.ResourceClaim, devices int64) (begin, step int64) {
	requests, most := 0, 0
	for _, claim := range open {
		checks, dearest := checksOfDevice, 0
		for i := range claim.Spec.Devices.Constraints {
			if checks += checksOfConstraint; len(claim.Spec.Devices.Constraints[i].Requests) > 0 {
				checks += checksOfNames
			}
		}

		for i := range claim.Spec.Devices.Requests {
			r := &claim.Spec.Devices.Requests[i]
			requests += 1 + len(r.FirstAvailable)
			if r.Exactly != nil {
				dearest = max(dearest, checksOfRequest(r.Exactly.Capacity, r.Exactly.Tolerations))
			}
			for j := range r.FirstAvailable {
				dearest = max(dearest, checksOfRequest(r.FirstAvailable[j].Capacity, r.FirstAvailable[j].Tolerations))
			}
		}

		// One step deals with one request of one claim, so the dearest claim bounds it.
		most = max(most, checks+dearest)
	}

	return costOfSearch + int64(requests/requestsPerCost), 1 + devices*int64(most)/checksPerCost
}

// checksOfRequest returns how many checks a request costs for one device, beyond those of any
// request.
func checksOfRequest(of *resourcev1.CapacityRequirements, tolerations []resourcev1.DeviceToleration) int {
	checks := len(tolerations) / tolerationsPerMany
	if of != nil {
		checks += checksOfCapacity * len(of.Requests)
	}
	return checks
}

// heavyExpression is the cost from which on an estimate is not taken: it is made for the largest
// device that the API server accepts, and real ones may cost a thousandth of that.
const heavyExpression = 100

// expressionCost is what it costs at most to evaluate an expression. For a heavy one it depends on
// the device, for which compiled, which ends in time, measures it.
type expressionCost struct {
	// In the units of searchCost.
	most int64
	// nil: most is taken as it is. Else the expression is heavy or long, and costOn measures it on
	// each device.
	compiled *cel.CompilationResult
}

// costOn returns what the expression costs for a device.
func (e expressionCost) costOn(driver string, d *resourcev1.Device) int64 {
	_, details, _ := e.compiled.DeviceMatches(context.Background(), cel.Device{
		Driver: driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity,
	})
	if details == nil || details.ActualCost() == nil {
		return costOfExpression // the device has an attribute that cannot be read
	}
	return costOfExpression + int64(*details.ActualCost()/expressionCostsEach)
}

// expressionCosts are the costs of expressions. One that does not compile is not evaluated: it ends
// the search. Searches on several nodes at once share them.
type expressionCosts struct {
	cache *cel.Cache
	mutex sync.Mutex
	// The answers by the expression's text. They never change, because a text always compiles to
	// the same.
	known map[string]expressionCost
}

// longExpression is the length, in bytes, from which on an expression is not compiled a second time
// for an estimate: it is measured.
const longExpression = 1 << 10

// costOf returns the cost of an expression. It is found once, under the lock: others that ask
// meanwhile need an answer from the same compiler, and wait.
func (e *expressionCosts) costOf(expression string) expressionCost {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	cost, known := e.known[expression]
	if known {
		return cost
	}
	if e.known == nil {
		e.known = map[string]expressionCost{}
	}
	cost = e.findCost(expression)
	e.known[expression] = cost
	return cost
}

// findCost estimates an expression, without an evaluation. Three outcomes: one that does not
// compile costs the least there is, since its first use ends the search; one too long to be
// compiled again, or with a heavy estimate, is measured on each device; any other costs its
// estimate everywhere.
func (e *expressionCosts) findCost(expression string) (cost expressionCost) {
	cost.most = costOfExpression
	if len(expression) > longExpression {
		if compiled := e.cache.GetOrCompile(expression); compiled.Error == nil {
			return expressionCost{costOfExpression + resourcev1.CELSelectorExpressionMaxCost/expressionCostsEach, &compiled}
		}
		return cost
	}
	// This is the limit of an evaluation in costOn, not of the estimate: where a device alone uses
	// up a whole search, the exact figure no longer matters.
	enough := uint64(longestSearch/searchCost) * expressionCostsEach
	if compiled := cel.GetCompiler(expressionFeatures).CompileCELExpression(expression,
		cel.Options{CostLimit: &enough}); compiled.Error == nil {
		cost.most += int64(min(compiled.MaxCost, resourcev1.CELSelectorExpressionMaxCost)) / expressionCostsEach
		// The API server refuses a larger estimate, for functions that compute for minutes without
		// a pause: CEL compares with its limit after each call. Such an expression, from a
		// manifest, is not even measured.
		if cost.most > heavyExpression && compiled.MaxCost <= resourcev1.CELSelectorExpressionMaxCost {
			cost.compiled = &compiled
		}
	}
	return cost
}

// searchContext is the context of a search on one node. The allocator asks for its error at every
// step, and for its channel once for every device for which an expression is evaluated.
type searchContext struct {
	context.Context
	limit             *searchLimit
	step, expressions int64 // what they cost
}

// over is closed: a search beyond the limit ends where it asks for the channel, too.
var over = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Err implements [context.Context].
func (c *searchContext) Err() error {
	if c.limit.spendCost(c.step) {
		return context.DeadlineExceeded
	}
	return nil
}

// Done implements [context.Context].
func (c *searchContext) Done() <-chan struct{} {
	if c.limit.spendCost(c.expressions) {
		return over
	}
	return nil
}
