// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
)

// SetDefault sets an optional field that is nil. A pointer to a zero value counts as set.
func SetDefault[T any](field **T, value T) { *field = cmp.Or(*field, &value) }

// FalseFirst orders false before true, like cmp.Compare.
func FalseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// Kubernetes is the version that defines these rules, and the version of the API server and
// controllers run by berth-controlplane. It must equal the version of the libraries in go.mod, from
// which the Makefile takes the version. A test verifies this.
const Kubernetes = "v1.37.2"
