// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle

import (
	"fmt"
	"strings"
)

// Tests and replays compare actions by these strings, so the strings must contain all decided
// values.

func (Ready) String() string    { return "ready" }
func (a Cancel) String() string { return fmt.Sprintf("cancel #%d: %s", a.Ticket, a.Reason) }

func (a WriteStatus) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "write status of %s", podName(a.Pod))
	if a.Ticket != 0 {
		fmt.Fprintf(&b, " #%d", a.Ticket)
	}
	if a.Nominate != nil {
		fmt.Fprintf(&b, ", nominated %q", *a.Nominate)
	}
	if c := a.Condition; c != nil {
		fmt.Fprintf(&b, ", %s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	return b.String()
}

func (a WriteGroup) String() string {
	return fmt.Sprintf("write group %s/%s, %s=%s %s: %s", a.Group.Namespace, a.Group.Name, a.Condition.Type, a.Condition.Status,
		a.Condition.Reason, a.Condition.Message)
}

func (a RecordEvent) String() string {
	return fmt.Sprintf("tell %s %s of %s/%s: %s", a.Type, a.Reason, a.Regarding.Namespace, a.Regarding.Name, a.Message)
}

func (a ReadPod) String() string { return fmt.Sprintf("read %s/%s", a.Name.Namespace, a.Name.Name) }

func (a Compared) String() string {
	if a.Unclear {
		return fmt.Sprintf("compared %s on %s: unclear", podName(a.Pod), a.Node)
	}
	return fmt.Sprintf("compared %s on %s", podName(a.Pod), a.Node)
}

func (a Panicked) String() string {
	text := fmt.Sprintf("panic while %s/%s was decided: %s", a.Pod.Namespace, a.Pod.Name, a.Value)
	if a.Mended > 0 {
		text += fmt.Sprintf(" (%d nodes mended)", a.Mended)
	}
	return text
}
