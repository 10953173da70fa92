// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

// searchLimit bounds the total cost of all device searches for the decision of one pod. With a
// limit per node, a claim that is hard to satisfy could delay all pods by the whole limit on every
// node.
//
// The limit counts the steps of a search instead of reading a clock, so that a pod receives the
// same verdicts on busy and idle machines, and in the replay of a journal.
type searchLimit struct {
	most  int64 // 0: no limit
	spent atomic.Int64
}

// searchCost is the approximate duration of one unit of a search on one core of a machine of 2020.
const searchCost = time.Microsecond

// longestSearch bounds the limit itself, regardless of the configuration: while a goroutine
// searches, no other pod is decided. Findings about nodes are kept, so the pod's next attempt
// continues from there. An attempt may search twice, see attempt.mustRetry.
const longestSearch = 30 * time.Millisecond

// boundedSearch returns the configured timeout, or the built-in limit longestSearch if the timeout
// is 0 or exceeds it. A configured limit is strict: beyond it the attempt fails, like upstream's.
// The built-in limit, which no operator has chosen, only rejects nodes with longer searches, so
// that the pod can run on another node.
func boundedSearch(configured time.Duration) (limit time.Duration, strict bool) {
	if configured <= 0 || configured > longestSearch {
		return longestSearch, false
	}
	return configured, true
}

// spendCost adds a cost, and reports whether the limit is exceeded.
func (l *searchLimit) spendCost(cost int64) (over bool) {
	return l.isExceeded(l.spent.Add(cost))
}

// isExceeded compares a total cost with the limit. A cost equal to the limit is within it.
func (l *searchLimit) isExceeded(spent int64) bool { return spent > l.most && l.most > 0 }

// The costs of a search. A node costs costOfSearch, plus 1 for every requestsPerCost requests and
// alternatives. A step costs 1, plus 1 for every checksPerCost checks of devices. An expression
// costs costOfExpression, plus 1 for every expressionCostsEach units of its cost in the API server.
const (
	costOfSearch        = 20
	requestsPerCost     = 4
	checksPerCost       = 16
	expressionCostsEach = 6
	costOfExpression    = 3
)

// The checks needed to rule out a device. A step may perform them for every device of the node.
const (
	checksOfDevice     = 4
	checksOfConstraint = 4 // including backtracking
	checksOfNames      = 4 // for each constraint, because requests are compared by name
	checksOfCapacity   = 8
	tolerationsPerMany = 4
)

// costOfSearching is the cost of beginning a search for claims, and of each of its steps, on a node
// with the given number of reachable devices. A claim may have 32 requests with 8 alternatives
// each, and 32 constraints.
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

		// One step handles one request of one claim, so the most expensive claim bounds its cost.
		most = max(most, checks+dearest)
	}

	return costOfSearch + int64(requests/requestsPerCost), 1 + devices*int64(most)/checksPerCost
}

// checksOfRequest returns the number of checks of one device for a request, beyond the checks
// common to all requests.
func checksOfRequest(of *resourcev1.CapacityRequirements, tolerations []resourcev1.DeviceToleration) int {
	checks := len(tolerations) / tolerationsPerMany
	if of != nil {
		checks += checksOfCapacity * len(of.Requests)
	}
	return checks
}

// heavyExpression is the estimated cost above which an expression is measured. An estimate assumes
// the largest device accepted by the API server, and real devices may cost a thousandth of it.
const heavyExpression = 100

// expressionCost is the maximum cost of evaluating an expression. For a heavy expression the cost
// depends on the device, and is measured by evaluating compiled, which always terminates in time.
type expressionCost struct {
	// most is the maximum cost, in units of searchCost.
	most int64
	// If compiled is nil, most applies to every device. Otherwise the expression is heavy, and
	// costOn measures it on each device.
	compiled *cel.CompilationResult
}

// costOn returns the cost of the expression for a device.
func (e expressionCost) costOn(driver string, d *resourcev1.Device) int64 {
	_, details, _ := e.compiled.DeviceMatches(context.Background(), cel.Device{
		Driver: driver, AllowMultipleAllocations: d.AllowMultipleAllocations, Attributes: d.Attributes, Capacity: d.Capacity,
	})
	if details == nil || details.ActualCost() == nil {
		return costOfExpression // the device has an unreadable attribute
	}
	return costOfExpression + int64(*details.ActualCost()/expressionCostsEach)
}

// expressionCosts holds the costs of expressions. An expression that fails to compile is never
// evaluated: it ends the search. Concurrent searches on several nodes share the costs.
type expressionCosts struct {
	mutex sync.Mutex
	// known holds the costs by the expression's text. Entries never change, because compilation is
	// deterministic.
	known map[string]expressionCost
}

// costOf returns the cost of an expression. The cost is computed once, under the lock: concurrent
// callers wait, as they depend on the same compiler anyway.
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
	cost = findCost(expression)
	e.known[expression] = cost
	return cost
}

// findCost estimates an expression, without evaluating it. An expression that fails to compile
// costs the minimum, since its first use ends the search. An expression with a heavy estimate is
// measured on each device, unless CEL's measure is wrong. Any other expression costs its estimate
// everywhere.
func findCost(expression string) (cost expressionCost) {
	cost.most = costOfExpression
	// costLimit limits an evaluation in costOn rather than the estimate: if a single device uses up
	// the limit of a whole search, the exact cost does not matter.
	costLimit := uint64(longestSearch/searchCost) * expressionCostsEach
	compiled := cel.GetCompiler(expressionFeatures).CompileCELExpression(expression, cel.Options{CostLimit: &costLimit})
	if compiled.Error != nil {
		return cost
	}

	estimate, measurable := compiled.MaxCost, true
	if worst := worstCost(&compiled); worst > severalTimes && worst > 2*estimate {
		estimate, measurable = worst, false
	}
	cost.most += int64(min(estimate, resourcev1.CELSelectorExpressionMaxCost)) / expressionCostsEach
	// The API server refuses larger estimates, because CEL compares the cost with its limit only
	// after each call, and a single call may compute for minutes. An expression with a larger
	// estimate, read from a manifest, is not even measured.
	if cost.most > heavyExpression && estimate <= resourcev1.CELSelectorExpressionMaxCost && measurable {
		cost.compiled = &compiled
	}
	return cost
}

// severalTimes is the worst-case cost of the regular expressions used in practice; their usual cost
// is a hundredth of it.
const severalTimes = 1000

// isEndless reports whether the expression must not be evaluated at all.
func (e expressionCost) isEndless() bool {
	return e.compiled == nil && e.most >= resourcev1.CELSelectorExpressionMaxCost/expressionCostsEach
}

// searchContext is the context of a search on one node. The allocator calls Err at every step, and
// Done once for every device that it evaluates an expression on.
type searchContext struct {
	context.Context
	limit             *searchLimit
	step, expressions int64 // costs of one step and of one expression
}

// over is a closed channel, which also ends a search beyond the limit at its calls of Done.
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
