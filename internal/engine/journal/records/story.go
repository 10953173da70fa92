// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package records

import (
	"fmt"
	"io"
	"time"
)

// WriteLine writes a line of a journal's story. The time is printed to the millisecond, in its own
// time zone.
func WriteLine(out io.Writer, at time.Time, text string) {
	fmt.Fprintf(out, "%s  %s\n", at.Format("2006-01-02T15:04:05.000Z07:00"), text)
}
