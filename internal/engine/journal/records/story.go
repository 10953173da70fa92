package records

import (
	"fmt"
	"io"
	"time"
)

// TellAt writes a line of a story that a journal tells. Times are those of the journal, in its own
// time zone, to the millisecond.
func TellAt(out io.Writer, at time.Time, text string) {
	fmt.Fprintf(out, "%s  %s\n", at.Format("2006-01-02T15:04:05.000Z07:00"), text)
}
