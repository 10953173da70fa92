package decide

import (
	"math"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// room judges and scores nodes for a pod that, of what changes on a node, needs only CPU, memory
// and a pod slot, as nearly all pods do. Its results equal those of the plugins' own judges, and
// depend on the node's Room alone.
type room struct {
	cpu, memory int64 // what has to be free

	// usual: both scorers below score, with their default arguments. Both scores are then computed
	// in one function without calls, since hundreds of rankings may need them for each placement.
	usual bool

	fit                       *plugins.NodeResourcesFit // nil: not scored
	fitWeight                 int64
	fitCPU, fitMemory         int64
	balance                   *plugins.NodeResourcesBalancedAllocation // nil: not scored
	balanceWeight             int64
	balanceCPU, balanceMemory int64
	// skips: the pod requests none of the resources whose balance is scored. Another pod that is
	// alike in everything but the amounts may request one.
	skips bool

	// fitted and balanced are the amounts of both scorers as floating-point numbers, which cannot
	// overflow when they are added to what is requested.
	fitted, balanced struct{ cpu, memory float64 }
}

// planRoom sets the plan's room if neither the class nor the scorers care about resources other
// than CPU and memory.
func (d *Decider) planRoom(pl *plan) {
	requests := &pl.example.Class.Requests
	filtered := false
	for _, f := range pl.contents {
		filtered = filtered || f.name == "NodeResourcesFit"
	}
	if !filtered || requests.EphemeralStorage > 0 {
		return
	}
	for _, amount := range requests.Scalars {
		if amount != 0 {
			return
		}
	}
	r := &room{cpu: requests.MilliCPU, memory: requests.Memory}
	for _, s := range d.profile.Scorers {
		only, skip := true, false
		switch f := s.Scorer.(type) {
		case *plugins.NodeResourcesFit:
			r.fit, r.fitWeight = f, s.Weight
			r.fitCPU, r.fitMemory, only = f.ScoreRequests(d.c, pl.example)
		case *plugins.NodeResourcesBalancedAllocation:
			r.balanceCPU, r.balanceMemory, only, skip = f.ScoreRequests(d.c, pl.example)
			if r.skips = skip; !skip {
				r.balance, r.balanceWeight = f, s.Weight
			}
		}
		if !only && !skip {
			return
		}
	}
	r.usual = r.fit != nil && r.balance != nil && r.fit.LeastOfCPUAndMemory() && r.balance.OfCPUAndMemory()
	r.reckon()
	pl.room = r
}

// reckon sets the fields that follow from the amounts.
func (r *room) reckon() {
	r.fitted.cpu, r.fitted.memory = float64(r.fitCPU), float64(r.fitMemory)
	r.balanced.cpu, r.balanced.memory = float64(r.balanceCPU), float64(r.balanceMemory)
}

// onlyRoom reports whether the pods on a node itself matter only by the room that they leave.
func (pl *plan) onlyRoom() bool { return pl.room != nil && len(pl.contents) == 1 }

// score returns the bucket of a node with this balance (see Decider), or -1 if it does not have
// enough room.
func (r *room) score(room *cluster.Room, balance int8) int16 {
	if !r.fits(room) {
		return -1
	}
	return r.unlimited(room, balance)
}

// fits reports whether a node has enough room.
func (r *room) fits(room *cluster.Room) bool {
	return room.Pods < room.MaxPods && (r.cpu <= 0 || r.cpu <= room.CPU-room.RequestedCPU) && (r.memory <= 0 || r.memory <= room.Memory-room.RequestedMemory)
}

// bounded reports whether the bounds of a box apply to these scores, for this pod and for others
// that differ from it in the amounts alone.
func (r *room) bounded() bool {
	return !r.skips && (r.fit == nil || r.fit.LeastOfCPUAndMemory()) && (r.balance == nil || r.balance.OfCPUAndMemory())
}

// unlimited is the score regardless of whether there is enough room.
func (r *room) unlimited(room *cluster.Room, balance int8) int16 {
	if r.usual && room.CPU > 0 && room.Memory > 0 {
		return r.usualScore(room, balance)
	}
	var sum int64
	if r.fit != nil {
		sum += r.fitWeight * r.fit.RoomScore(rules.Sum(room.NonZeroCPU, r.fitCPU), room.CPU, rules.Sum(room.NonZeroMemory, r.fitMemory), room.Memory)
	}
	if r.balance != nil {
		sum += r.balanceWeight * r.balance.RoomScore(room.RequestedCPU, r.balanceCPU, room.CPU, room.RequestedMemory, r.balanceMemory, room.Memory)
	}
	return int16(sum)
}

// doubt is how close to an integer a score that was computed by multiplication may be and still be
// trusted to round correctly: several times the error of Room.PerCPU and Room.PerMemory, for scores
// up to MaxScore.
const doubt = 1.0 / (1 << 15)

// usualScore is LeastAllocatedScore plus EvennessScore. It multiplies where these divide, and calls
// them where the result is so close to an integer that it could round the other way.
func (r *room) usualScore(room *cluster.Room, balance int8) int16 {
	perCPU, perMemory := float64(room.PerCPU), float64(room.PerMemory)
	freeCPU := (float64(room.CPU-room.NonZeroCPU) - r.fitted.cpu) * perCPU * plugins.MaxScore
	freeMemory := (float64(room.Memory-room.NonZeroMemory) - r.fitted.memory) * perMemory * plugins.MaxScore
	usedCPU, usedMemory := (float64(room.RequestedCPU)+r.balanced.cpu)*perCPU, (float64(room.RequestedMemory)+r.balanced.memory)*perMemory
	with := (1 - math.Abs(usedCPU-usedMemory)/2) * plugins.MaxScore

	a, b, c := int64(freeCPU), int64(freeMemory), int64(with)
	if freeCPU < 0 || freeMemory < 0 || usedCPU > 1 || usedMemory > 1 || // scores are clamped there
		doubtful(freeCPU-float64(a)) || doubtful(freeMemory-float64(b)) || doubtful(with-float64(c)) {
		a = plugins.LeastAllocatedScore(rules.Sum(room.NonZeroCPU, r.fitCPU), room.CPU)
		b = plugins.LeastAllocatedScore(rules.Sum(room.NonZeroMemory, r.fitMemory), room.Memory)
		c = plugins.BalanceScore(rules.Sum(room.RequestedCPU, r.balanceCPU), room.CPU, rules.Sum(room.RequestedMemory, r.balanceMemory), room.Memory)
	}
	return int16((a+b)/2*r.fitWeight + plugins.Evenness(c, int64(balance))*r.balanceWeight)
}

func doubtful(fraction float64) bool { return fraction < doubt || fraction > 1-doubt }
