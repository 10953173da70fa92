package survey

import (
	"fmt"
	"strings"
)

// Gist is the answer without the time of the question and the age of pending pods. Two answers with
// the same gist tell a reader the same. It is for those who ask again and again and print only what
// is new, such as a watch.
func (p *Pending) Gist() string {
	var gist strings.Builder
	for i := range p.Workloads {
		w := &p.Workloads[i]
		fmt.Fprintln(&gist, w.Namespace, w.Name, w.Pods, w.Missing, w.State, w.why(), w.Help)
	}
	return gist.String()
}

// Gist is the answer without the time of the question and the time left. The time at which a pod is
// due stays in it: that is news if it changes.
func (e *Evictions) Gist() string {
	var gist strings.Builder
	for i := range e.Evictions {
		v := &e.Evictions[i]
		fmt.Fprintln(&gist, v.Namespace, v.Name, v.Node, v.Due.Unix(), v.Taint)
	}
	return gist.String()
}

// Gist is the answer without the time of the question.
func (c *Capacity) Gist() string {
	gist := fmt.Sprint(c.Groups)
	if c.Fill != nil {
		gist += fmt.Sprint(c.Fill.Placed, c.Fill.Nodes, c.Fill.Stops)
	}
	return gist
}
