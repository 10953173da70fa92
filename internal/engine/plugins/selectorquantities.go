// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"sync"

	"github.com/google/cel-go/common/decls"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/dynamic-resource-allocation/cel"

	"github.com/berth-k8s/berth/internal/quantity"
)

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
