package simulate

import "fmt"

// Allowance bounds what a world may cost. The zero value bounds nothing. A server sets it: a
// question of one line can ask for a hundred thousand pods.
type Allowance struct {
	// Stop, if set, is called between decisions. Once it returns an error nothing more is
	// decided, and the current operation fails with it. It is usually the Err of a context.
	Stop func() error
	// Pods and Nodes are how many of each operations may add in total; 0 means any number.
	Pods, Nodes int
}

// allowed is an Allowance and how much of it is used up. Once ended is set, it stays: the
// world is incomplete then, and must not answer anything else.
type allowed struct {
	Allowance
	pods, nodes int   // how many there may be; 0 is any number
	ended       error // why nothing more is decided
	there       func() (pods, nodes int)
}

// countExisting starts from the pods and nodes that exist.
func (a *allowed) countExisting() {
	pods, nodes := a.there()
	if a.Pods > 0 {
		a.pods = pods + a.Pods
	}
	if a.Nodes > 0 {
		a.nodes = nodes + a.Nodes
	}
}

// Err returns why the world has stopped, or nil.
func (w *World) Err() error { return w.allowed.ended }

// mustStop reports whether to stop. Every loop whose length depends on an operation or on the
// cluster calls it, at least once per decision.
func (a *allowed) mustStop() bool {
	pods, nodes := a.there()
	switch {
	case a.ended != nil:
	case a.pods > 0 && pods > a.pods:
		a.ended = fmt.Errorf("more than %d pods would be added: ask for fewer", a.Pods)
	case a.nodes > 0 && nodes > a.nodes:
		a.ended = fmt.Errorf("more than %d nodes would be added: ask for fewer", a.Nodes)
	case a.Stop != nil:
		a.ended = a.Stop()
	}
	return a.ended != nil
}
