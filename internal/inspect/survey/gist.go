package survey

import (
	"fmt"
	"strings"
)

// Gist is what the answer says, but for when it was asked for and how long pods have been pending.
// Answers with the same gist need not be read again.
func (p *Pending) Gist() string {
	var gist strings.Builder
	for i := range p.Workloads {
		w := &p.Workloads[i]
		fmt.Fprintln(&gist, w.Namespace, w.Name, w.Pods, w.State, w.why(), w.Help)
	}
	return gist.String()
}

// Gist is what the answer says, but for when it was asked for and how long is left.
func (e *Evictions) Gist() string {
	var gist strings.Builder
	for i := range e.Evictions {
		v := &e.Evictions[i]
		fmt.Fprintln(&gist, v.Namespace, v.Name, v.Node, v.Due.Unix(), v.Taint)
	}
	return gist.String()
}

// Gist is what the answer says, but for when it was asked for.
func (c *Capacity) Gist() string {
	gist := fmt.Sprint(c.Groups)
	if c.Fill != nil {
		gist += fmt.Sprint(c.Fill.Placed, c.Fill.Nodes, c.Fill.Stops)
	}
	return gist
}
