// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"strconv"
	"strings"
)

// span is a range of completion indexes, both ends included.
type span struct{ first, last int }

// CountIndexes returns the number of indexes in a Job's completedIndexes or failedIndexes: 5 for
// "1,3-5,7".
func CountIndexes(text string) (count int) {
	for _, s := range parseIndexes(text) {
		count += s.last - s.first + 1
	}
	return count
}

// parseIndexes parses a Job's completedIndexes or failedIndexes, such as "1,3-5,7". It skips
// malformed parts.
func parseIndexes(text string) (spans []span) {
	for part := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(low)
		if err != nil {
			continue
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(high); err != nil || last < first {
				continue
			}
		}
		spans = append(spans, span{first, last})
	}
	return spans
}
