// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package survey

import (
	"fmt"
	"strings"
)

// Fingerprint is the report without the time of the request and the age of pending pods. Reports
// with the same fingerprint have the same content for a reader. It is for callers that poll and
// print only changes, such as commands with --watch.
func (p *Pending) Fingerprint() string {
	var gist strings.Builder
	for i := range p.Workloads {
		w := &p.Workloads[i]
		fmt.Fprintln(&gist, w.Namespace, w.Name, w.Pods, w.Missing, w.State, w.why(), w.Help)
	}
	return gist.String()
}

// Fingerprint is the report without the time of the request and the remaining time. It includes the
// due time of a pod, because a changed due time must be reported.
func (e *Evictions) Fingerprint() string {
	var gist strings.Builder
	for i := range e.Evictions {
		v := &e.Evictions[i]
		fmt.Fprintln(&gist, v.Namespace, v.Name, v.Node, v.Due.Unix(), v.Taint)
	}
	return gist.String()
}

// Fingerprint is the report without the time of the request.
func (c *Capacity) Fingerprint() string {
	gist := fmt.Sprint(c.Groups)
	if c.Fill != nil {
		gist += fmt.Sprint(c.Fill.Placed, c.Fill.Nodes, c.Fill.Stops)
	}
	return gist
}
