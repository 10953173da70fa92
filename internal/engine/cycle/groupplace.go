package cycle

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
)

// DefaultSearchLimit is how many judgements of a node the search for a placement may take, in all
// domains of a topology key together: some tens of milliseconds, and enough to find any placement
// of six pods on six nodes.
const DefaultSearchLimit = 100_000

// place looks for nodes for as many members as possible. If the first pass, in upstream's order,
// places as many as the group needs, that stands. It is also the last pass if order cannot matter
// (see differ): all members take the same room then, so no order places more. Otherwise members
// that need each other get another chance after all have been tried, then other orders are tried,
// and finally placements are searched for. It ends early at the bound of the attempt.
func (a *groupAttempt) place() error {
	if err := a.pass(a.members, true); err != nil || len(a.placed) >= a.need || a.shortened {
		return err
	}
	if !a.differ() || len(a.placed) == 0 && !a.declined {
		return nil // without a first one no order helps
	}
	if err := a.again(); err != nil || len(a.placed) >= a.need || a.shortened {
		return err
	}
	for _, order := range []func() []*member{a.largestFirst, a.failedFirst} {
		ordered := order()
		a.undo(0)
		if err := a.pass(ordered, false); err != nil {
			return err
		}
		if err := a.again(); err != nil || len(a.placed) >= a.need || a.shortened {
			return err
		}
	}
	a.undo(0)
	if a.search() {
		return a.again() // more than are needed may fit
	}
	return nil
}

// pass tries each member that is not placed, in the given order. first: it notes why members fit
// nowhere. It ends early at the bound of the attempt.
func (a *groupAttempt) pass(order []*member, first bool) error {
	failed := failures{}
	for i, m := range order {
		if m.Node != "" {
			continue
		}
		if other := failed.of(m, a.cluster.Log.Len()); other != nil {
			if first {
				m.failure = other.failure
			}
			continue
		}
		if a.over() {
			a.stop(order[i:], first)
			return nil
		}
		decide := a.try
		if first {
			decide = a.tryAgain
		}
		ok, err := decide(m)
		if err != nil {
			return err
		}
		if ok {
			continue
		}
		if first {
			m.failure = a.profile.Diagnose(m.asked)
			a.nameDomains(m)
		}
		failed.add(m, a.cluster.Log.Len())
	}

	return nil
}

// failures are the members that failed while the log was at a position, one of each class: as long
// as nothing has changed, the others of the class fail, too. Members of two sizes may take turns.
type failures struct {
	position int
	byClass  map[*cluster.PodClass]*member
}

func (f *failures) add(m *member, position int) {
	if f.position != position || f.byClass == nil {
		f.position, f.byClass = position, map[*cluster.PodClass]*member{}
	}
	f.byClass[m.asked.Class] = m
}

// of returns a member like the given one that has failed, or nil.
func (f *failures) of(m *member, position int) *member {
	if f.position != position || m.Waiting.Nominated != "" {
		return nil
	}
	return f.byClass[m.asked.Class]
}

// alike tells whether two members are decided as pods of the same class.
func alike(a, b *member) bool { return a.asked.Class == b.asked.Class }

// again retries the members without a node as long as each round places some: a member may need one
// that was placed after it was tried.
func (a *groupAttempt) again() error {
	for {
		before := len(a.placed)
		if before == len(a.members) {
			return nil
		}
		if err := a.pass(a.members, false); err != nil || len(a.placed) == before {
			return err
		}
	}
}

// differ tells whether the order in which members are placed, or the node of the first one, can
// matter to the others: they are not all alike, or depend on other pods, on device claims or on
// volumes that are yet to be found for all of them.
func (a *groupAttempt) differ() bool {
	first := a.members[0]
	for _, m := range a.members {
		class := m.item.Class
		if !alike(first, m) || class.HasAffinity() || len(class.Spec.TopologySpreadConstraints) > 0 || len(class.Spec.ResourceClaims) > 0 {
			return true
		}
	}
	return slices.ContainsFunc(first.item.Class.Spec.Volumes, func(v v1.Volume) bool {
		if v.PersistentVolumeClaim == nil {
			return false
		}
		claim, ok := a.cluster.Claims.Get(first.Pod.Namespace, v.PersistentVolumeClaim.ClaimName)
		return ok && claim.Spec.VolumeName == ""
	})
}

// largestFirst orders members by the largest share that they request of any resource of the
// cluster.
func (a *groupAttempt) largestFirst() []*member {
	var cpu, memory float64
	for i := range a.cluster.Rooms {
		cpu, memory = cpu+float64(a.cluster.Rooms[i].CPU), memory+float64(a.cluster.Rooms[i].Memory)
	}
	others := map[v1.ResourceName]float64{} // as GPUs
	for _, m := range a.members {
		for name := range m.item.Class.Requests.Scalars {
			others[name] = 0
		}
	}
	if len(others) > 0 {
		for _, n := range a.cluster.Nodes {
			if n != nil {
				for name := range others {
					others[name] += float64(n.Size.Scalars[name])
				}
			}
		}
	}
	share := func(m *member) float64 {
		r := &m.item.Class.Requests
		largest := max(float64(r.MilliCPU)/max(cpu, 1), float64(r.Memory)/max(memory, 1))
		for name, amount := range r.Scalars {
			largest = max(largest, float64(amount)/max(others[name], 1))
		}
		return largest
	}
	return slices.SortedStableFunc(slices.Values(a.members), func(x, y *member) int { return cmp.Compare(share(y), share(x)) })
}

// failedFirst orders members so that those that found no node in the last pass come first.
func (a *groupAttempt) failedFirst() []*member {
	failed := func(m *member) int {
		if m.Node == "" {
			return 0
		}
		return 1
	}
	return slices.SortedStableFunc(slices.Values(a.members), func(x, y *member) int { return cmp.Compare(failed(x), failed(y)) })
}

// search looks for a placement depth first, with backtracking: it takes the members from the
// largest on, and tries the better nodes first. Members that depend on other pods are tried at
// every point of that order. Of empty nodes that are alike only one is tried, and members that are
// alike are placed in the order of their nodes. The search gives up at its limit, of which each
// domain that is still to be tried gets the same share.
func (a *groupAttempt) search() bool {
	devices := a.cluster.ResourceSlices.Len() > 0 // nodes that are alike may have different ones
	s := &groupSearch{groupAttempt: a, plain: true, until: a.searched + (a.searchLimit-a.searched)/max(1, a.untried)}
	for _, m := range a.largestFirst() {
		if dependsOnOthers(m) {
			s.dependent = append(s.dependent, m)
		} else {
			s.order = append(s.order, m)
		}
		spec := m.item.Class.Spec
		s.plain = s.plain && len(spec.NodeSelector)+len(spec.Volumes) == 0 && spec.Affinity == nil &&
			(!devices || len(spec.ResourceClaims)+len(m.item.Class.Requests.Scalars) == 0)
	}
	return s.from(0)
}

// dependsOnOthers tells whether it matters to a member which pods are placed before it.
func dependsOnOthers(m *member) bool {
	class := m.item.Class
	return len(class.RequiredAffinity)+len(class.Spec.TopologySpreadConstraints) > 0
}

// groupSearch is the state of one search.
type groupSearch struct {
	*groupAttempt
	order     []*member // members that are tried in this order
	dependent []*member // members that depend on which pods were placed before, tried at any point
	plain     bool      // no member selects nodes or has volumes or devices, so that like nodes are the same to all
	until     int       // searched ends there
	ended     bool      // it has
}

// from places as many members as are needed: of order from the i-th on, of dependent those not
// placed.
func (s *groupSearch) from(i int) bool {
	if len(s.placed) >= s.need {
		return true
	}
	left := len(s.order) - i
	for _, m := range s.dependent {
		if m.Node == "" {
			left++
		}
	}
	if len(s.placed)+left < s.need {
		return false
	}
	if i < len(s.order) && s.placeNext(s.order[i], i+1) {
		return true
	}
	var tried []*cluster.PodClass
	for _, m := range s.dependent {
		if s.ended {
			return false
		}
		if m.Node != "" || slices.Contains(tried, m.asked.Class) {
			continue
		}
		if s.placeNext(m, i) {
			return true
		}
		tried = append(tried, m.asked.Class)
	}
	return !s.ended && i < len(s.order) && s.from(i+1) // without that one
}

// placeNext tries all nodes for a member, and with each continues from the i-th of order on.
func (s *groupSearch) placeNext(m *member, i int) bool {
	if s.searched += s.cluster.Len(); s.searched > s.until {
		s.ended, s.gaveUp = true, true
		return false
	}

	after := int32(-1)
	if last := len(s.placed) - 1; last >= 0 && alike(s.placed[last], m) && !m.item.Class.HasAffinity() && !dependsOnOthers(m) {
		after = s.cluster.Node(s.placed[last].Node).Index
	}

	e := s.profile.Evaluate(m.asked)
	var verdicts []*decide.NodeVerdict
	for j := range e.Nodes {
		if v := &e.Nodes[j]; e.Err == nil && v.Rejection == nil && v.Node.Index >= after {
			verdicts = append(verdicts, v)
		}
	}

	slices.SortStableFunc(verdicts, func(a, b *decide.NodeVerdict) int { return b.Compare(a) })
	tried := map[likeness]bool{}
	for _, v := range verdicts {
		if key := likenessOf(v.Node); after < 0 && s.plain {
			if tried[key] {
				continue
			}
			tried[key] = true
		}
		position := len(s.placed)
		if s.count(m, decide.Decision{Node: v.Node, Total: v.Total, Feasible: e.Feasible}) != nil {
			continue
		}
		if s.from(i) {
			return true
		}
		s.undo(position)
		if s.ended {
			return false
		}
	}

	return false
}

// likeness is equal for nodes that are alike: empty ones with the same parts. A node that has pods,
// or nominated ones, is like no other.
type likeness struct {
	labels   *cluster.LabelSet
	taints   *cluster.TaintSet
	images   *cluster.ImageSet
	features *cluster.FeatureSet
	size     *cluster.Size
	node     *cluster.Node // set if it has pods or nominated ones
}

func likenessOf(n *cluster.Node) likeness {
	l := likeness{labels: n.Labels, taints: n.Taints, images: n.Images, features: n.Features, size: n.Size}
	if len(n.Pods)+len(n.Nominated) > 0 {
		l.node = n
	}
	return l
}
