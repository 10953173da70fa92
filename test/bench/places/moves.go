// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package places

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Moved is the move of a task to another node.
type Moved struct {
	Arrival int // number of the arrival that follows the move, counted from 0
	Task    int // number of the moved task's arrival, counted from 0
	Placement
}

// These constants limit the frequency of moves: at most movesPer100 moves per 100 arrivals so far.
// Moves that are not used remain available later.
const (
	movesPer100 = 3
	// lookEvery is the number of arrivals between searches for a move that increases the useful
	// capacity.
	lookEvery = 100 / movesPer100
	// triedMoves limits the number of moves tried per search.
	triedMoves = 8
)

// These constants are the minimum gains of a move. The gain is the increase in the worth of the
// nodes (fragmentation.Outlook.Worth), in thousandths of a GPU. A move that makes room for an
// arriving task may have a negative gain.
const (
	leastForArrival = -50
	leastForOthers  = 30
	thousandth      = 16 << 20 // see fragmentation.Outlook.Worth
)

// mover is a player with Berth's engine that also moves tasks. It verifies each move: after the
// task is removed, the engine must choose another node for it.
type mover struct {
	*engine
	plugin  *plugins.Fragmentation
	arrived int
	objects map[types.UID]*v1.Pod
	numbers map[types.UID]int // number of each task's arrival
	moves   []Moved
	// changes counts placements. failed holds the value of changes at which no move made room for a
	// shape; the search is not repeated before the next placement.
	changes int
	failed  map[Shape]int
	// touched counts the changes of each node. A node's exchanges are cached until the node
	// changes.
	touched   map[*cluster.Node]int
	exchanges map[exchangeKey]*exchangeList
}

func newMover(e *engine) *mover {
	f, _ := e.profile.DeviceValuer().(*plugins.Fragmentation)
	return &mover{engine: e, plugin: f, objects: map[types.UID]*v1.Pod{},
		numbers: map[types.UID]int{}, failed: map[Shape]int{},
		touched: map[*cluster.Node]int{}, exchanges: map[exchangeKey]*exchangeList{}}
}

func (m *mover) mayMove() bool { return 100*(len(m.moves)+1) <= movesPer100*(m.arrived+1) }

// placeTask implements player.
func (m *mover) placeTask(t *Task) (node string, gpus []share, err error) {
	defer func() { m.arrived++ }()
	object := m.podOf(t)
	m.objects[object.UID], m.numbers[object.UID] = object, m.arrived
	p := m.cluster.Pending(object)

	if m.arrived%lookEvery == 0 && m.mayMove() {
		m.tryMoves(nil, leastForOthers)
	}
	d := m.decider.Decide(p)
	if d.Err != nil {
		return "", nil, d.Err
	}
	if d.Node != nil {
		err := m.placeOn(p, d.Node)
		return d.Node.Name, m.sharesOf(p), err
	}

	if at, known := m.failed[t.Shape]; t.GPUs == 0 || !m.mayMove() || known && at == m.changes {
		return "", nil, nil
	}
	if !m.tryMoves(p, leastForArrival) {
		m.failed[t.Shape] = m.changes
		return "", nil, nil
	}
	return p.Node.Name, m.sharesOf(p), nil
}

func (m *mover) placeOn(p *cluster.Pod, n *cluster.Node) error {
	if err := m.engine.placeOn(p, n); err != nil {
		return err
	}
	m.changes++
	m.touched[n]++
	return nil
}

// tryMoves makes the best move that can be verified, and places the pod p in the vacated room. p is
// nil for a move without an arriving task.
func (m *mover) tryMoves(p *cluster.Pod, least int64) bool {
	list := m.listMoves(p, least*thousandth)
	for i := range list[:min(len(list), triedMoves)] {
		if m.makeMove(list[i].leaves, p) {
			return true
		}
	}
	return false
}

// move is a task that may leave its node, with the resulting increase in the worth of all nodes.
type move struct {
	leaves *cluster.Pod
	value  int64
}

// listMoves lists the moves that let the pod fit on the vacated node, the best first. Without a pod
// it lists all moves of GPU tasks with a sufficient gain.
func (m *mover) listMoves(p *cluster.Pod, least int64) (list []move) {
	costs := map[*cluster.PodClass]int64{}
	for _, n := range m.cluster.SortedNodes() {
		for _, e := range m.exchangesOn(n, p) {
			if _, known := costs[e.leaves.Class]; !known {
				costs[e.leaves.Class] = m.costElsewhere(e.leaves)
			}
			if value := e.value - costs[e.leaves.Class]; value >= least {
				list = append(list, move{e.leaves, value})
			}
		}
	}
	slices.SortFunc(list, func(a, b move) int {
		return cmp.Or(cmp.Compare(b.value, a.value), cmp.Compare(m.numbers[a.leaves.UID()], m.numbers[b.leaves.UID()]))
	})
	return list
}

// exchangesOn lists the tasks of a node whose removal lets the pod fit, with the change in the
// node's worth if the task leaves and the pod arrives. The list is cached until the node changes.
func (m *mover) exchangesOn(n *cluster.Node, p *cluster.Pod) []move {
	key := exchangeKey{n, nil}
	if p != nil {
		key.comes = p.Class
	}
	known := m.exchanges[key]
	if known != nil && known.changes == m.touched[n] {
		return known.list
	}
	known = &exchangeList{changes: m.touched[n]}
	m.exchanges[key] = known
	if p != nil && !m.allowsNode(p, n) {
		return nil
	}

	for _, v := range n.Pods {
		if v.Class.Requests.Scalars[gpuMilli] == 0 && p == nil {
			continue
		}
		if rise, fits := m.plugin.Exchange(m.cluster, n, v, p); fits {
			known.list = append(known.list, move{v, rise})
		}
	}
	return known.list
}

// exchangeKey is a node and the class of the arriving pod, or nil without a pod.
type exchangeKey struct {
	node  *cluster.Node
	comes *cluster.PodClass
}

type exchangeList struct {
	changes int
	list    []move
}

// costElsewhere returns the decrease in worth of the node that the engine chooses for a copy of the
// pod.
func (m *mover) costElsewhere(v *cluster.Pod) int64 {
	next := m.cluster.Pending(m.objects[v.UID()])
	d := m.decider.Decide(next)
	if d.Node == nil {
		const never = 1 << 60
		return never
	}
	_, fine := m.plugin.Score(m.cluster, next, nil).Exact(d.Node)
	return -fine
}

// allowsNode reports whether the pod's node affinity allows a node.
func (m *mover) allowsNode(p *cluster.Pod, n *cluster.Node) bool {
	for _, f := range m.profile.Filters {
		if f.Name() == "NodeAffinity" {
			j := f.Filter(m.cluster, p)
			return j.Node == nil || j.Node(n) == nil
		}
	}
	return true
}

// makeMove removes a task from its node and places the pod there. If the engine then finds no other
// node for the task, makeMove restores the previous state and returns false.
func (m *mover) makeMove(v, p *cluster.Pod) bool {
	from, next := v.Node, m.cluster.Pending(m.objects[v.UID()])
	m.cluster.RemovePod(v.UID())
	m.touched[from]++
	came := p == nil || m.placeOn(p, from) == nil
	if d := m.decider.Decide(next); came && d.Node != nil && d.Node != from && m.placeOn(next, d.Node) == nil {
		m.moves = append(m.moves, Moved{m.arrived, m.numbers[v.UID()], Placement{next.Name(), d.Node.Name, m.sharesOf(next)}})
		return true
	}

	if p != nil && came {
		m.cluster.RemovePod(p.UID())
		p.SetNodeName("")
		p.SetDevices(nil)
	}
	m.cluster.Place(v, from)
	m.touched[from]++
	return false
}
