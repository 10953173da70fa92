package simulate

import "fmt"

// Allowance bounds what a world may cost. The zero value bounds nothing.
type Allowance struct {
	// Stop, if set, is asked between decisions. Once it returns an error nothing more is decided,
	// and what is under way fails with it.
	Stop func() error
	// Pods and Nodes are how many operations may add in sum; 0 is any number.
	Pods, Nodes int
}

// allowed is an Allowance as it is used up.
type allowed struct {
	Allowance
	pods, nodes int   // how many there may be; 0 is any number
	ended       error // why nothing more is decided
}

// count begins to count what is added to what is there.
func (a *allowed) count(pods, nodes int) {
	if a.Pods > 0 {
		a.pods = pods + a.Pods
	}
	if a.Nodes > 0 {
		a.nodes = nodes + a.Nodes
	}
}

// Err says why the world does not go on, nil if it does.
func (w *World) Err() error { return w.allowed.ended }

// halted asks whether to go on. It is asked in every loop whose length an operation, or the
// cluster, decides.
func (w *World) halted() bool {
	a := &w.allowed
	switch {
	case a.ended != nil:
	case a.pods > 0 && len(w.pods) > a.pods:
		a.ended = fmt.Errorf("more than %d pods would be added: ask for fewer", a.Pods)
	case a.nodes > 0 && len(w.machines) > a.nodes:
		a.ended = fmt.Errorf("more than %d nodes would be added: ask for fewer", a.Nodes)
	case a.Stop != nil:
		a.ended = a.Stop()
	}
	return a.ended != nil
}
