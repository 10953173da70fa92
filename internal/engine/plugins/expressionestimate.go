// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"

	"github.com/google/cel-go/checker"
	"github.com/google/cel-go/common/types"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apiserver/pkg/cel/library"
	"k8s.io/dynamic-resource-allocation/cel"
)

// underestimated matches expressions with functions that may cost a thousand times the estimate of
// the API server, or return gigabytes.
var underestimated = regexp.MustCompile(`matches|find|ndexOf|replace|format`)

// worstCost returns the worst-case cost of an expression, in the units of the API server's
// estimate. Unlike that estimate, it is proportional to the time and memory needed. CEL neither
// interrupts a call nor limits its result, so that a selector accepted by the API server could
// occupy a processor for minutes, such as
//
//	[1, ..., 200].exists(i, "aa...a".matches("((a?){30}){30}b"))
//
// The API server's estimate considers the length of the regular expression, not the length of the
// compiled program.
func worstCost(compiled *cel.CompilationResult) uint64 {
	if !underestimated.MatchString(compiled.Expression) {
		return compiled.MaxCost
	}
	ast, issues := compiled.Environment.Compile(compiled.Expression)
	if issues.Err() != nil {
		return math.MaxUint64
	}
	worst, err := compiled.Environment.EstimateCost(ast, worstEstimator{&library.CostEstimator{SizeEstimator: deviceSizes{}}})
	if err != nil {
		return math.MaxUint64
	}
	return worst.Max
}

// worstEstimator corrects the API server's estimates for calls.
type worstEstimator struct{ *library.CostEstimator }

// matcherSteps and comparisons are the numbers of steps of a matcher, and of comparisons of
// characters, per unit of cost (1/6 µs).
const (
	matcherSteps = 12
	comparisons  = 80
)

// Formats with more than mostClauses clauses or more than mostDigits digits count as endless.
const (
	mostClauses = 16
	mostDigits  = 100
)

// EstimateCallCost implements [checker.CostEstimator].
func (w worstEstimator) EstimateCallCost(function, overload string, target *checker.AstNode, args []checker.AstNode) *checker.CallEstimate {
	estimate := w.CostEstimator.EstimateCallCost(function, overload, target, args)
	if target != nil {
		args = append([]checker.AstNode{*target}, args...)
	}
	cost := 0.0
	switch {
	case (function == "matches" || function == "find" || function == "findAll") && len(args) >= 2:
		cost = (w.sizeOf(args[0]) + 1) * w.programSize(args[1]) / matcherSteps
	case strings.HasPrefix(overload, "string_") && (function == "indexOf" || function == "lastIndexOf") && len(args) >= 2:
		cost = w.sizeOf(args[0]) * w.sizeOf(args[1]) / comparisons
	case function == "replace" && estimate != nil && estimate.ResultSize != nil:
		cost = float64(estimate.ResultSize.Max) / 10
	case function == "format" && len(args) >= 1 && !isShortFormat(args[0]):
		cost = math.MaxUint64
	}

	if estimate == nil && cost > 0 {
		estimate = &checker.CallEstimate{}
	}
	if cost > 0 && cost > float64(estimate.Max) {
		estimate.Max = math.MaxUint64
		if cost < math.MaxInt64 {
			estimate.Max = uint64(cost)
		}
	}
	return estimate
}

// sizeOf returns the maximum size of a value.
func (w worstEstimator) sizeOf(node checker.AstNode) float64 {
	size := node.ComputedSize()
	if size == nil {
		size = w.EstimateSize(node)
	}
	if size == nil {
		return math.MaxUint64
	}
	return float64(size.Max)
}

// programSize returns the number of instructions of a regular expression. A computed regular
// expression can repeat another expression a thousand times with only four characters.
func (w worstEstimator) programSize(pattern checker.AstNode) float64 {
	text, known := literal(pattern)
	if !known {
		return w.sizeOf(pattern) * 250
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return 0 // never matched: it does not compile
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return 0
	}
	return float64(len(program.Inst))
}

// precision matches the number of digits in a clause of a format.
var precision = regexp.MustCompile(`%\.([0-9]*)`)

// isShortFormat reports whether a literal format has few clauses, each with few digits.
func isShortFormat(format checker.AstNode) bool {
	text, known := literal(format)
	if !known || strings.Count(text, "%") > mostClauses {
		return false
	}
	return !slices.ContainsFunc(precision.FindAllStringSubmatch(text, -1), func(clause []string) bool {
		digits, err := strconv.Atoi(clause[1])
		return err != nil || digits > mostDigits
	})
}

// literal returns the text of a literal string.
func literal(node checker.AstNode) (text string, known bool) {
	if node.Expr() == nil {
		return "", false
	}
	text, known = valueOf(node).(string)
	return text, known
}

// valueOf returns the value of a literal, nil for other expressions.
func valueOf(node checker.AstNode) any {
	if value := node.Expr().AsLiteral(); value != nil {
		return value.Value()
	}
	return nil
}

// deviceSizes estimates the sizes of the values read by a selector as the maximum permitted by the
// API.
type deviceSizes struct{}

// EstimateSize implements [checker.CostEstimator].
func (deviceSizes) EstimateSize(node checker.AstNode) *checker.SizeEstimate {
	if path := node.Path(); len(path) == 0 || path[0] != "device" {
		return nil
	}
	switch kind := node.Type().Kind(); kind {
	case types.ListKind, types.MapKind:
		return &checker.SizeEstimate{Max: resourcev1.ResourceSliceMaxAttributesAndCapacitiesPerDevice}
	case types.StringKind, types.DynKind, types.AnyKind:
		return &checker.SizeEstimate{Max: resourcev1.DeviceAttributeMaxValueLength}
	}
	return nil
}

// EstimateCallCost implements [checker.CostEstimator].
func (deviceSizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}
