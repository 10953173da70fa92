// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rules

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
