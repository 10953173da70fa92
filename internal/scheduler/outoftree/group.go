// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// groupSession is one attempt to schedule a pod group, as seen by its plugins. It belongs to the
// deciding goroutine. Each time a member is decided, its plugins start with new state, and with a
// snapshot that includes the members placed before it. The state of the last decision is kept until
// the binding.
//
// Plugin state has three scopes: the group (state), the topology domain being tried (placement),
// and the member (its session). The state of a member points to the other two states.
type groupSession struct {
	attempt *cycle.GroupAttempt // never modified here
	state   *groupState         // lives as long as the attempt
	// placement is the state of the current placement. placements holds the state of the last
	// placement in each domain.
	placement    *groupState
	placements   map[string]*groupState
	members      map[types.UID]*session // by pod; only members with out-of-tree plugins
	inPostFilter bool                   // a plugin at PodGroupPostFilter is running
	mutations    *supposition           // changes of a plugin at PodGroupPostFilter, until it returns; nil: none have begun
}

// groupState is the data kept by plugins about a pod group, or about one placement of it.
type groupState struct {
	State
	group *groupState // the group's state; set only for a placement
}

var (
	_ fwk.PodGroupCycleState  = &groupState{}
	_ fwk.PlacementCycleState = &groupState{}
)

// GetPodGroupSchedulingCycle implements fwk.PlacementCycleState.
func (s *groupState) GetPodGroupSchedulingCycle() fwk.PodGroupCycleState { return s.group }

// GetParentPlacementCycleState implements fwk.PodGroupCycleState. It returns nil, since plugins see
// no nested groups.
func (s *groupState) GetParentPlacementCycleState() fwk.PlacementCycleState { return nil }

var _ cycle.GroupBeginner = keeper{}

// BeginGroup creates the group's session, which contains the members' sessions. Begin has been
// called for every member.
func (k keeper) BeginGroup(a *cycle.GroupAttempt) {
	g := &groupSession{attempt: a, state: &groupState{}, placements: map[string]*groupState{}, members: map[types.UID]*session{}}
	for _, m := range a.Members {
		if y, ok := m.State.(*session); ok {
			y.state.group = g.state
			g.members[m.Pod.UID] = y
		}
	}
	k.f.group = g
}

// BeginPlacement begins the state of a placement. The domain "" means that the placement is not
// restricted to a topology domain. A domain tried again starts with a new state.
func (k keeper) BeginPlacement(_ *cycle.GroupAttempt, domain string) {
	if g := k.f.group; g != nil {
		g.placement = &groupState{group: g.state}
		g.placements[domain] = g.placement
		// Make memberSession restart the next member with this placement's state, even if that
		// member was decided last.
		k.f.current = nil
	}
}

// EndGroup detaches the members: to plugins at Reserve, Permit and later, each is a separate pod.
func (k keeper) EndGroup(*cycle.GroupAttempt) {
	if g := k.f.group; g != nil {
		for _, y := range g.members {
			y.state.group, y.state.placement = nil, nil
		}
	}
	k.f.group = nil
}

// restart resets a member's session for another decision. The session object is kept, since the
// member's attempt points to it. The plugins' state and the verdicts on nodes are dropped.
func (g *groupSession) restart(y *session) {
	fresh := newSession(y.f, y.ctx, y.pod, y.waiting)
	y.c, y.snapshot, y.state = nil, nil, fresh.state
	y.narrowed, y.verdicts, y.supposed = fresh.narrowed, fresh.verdicts, fresh.supposed
	y.state.group, y.state.placement = g.state, g.placement
	if made := y.f.set.options.PodsToActivate; made != nil {
		y.state.Write(podsToActivate, made())
	}
}

var (
	_ cycle.GroupPostFilterer = &extension{}
	_ cycle.PlacementScorer   = &extension{}
)

// RunGroupPostFilter implements cycle.GroupPostFilterer. The plugin runs in the session of the
// first member, may call schedule to try the whole group again, and may change the snapshot before
// that (see mutableLister). Its changes are undone when it returns, whether or not it called
// EndMutations.
func (x *extension) RunGroupPostFilter(a *cycle.GroupAttempt) cycle.GroupPostFilterResult {
	g := x.f.group
	y := x.sessionOf(a.Members[0])
	y.takeSnapshot(a.Cluster)
	x.f.set.store.takeSnapshot(a.Cluster) // replaces a snapshot with members assumed while others were decided
	schedule := func(context.Context) (*fwk.PodGroupAssignments, *fwk.Status) {
		p := a.Schedule()
		switch {
		case p.Err != nil:
			return nil, fwk.AsStatus(p.Err)
		case p.Message != "":
			return &fwk.PodGroupAssignments{}, fwk.NewStatus(fwk.Unschedulable, p.Message)
		}
		return g.assignmentsOf(&p), nil
	}

	var result *fwk.PodGroupPostFilterResult
	var status *fwk.Status
	// Set this only now, because the snapshots above must not include the plugin's changes.
	g.inPostFilter = true
	defer func() {
		g.inPostFilter = false
		g.endMutations()
	}()
	y.whileOpen(func() {
		result, status = x.plugin.(fwk.PodGroupPostFilterPlugin).PodGroupPostFilter(y.ctx, g.state, infoOf(a), schedule)
	})

	answer := cycle.GroupPostFilterResult{Message: status.Message(), Helped: status.IsSuccess()}
	switch {
	case status.IsSuccess():
		answer.Nodes = nominationsOf(a, result)
	case status.Code() == fwk.UnschedulableAndUnresolvable:
		answer.Final = true
	case !status.IsRejected():
		answer.Err = statusError(status, "PodGroupPostFilter")
	}
	return answer
}

// nominationsOf returns the nodes nominated by a plugin, by member pod. It skips results in other
// modes than override. The core ignores names of unknown nodes.
func nominationsOf(a *cycle.GroupAttempt, result *fwk.PodGroupPostFilterResult) map[types.UID]string {
	nodes := map[types.UID]string{}
	if result == nil {
		return nodes
	}
	for _, m := range a.Members {
		info := result.NominatingInfos[types.NamespacedName{Namespace: m.Pod.Namespace, Name: m.Pod.Name}]
		if info != nil && info.Mode() == fwk.ModeOverride {
			nodes[m.Pod.UID] = info.NominatedNodeName
		}
	}
	return nodes
}

// ScorePlacements implements cycle.PlacementScorer. It returns one score per placement, in their
// order, from 0 to 100 after the plugin has normalized them. An error, or one score out of range,
// fails the whole call.
func (x *extension) ScorePlacements(a *cycle.GroupAttempt, placements []cycle.GroupPlacement) ([]int64, error) {
	g := x.f.group
	plugin := x.plugin.(fwk.PlacementScorePlugin)
	scored := make([]fwk.PlacementScore, len(placements))
	for i := range placements {
		of := g.assignmentsOf(&placements[i])
		score, status := plugin.ScorePlacement(x.f.set.ctx, g.placements[placements[i].Domain], infoOf(a), of)
		if !status.IsSuccess() {
			return nil, statusError(status, "PlacementScore")
		}
		scored[i] = fwk.PlacementScore{Placement: of.Placement, Score: score}
	}

	if extensions := plugin.PlacementScoreExtensions(); extensions != nil {
		if status := extensions.NormalizePlacementScore(x.f.set.ctx, g.state, infoOf(a), scored); !status.IsSuccess() {
			return nil, statusError(status, "NormalizePlacementScore")
		}
	}
	scores := make([]int64, len(scored))
	for i := range scored {
		if err := checkScore(x.name, scored[i].Score); err != nil {
			return nil, err
		}
		scores[i] = scored[i].Score
	}
	return scores, nil
}

// assignmentsOf returns the members' proposed nodes. The field Nodes of the result holds all nodes
// of the placement's domain; it is empty if no member has a snapshot.
func (g *groupSession) assignmentsOf(p *cycle.GroupPlacement) *fwk.PodGroupAssignments {
	all := &fwk.PodGroupAssignments{Placement: &fwk.Placement{Name: p.Domain}}
	for _, place := range p.Places {
		y := g.members[place.Pod.UID]
		all.ProposedAssignments = append(all.ProposedAssignments, assignment{y: y, node: place.Node.Name})
		if all.Nodes == nil && y.snapshot != nil {
			all.Nodes = y.nodeInfos(p.Nodes)
		}
	}
	return all
}

// assignment is a member with its proposed node.
type assignment struct {
	y    *session
	node string
}

var _ fwk.ProposedAssignment = assignment{}

// GetPod and its siblings implement fwk.ProposedAssignment.
func (a assignment) GetPod() *v1.Pod               { return a.y.pod }
func (a assignment) GetPodInfo() fwk.PodInfo       { return newPodInfo(a.y.pod) }
func (a assignment) GetNodeName() string           { return a.node }
func (a assignment) GetCycleState() fwk.CycleState { return a.y.state }

// groupInfo is the group being decided.
type groupInfo struct{ a *cycle.GroupAttempt }

var _ fwk.PodGroupInfo = groupInfo{}

// infoOf returns the group in the form for plugins. All members of the attempt count as
// unscheduled; members placed by earlier attempts are not included.
func infoOf(a *cycle.GroupAttempt) fwk.PodGroupInfo { return groupInfo{a} }

// GetUnscheduledPods and its siblings implement fwk.PodGroupInfo. Plugins see one PodGroup at a
// time, without composite groups and children.
func (i groupInfo) GetUnscheduledPods() []*v1.Pod {
	return rules.Mapped(i.a.Members, func(m *cycle.Attempt) *v1.Pod { return m.Pod })
}
func (i groupInfo) GetName() string                                             { return i.a.Group.Name }
func (i groupInfo) GetNamespace() string                                        { return i.a.Group.Namespace }
func (i groupInfo) GetType() fwk.EntityKeyType                                  { return fwk.PodGroupKeyType }
func (i groupInfo) GetPodGroup() *schedulingv1beta1.PodGroup                    { return i.a.Group }
func (i groupInfo) GetCompositePodGroup() *schedulingv1alpha3.CompositePodGroup { return nil }
func (i groupInfo) GetChildren() []fwk.PodGroupInfo                             { return nil }
func (i groupInfo) GetKey() string {
	return fwk.PodGroupKey(i.a.Group.Namespace, i.a.Group.Name).String()
}

// endMutations undoes the changes of a plugin. Without changes it does nothing.
func (g *groupSession) endMutations() {
	if g.mutations != nil {
		g.mutations.undoAll()
		g.mutations = nil
	}
}

// mutableLister shows the cluster with the changes made by a plugin at PodGroupPostFilter. The
// protocol is upstream's: StartMutations, then RemovePod and AddPod, a look at the nodes or a call
// of schedule, then EndMutations. Berth makes the changes in the live cluster, which no other
// goroutine reads meanwhile, and relies on endMutations to undo them.
type mutableLister struct {
	sharedLister
	f *framework
}

var _ fwk.MutableSnapshotSharedLister = mutableLister{}

// session returns the attempt that receives the changes, or errNotInPostFilter if no plugin at
// PodGroupPostFilter is running.
func (l mutableLister) session() (*groupSession, error) {
	if g := l.f.group; g != nil && g.inPostFilter {
		return g, nil
	}
	return nil, errNotInPostFilter
}

// NodeInfos lists the nodes in their current state, including the changes.
func (l mutableLister) NodeInfos() fwk.NodeInfoLister {
	if g, err := l.session(); err == nil && g.mutations != nil {
		return l.f.set.store.takeSnapshot(g.attempt.Cluster).NodeInfos()
	}
	return l.sharedLister.NodeInfos()
}

// StartMutations and EndMutations implement fwk.MutableSnapshotSharedLister. They do not nest.
func (l mutableLister) StartMutations() error {
	g, err := l.session()
	if err != nil {
		return err
	}
	if g.mutations != nil {
		return fmt.Errorf("changes of the snapshot have begun already")
	}
	g.mutations = &supposition{c: g.attempt.Cluster}
	return nil
}

// EndMutations undoes the changes, if there are any.
func (l mutableLister) EndMutations() error {
	g, err := l.session()
	if err == nil {
		g.endMutations()
	}
	return err
}

// errNotInPostFilter is returned to a plugin changing the snapshot at the wrong time.
var errNotInPostFilter = errors.New("the snapshot can be changed from PodGroupPostFilter, while that runs, and at no other time")

// RemovePod implements fwk.MutableSnapshotSharedLister. It removes a placed pod, or a member
// counted on the node for the attempt, from the node until endMutations. The pod is found by its
// UID: a pod recreated under the same name is a different one.
func (l mutableLister) RemovePod(_ klog.Logger, pod *v1.Pod, node string) error {
	s, n, err := l.mutating(node)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(n.Pods, func(p *cluster.Pod) bool { return p.UID() == pod.UID })
	if i < 0 {
		return fmt.Errorf("pod %s/%s is not on node %q", pod.Namespace, pod.Name, node)
	}
	s.removePod(n.Pods[i])
	return nil
}

// AddPod implements fwk.MutableSnapshotSharedLister. The pod counts on the node until endMutations,
// whether or not it fits there; the filters check that.
func (l mutableLister) AddPod(info fwk.PodInfo, node string) error {
	s, n, err := l.mutating(node)
	if err == nil {
		s.addGuest(info.GetPod(), n)
	}
	return err
}

// mutating returns the changes begun by StartMutations, and the node to change.
func (l mutableLister) mutating(node string) (*supposition, *cluster.Node, error) {
	g, err := l.session()
	switch {
	case err != nil:
		return nil, nil, err
	case g.mutations == nil:
		return nil, nil, errors.New("the snapshot is changed without StartMutations")
	}
	n := g.attempt.Cluster.Node(node)
	if n == nil {
		return nil, nil, fmt.Errorf("nodeinfo not found for node name %q", node)
	}
	return g.mutations, n, nil
}

// MutableSnapshotSharedLister implements fwk.Handle. It can be called at any time; the lister's
// methods check whether changes are possible.
func (h *handle) MutableSnapshotSharedLister() fwk.MutableSnapshotSharedLister {
	return mutableLister{sharedLister{h.f.set.store}, h.f}
}

// RunReservePluginsReserve calls the out-of-tree plugins at Reserve, hypothetically. Only plugins
// at PodGroupPostFilter may call it. It does not make Berth's own reservations of volumes and
// devices. Like upstream, the first failure ends the calls, and the caller must unreserve.
func (h *handle) RunReservePluginsReserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) *fwk.Status {
	if g := h.f.group; g == nil || !g.inPostFilter {
		return fwk.AsStatus(errNotInPostFilter)
	}
	for _, plugin := range pluginsAt[fwk.ReservePlugin](h.f, plugins.Reserve) {
		if status := plugin.Reserve(ctx, state, pod, node); !status.IsSuccess() {
			return status.WithPlugin(plugin.Name())
		}
	}
	return nil
}

// RunReservePluginsUnreserve calls Unreserve of the same plugins, in the reverse order. At any
// other time it does nothing, since it cannot return an error.
func (h *handle) RunReservePluginsUnreserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node string) {
	if g := h.f.group; g == nil || !g.inPostFilter {
		return
	}
	for _, plugin := range slices.Backward(pluginsAt[fwk.ReservePlugin](h.f, plugins.Reserve)) {
		plugin.Unreserve(ctx, state, pod, node)
	}
}
