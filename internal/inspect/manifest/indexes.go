package manifest

import (
	"strconv"
	"strings"
)

// span is a range of completion indexes, both ends included.
type span struct{ first, last int }

// completedIndexes parses a Job's completedIndexes, such as "1,3-5,7". What cannot be parsed counts
// as not completed.
func completedIndexes(text string) []span {
	var spans []span
	for part := range strings.SplitSeq(text, ",") {
		low, high, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(low)
		if err != nil {
			continue
		}
		last := first
		if isRange {
			if last, err = strconv.Atoi(high); err != nil {
				continue
			}
		}
		spans = append(spans, span{first, last})
	}
	return spans
}
