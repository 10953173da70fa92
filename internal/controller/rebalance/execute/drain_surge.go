package execute

import "fmt"

func (d *Drainer) surgeTold(s *surge, result Result, node, message string) {
	d.do(DrainTold{Result: result, Pod: &s.Departure, Node: node, Message: message})
}

func (d *Drainer) surgeLeft(s *surge) { d.accepted(s.departure) }

// surgeEnded has a pod stay whose surges keep failing.
func (d *Drainer) surgeEnded(s *surge) {
	d.stale = true
	if s.why == "" || s.outdated {
		return
	}
	if d.tried[s.UID]++; s.final || d.tried[s.UID] >= mostSurges {
		d.stays[s.UID] = fmt.Sprintf("%s/%s stays: %s", s.Namespace, s.Name, s.why)
	}
}
