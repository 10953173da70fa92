// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

import "cmp"

// SetDefault sets an optional field that is nil. A pointer to a zero value counts as set.
func SetDefault[T any](field **T, value T) { *field = cmp.Or(*field, &value) }
