package rebalance

import "time"

// Goals are those of Berth's own, by name.
var Goals = []string{"heal", "spread", "return", "consolidate", "defragment"}

// settledFor is how long a node has to be ready before pods return to it: spot nodes come and go.
const settledFor = 5 * time.Minute

// OwnGoal is one of Berth's own goals by name, or nil. number is what consolidate asks for.
func OwnGoal(name string, number int) *Goal {
	evictor := NewEvictor()
	evictor.Own = true
	goal := &Goal{Name: name, Evictor: evictor}
	switch name {
	case "heal":
		goal.Heal = &Heal{}
	case "spread":
		goal.Heal = &Heal{Soft: true}
	case "return":
		goal.Return = &Return{Weights: true, Taints: true, Settled: settledFor}
	case "consolidate":
		goal.Consolidate = &Consolidate{Nodes: number}
	case "defragment":
		goal.Defragment = &Defragment{}
	default:
		return nil
	}
	return goal
}
