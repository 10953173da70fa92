package rebalance

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Closing is how long a node is closed to new pods.
type Closing string

const (
	// Emptying means that the taint stays on the node when it is empty.
	Emptying Closing = "Emptying"
	// MakingRoom means that the taint is removed after the last move of the attempt.
	MakingRoom Closing = "MakingRoom"
)

// ratio is a gauge that an attempt sets itself.
type ratio struct {
	title string
	left  func() int64
}

func (r *ratio) gaugeName() string                   { return r.title }
func (r *ratio) countPod(*pod, *cluster.Node, int64) {}
func (r *ratio) currentValue() int64                 { return r.left() }

// closeNode keeps new pods off a node; openNode undoes that.
func (w *world) closeNode(n *cluster.Node) {
	object := w.nodes[n.Name].DeepCopy()
	object.Spec.Taints = append(object.Spec.Taints, v1.Taint{Key: EmptyingTaint, Effect: v1.TaintEffectNoSchedule})
	w.replaceNode(object)
}

func (w *world) openNode(n *cluster.Node) {
	object := w.nodes[n.Name].DeepCopy()
	object.Spec.Taints = slices.DeleteFunc(object.Spec.Taints, func(t v1.Taint) bool { return t.Key == EmptyingTaint })
	w.replaceNode(object)
}

func (w *world) replaceNode(object *v1.Node) {
	w.nodes[object.Name] = object
	w.c.SetNode(object)
	for _, g := range w.gauges {
		if l, ok := g.(*ledger); ok {
			l.recountTaints()
		}
	}
}

func isClosed(n *cluster.Node) bool {
	return slices.ContainsFunc(n.Taints.Taints, func(t v1.Taint) bool { return t.Key == EmptyingTaint })
}

func (w *world) closedNodes() (names []string) {
	for _, n := range w.c.Nodes {
		if n != nil && isClosed(n) {
			names = append(names, n.Name)
		}
	}
	slices.Sort(names)
	return names
}

// controlPlane reports whether a node is one of the control plane: nobody wants it emptied, and it
// is in use without any pod that could run elsewhere.
func controlPlane(n *cluster.Node) bool {
	_, is := n.Lookup("node-role.kubernetes.io/control-plane")
	return is
}

// canMove reports whether a pod can run elsewhere. One that is being deleted leaves its node
// anyway.
func canMove(p *pod) bool { return !p.Terminating && !staysOnNode(p) }

// movablePods returns the pods of a node that can run elsewhere, the largest first.
func movablePods(n *cluster.Node, w *world) (list []*pod) {
	for _, p := range n.Pods {
		if known := w.placed[p.UID]; known != nil && canMove(known) {
			list = append(list, known)
		}
	}
	slices.SortFunc(list, bySize)
	return list
}

// bySize puts the largest first.
func bySize(a, b *pod) int {
	return cmp.Or(
		cmp.Compare(sumScalars(b), sumScalars(a)),
		cmp.Compare(b.Class.Requests.MilliCPU, a.Class.Requests.MilliCPU),
		cmp.Compare(b.Class.Requests.Memory, a.Class.Requests.Memory),
		byName(a, b),
	)
}

func sumScalars(p *pod) (sum int64) {
	for _, amount := range p.Class.Requests.Scalars {
		sum += amount
	}
	return sum
}

// emptyNode moves all pods off a node, or none.
func (s *search) emptyNode(st *strategy, n *cluster.Node, closing Closing) bool {
	w := s.w
	list := movablePods(n, w)
	for _, p := range list {
		if code, why := s.refusalOf(st, p); code != "" {
			s.stayNode(st, n, code, fmt.Sprintf("%s/%s: %s", p.Namespace(), p.Name, why))
			return false
		}
	}
	if w.whyLeaving(n) != "" {
		s.stayNode(st, n, NodeLeaving, n.Name+" "+w.whyLeaving(n))
		return false
	}
	mark, before := s.undoMark(), w.gaugeValues()
	for _, p := range list {
		is := st.moveWish()
		is.within = true
		why := proof{}
		if why.code, why.message = s.refusalOf(st, p); why.code == "" { // the moves before count towards limits
			why = s.makeMove(st, p, is, "empty "+n.Name, closing)
		}
		if why.code != "" {
			s.undoTo(mark)
			s.stayNode(st, n, why.code, fmt.Sprintf("%s/%s: %s", p.Namespace(), p.Name, why.message))
			return false
		}
	}
	after := w.gaugeValues()
	if closing == "" && slices.Compare(after[:st.at+1], before[:st.at+1]) >= 0 {
		s.undoTo(mark)
		return false
	}
	delete(s.nodeStays, n.Name)
	return true
}

// consolidateNodes empties nodes, the cheapest first. Empty ones keep a taint.
func (st *strategy) consolidateNodes() {
	w := st.w
	empties := func() (count int64) {
		for _, n := range w.c.Nodes {
			if n != nil && isClosed(n) && len(movablePods(n, w)) == 0 {
				count++
			}
		}
		return count
	}

	st.gauge = &ratio{"nodes still to empty", func() int64 { return max(0, int64(st.Consolidate.Nodes)-empties()) }}
	st.attempts = func(s *search) bool {
		if s.tried[st] {
			return false
		}
		s.tried[st] = true
		before := empties()
		st.emptyCheapest(s, st.Consolidate.Nodes-int(before))
		return empties() > before
	}
}

// emptyCheapest closes as many nodes as are wanted before the first move, so that no pod lands on a
// node that is emptied next.
func (st *strategy) emptyCheapest(s *search, wanted int) {
	if wanted <= 0 {
		return
	}
	w := st.w
	var list []*cluster.Node
	cost := map[*cluster.Node]int64{}

	for _, n := range w.c.Nodes {
		if n == nil || isClosed(n) && len(movablePods(n, w)) == 0 || !st.sees(n) || w.whyLeaving(n) != "" || controlPlane(n) {
			continue
		}
		list = append(list, n)
		for _, p := range movablePods(n, w) {
			code, _ := s.refusalOf(st, p)
			cost[n] += 1 + costly*boolToInt(code != "")
		}
	}

	slices.SortStableFunc(list, func(a, b *cluster.Node) int {
		return cmp.Or(cmp.Compare(cost[a], cost[b]), cmp.Compare(a.Name, b.Name))
	})
	out := map[*cluster.Node]bool{}
	for range mostRestarts {
		mark := s.undoMark()
		failed := st.emptyAll(s, list, out, cost, wanted)
		if failed == nil {
			return
		}
		s.undoTo(mark)
		out[failed] = true
	}
}

// mostRestarts bounds how often nodes are chosen again because one of them could not be emptied.
const mostRestarts = 64

// emptyAll closes and empties the first nodes of the list, except for those in out. It returns the
// first that cannot be emptied, or nil.
func (st *strategy) emptyAll(s *search, list []*cluster.Node, out map[*cluster.Node]bool,
	cost map[*cluster.Node]int64, wanted int) *cluster.Node {
	var chosen []string
	all := st.w.clusterShares()
	for _, n := range list {
		switch {
		case len(chosen) == wanted || out[n]:
			continue
		case cost[n] >= costly:
			s.emptyNode(st, n, Emptying) // says why not
			continue
		case !all.isWorth(n, len(movablePods(n, st.w))):
			s.stayNode(st, n, NoBetterNode,
				"it would free less than half the share of the cluster than the pods that would have to move are of all")
			continue
		}
		chosen = append(chosen, n.Name)
		if !isClosed(n) {
			s.closeNode(n)
		}
	}
	for _, name := range chosen {
		if n := st.w.c.Node(name); !s.emptyNode(st, n, Emptying) {
			return n
		}
	}
	return nil
}

// costly is what a pod that must not be moved adds to the cost of a node.
const costly = 1_000_000

// shares is what a cluster has in all.
type shares struct {
	cpu, memory float64
	pods        int // those that can run elsewhere
}

func (w *world) clusterShares() (all shares) {
	for _, n := range w.c.Nodes {
		if n == nil {
			continue
		}
		all.cpu += float64(n.Size.MilliCPU)
		all.memory += float64(n.Size.Memory)
	}
	for _, p := range w.placed {
		if canMove(p) {
			all.pods++
		}
	}
	return all
}

// isWorth reports whether emptying a node frees at least half as large a share of the cluster as
// the pods that have to move are of all.
func (all *shares) isWorth(n *cluster.Node, pods int) bool {
	freed := max(float64(n.Size.MilliCPU)/max(all.cpu, 1), float64(n.Size.Memory)/max(all.memory, 1))
	return 2*freed >= float64(pods)/float64(max(all.pods, 1))
}

// setupDefragment makes room for pending pods: for all that are named or for none; if none is, for
// each, those of a pod group together.
func (st *strategy) setupDefragment() {
	w, all := st.w, len(st.Defragment.Pods) == 0
	waiting := func() (list []*pod) {
		for _, p := range w.waiting {
			name := types.NamespacedName{Namespace: p.Namespace(), Name: p.Name}
			if all && w.schedulerOf(p) != nil && len(p.Spec().SchedulingGates) == 0 || slices.Contains(st.Defragment.Pods, name) {
				list = append(list, p)
			}
		}
		return list
	}

	st.gauge = &ratio{"pods waiting for room", func() int64 { return int64(len(waiting())) }}
	st.attempts = func(s *search) (moved bool) {
		if s.tried[st] || len(waiting()) == 0 {
			return false
		}
		s.tried[st] = true
		if !all {
			return st.makeRoomForAll(s, waiting)
		}
		done := map[*pod]bool{}
		for _, first := range slices.Clone(waiting()) {
			if done[first] || first.Node != nil {
				continue
			}
			moved = st.makeRoomForAll(s, func() (list []*pod) {
				for _, p := range waiting() {
					if p == first || isSameGroup(p, first) {
						done[p] = true
						list = append(list, p)
					}
				}
				return list
			}) || moved
		}
		return moved
	}
}

// isSameGroup reports whether two pods belong to one pod group.
func isSameGroup(a, b *pod) bool {
	x, y := a.Spec().SchedulingGroup, b.Spec().SchedulingGroup
	return x != nil && y != nil && a.Namespace() == b.Namespace() && reflect.DeepEqual(x, y)
}

// makeRoomForAll makes room for all that wait, or for none.
func (st *strategy) makeRoomForAll(s *search, waiting func() []*pod) bool {
	mark := s.undoMark()
	for left := waiting(); len(left) > 0; left = waiting() {
		if !st.makeRoom(s, left[0]) {
			s.undoTo(mark)
			for _, p := range waiting() {
				s.recordStay(st, p, NoBetterNode, "no node can be made fit for it with moves one level deep")
			}
			return false
		}
		if len(waiting()) >= len(left) {
			s.undoTo(mark)
			return false
		}
	}
	return true
}

// widest bounds the nodes that are tried for one pod.
const widest = 64

// makeRoom finds the node that needs the fewest moves, and makes them.
func (st *strategy) makeRoom(s *search, p *pod) bool {
	w := st.w
	var list []*cluster.Node
	for _, n := range w.c.Nodes {
		if n != nil && !isClosed(n) && w.whyLeaving(n) == "" && st.sees(n) && w.suitsPod(p, n) {
			list = append(list, n)
		}
	}

	slices.SortFunc(list, func(a, b *cluster.Node) int {
		return cmp.Or(cmp.Compare(spareFraction(b, p), spareFraction(a, p)), cmp.Compare(a.Name, b.Name))
	})
	var best *cluster.Node
	var spared map[*pod]bool
	fewest := 0

	for _, n := range list[:min(len(list), widest)] {
		mark := s.undoMark()
		moved, ok := st.tryRoom(s, p, n, nil)
		s.undoTo(mark)
		if !ok {
			continue
		}
		without := map[*pod]bool{}
		for _, v := range moved {
			without[v] = true
			if _, ok := st.tryRoom(s, p, n, without); !ok {
				delete(without, v)
			}
			s.undoTo(mark)
		}
		if count := len(moved) - len(without); best == nil || count < fewest {
			best, spared, fewest = n, without, count
		}
	}

	if best == nil {
		return false
	}
	_, ok := st.tryRoom(s, p, best, spared)
	return ok
}

// spareFraction returns which fraction of the scarcest resource that matters to the pod is free on
// a node.
func spareFraction(n *cluster.Node, p *pod) float64 {
	least := 1.0
	for name := range p.Class.Requests.Scalars {
		all := float64(n.Size.Of(name))
		least = min(least, (all-float64(n.Requested.Of(name)))/max(all, 1))
	}
	least = min(least, float64(n.Size.MilliCPU-n.Requested.MilliCPU)/max(float64(n.Size.MilliCPU), 1))
	return min(least, float64(n.Size.Memory-n.Requested.Memory)/max(float64(n.Size.Memory), 1))
}

// tryRoom moves pods off a closed node, except for those that can stay, until the pending pod fits.
func (st *strategy) tryRoom(s *search, p *pod, n *cluster.Node, spared map[*pod]bool) (moved []*pod, ok bool) {
	w := st.w
	scheduler := w.schedulerOf(p)
	if scheduler == nil {
		return nil, false
	}

	s.closeNode(n)
	for _, v := range movablePods(w.c.Node(n.Name), w) {
		if spared[v] || v == p {
			continue
		}
		if code, _ := s.refusalOf(st, v); code != "" {
			continue
		}
		is := st.moveWish()
		is.within = true
		if why := s.makeMove(st, v, is, fmt.Sprintf("make room for %s/%s on %s", p.Namespace(), p.Name, n.Name),
			MakingRoom); why.code != "" {
			continue
		}
		moved = append(moved, v)
		if w.placed[p.UID] != nil {
			break
		}
		mark := s.undoMark()
		s.openNode(n)
		s.placeWaiting()
		if w.placed[p.UID] != nil {
			return moved, true
		}
		s.undoTo(mark)
	}

	s.openNode(n)
	return moved, w.placed[p.UID] != nil
}
