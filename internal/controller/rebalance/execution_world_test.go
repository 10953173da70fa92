// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/disruption"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// stage is a cluster in virtual time: an API, a scheduler, workload controllers, kubelets, and the
// process that carries out moves.
type stage struct {
	*virtual.Time
	process *virtual.Process[execute.Event, execute.Action]
	line    virtual.Line[execute.Event, execute.Action]
	watch   *virtual.Watch
	shown   map[string]metav1.Object // the objects that the process has seen

	t        testing.TB
	objects  map[string]metav1.Object
	sorted   []string // keys of the objects; nil if they have changed
	replicas map[types.UID]int
	template map[types.UID]*v1.Pod
	rollouts map[string]int32 // replicas of rollouts (owners with a scale subresource other than Deployments), by name
	made     int

	policy   *rebalance.Policy
	profiles []*plugins.Profile
	options  execute.Options
	next     core // the core of the next process
	journal  execute.Journal
	version  int

	faults  trouble
	steer   string // node on which the scheduler places every pod; "" means the best node
	lines   strings.Builder
	done    []execute.Done
	drained []execute.DrainDone
	rolls   []execute.RollDone
	// evicted maps the UIDs of pods removed by the Eviction API to the times of removal.
	evicted map[types.UID]time.Time
	last    *v1.Pod        // the victim of the last eviction
	lastUp  int            // ready pods of its workload before the eviction
	results map[string]int // number of reports, by result
	wrong   []string
	// statuses makes disruption budgets carry statuses, like live ones; counting is set while a
	// write of these statuses is scheduled.
	statuses, counting bool
	draining           bool // many pods leave at the same time
	keeps              bool // the scheduler reserves the room requested by drains
	rooms              []*keptRoom
	used               map[*execute.Flight]bool // reservations that were used
	// responds is the time that responders take for an EvictionRequest; 0 means that there are no
	// responders. asked holds the pods with an EvictionRequest.
	responds time.Duration
	asked    map[types.UID]bool
	stolen   map[types.UID]bool // workloads disturbed by anything other than a move
	// status and leaves, if set, handle requests of an eviction guard, and pods about to terminate.
	status func(a execute.SetStatus)
	leaves func(p *v1.Pod)

	karpenter karpenter
}

// keptRoom is the reservation for a successor, represented by a copy of its victim on the node.
type keptRoom struct {
	*execute.Flight
	guest *v1.Pod
	until time.Time
}

// core is the state machine of the process: a Core, a Drainer or a Roller.
type core = virtual.Core[execute.Event, execute.Action]

// trouble holds the faults to inject. Functions are called for every request or event.
type trouble struct {
	refuse func(p *v1.Pod) response.Outcome // returns the outcome of an eviction; OK does not refuse it
	lose   func() bool                      // reports whether to lose the response to a completed eviction
	before func(p *v1.Pod)                  // called right before an eviction is carried out
	after  func(p *v1.Pod)                  // called right after an eviction

	stalls     time.Duration // delay of the next eviction, longer than the wait for its response
	overloaded time.Time     // time until which the API server refuses evictions

	unscheduled bool // no scheduler runs

	unscalable string                // reason for refusing all requests to scale
	unstarted  string                // reason why containers do not start
	unready    bool                  // pods run but never become ready
	unreadyIn  string                // the same for pods of this namespace
	request    func() bool           // reports, before each request of a drain, whether to carry it out
	halfway    func()                // called between the two halves of a request to scale
	scaled     func(a execute.Scale) // called after a workload was scaled
	marked     func()                // called after a pod got the lowest deletion cost

	idle   bool // controllers no longer create pods
	stands bool // EvictionRequests stand for ever

	unwritable bool   // the journal cannot be written
	open       string // a node that cannot be closed
	shy        string // a node that is cordoned while a plan is made, and open again half a second later
}

func newStage(t testing.TB, seed uint64, text string, policy *rebalance.Policy) *stage {
	s := &stage{
		Time: virtual.NewTime(begin, seed, 11), t: t, objects: map[string]metav1.Object{}, replicas: map[types.UID]int{},
		template: map[types.UID]*v1.Pod{}, rollouts: map[string]int32{}, policy: policy, profiles: profiles(t, ""), evicted: map[types.UID]time.Time{},
		results: map[string]int{}, stolen: map[types.UID]bool{}, asked: map[types.UID]bool{}, used: map[*execute.Flight]bool{},
	}
	s.process = &virtual.Process[execute.Event, execute.Action]{
		Time: s.Time, Tick: execute.Tick{}, Do: s.carryOut,
		New: func() core {
			s.shown = map[string]metav1.Object{}
			return s.next
		},
	}
	s.process.Add()
	s.watch = virtual.NewWatch(s.process, 20*time.Millisecond, s.list)
	s.line = virtual.Line[execute.Event, execute.Action]{Process: s.process, Least: 10 * time.Millisecond, Most: 10 * time.Millisecond}
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "rollout "); ok {
			s.rollouts[name] = 0
			continue
		}
		for _, o := range object(t, strings.TrimSpace(line)) {
			s.enter(o)
		}
	}
	return s
}

// enter adds an object to the initial world.
func (s *stage) enter(o metav1.Object) {
	s.store(o)
	p, ok := o.(*v1.Pod)
	if !ok {
		return
	}
	if p.Spec.NodeName != "" && p.Status.Phase == v1.PodRunning && len(p.Status.Conditions) == 0 {
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
	}
	if p.Spec.NodeName == "" {
		s.After(100*time.Millisecond, func() { s.schedule(p.UID) })
	}
	owner := metav1.GetControllerOfNoCopy(p)
	if owner == nil {
		return
	}
	s.replicas[owner.UID]++
	if s.template[owner.UID] == nil {
		s.template[owner.UID] = p
	}
	replicas := int32(s.replicas[owner.UID])
	meta := metav1.ObjectMeta{Namespace: p.Namespace, Name: owner.Name, UID: owner.UID}
	if owner.Kind == "ReplicaSet" {
		rs := &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Replicas: &replicas}}
		s.store(rs)
		s.belong(rs)
	}
}

func (s *stage) key(o metav1.Object) string {
	return fmt.Sprintf("%T/%s/%s", o, o.GetNamespace(), o.GetName())
}

func (s *stage) say(format string, args ...any) {
	fmt.Fprintf(&s.lines, "%6.1fs %s\n", s.Now.Sub(begin).Seconds(), fmt.Sprintf(format, args...))
}

func (s *stage) fail(format string, args ...any) {
	s.wrong = append(s.wrong, fmt.Sprintf("at %.1fs: %s", s.Now.Sub(begin).Seconds(), fmt.Sprintf(format, args...)))
}

// start starts the process, which lists everything.
func (s *stage) start() { s.begin(execute.New(s.options)) }

func (s *stage) begin(core core) {
	s.next = core
	s.process.Start()
	if s.draining && !s.keeps {
		s.step(execute.NoReservation{})
	}
	s.step(execute.Listed{})
}

// list shows all objects to the process, and the deletion of objects that no longer exist, like
// movecontroller.
func (s *stage) list() {
	for _, key := range slices.Sorted(maps.Keys(s.shown)) {
		if s.objects[key] == nil {
			s.showGone(s.shown[key])
		}
	}
	for _, key := range s.keys() {
		s.show(s.objects[key])
	}
}

func (s *stage) show(o metav1.Object) {
	s.shown[s.key(o)] = o
	s.step(execute.Seen{Object: o})
}

func (s *stage) showGone(o metav1.Object) {
	delete(s.shown, s.key(o))
	s.step(execute.Gone{Object: o})
}

func (s *stage) step(e execute.Event) { s.process.Step(e) }

// write changes an object; the process observes the change a moment later.
func (s *stage) write(o metav1.Object) {
	s.store(o)
	if _, ok := o.(*v1.Pod); ok {
		s.count()
	}
	s.watch.Show(func() { s.show(o) })
}

func (s *stage) remove(o metav1.Object) {
	delete(s.objects, s.key(o))
	s.sorted = nil
	if p, ok := o.(*v1.Pod); ok {
		s.release(p)
	}
	s.count()
	s.watch.Show(func() { s.showGone(o) })
}

// keys returns the keys of the objects, sorted.
func (s *stage) keys() []string {
	if s.sorted == nil {
		s.sorted = slices.Sorted(maps.Keys(s.objects))
	}
	return s.sorted
}

// store stores an object.
func (s *stage) store(o metav1.Object) {
	key := s.key(o)
	if s.objects[key] == nil {
		s.sorted = nil
	}
	s.objects[key] = o
}

func (s *stage) pods() (list []*v1.Pod) {
	for _, key := range s.keys() {
		if p, ok := s.objects[key].(*v1.Pod); ok {
			list = append(list, p)
		}
	}
	return list
}

func (s *stage) pod(uid types.UID) *v1.Pod {
	for _, o := range s.objects {
		if p, ok := o.(*v1.Pod); ok && p.UID == uid {
			return p
		}
	}
	return nil
}

// terminate begins a pod's termination. Its controller makes the successor: a ReplicaSet
// immediately, a StatefulSet after the pod's removal. Pods of a silent node do not end.
func (s *stage) terminate(p *v1.Pod) {
	if p.DeletionTimestamp != nil {
		return
	}
	if s.leaves != nil {
		s.leaves(p)
	}
	p = p.DeepCopy()
	now := metav1.NewTime(s.Now)
	p.DeletionTimestamp = &now
	s.write(p)
	owner := metav1.GetControllerOfNoCopy(p)
	ordinal := owner != nil && owner.Kind == "StatefulSet"
	if owner != nil && !ordinal {
		s.After(10*time.Millisecond, func() { s.replace(p) })
	}
	grace := 2 * time.Second
	if g := p.Spec.TerminationGracePeriodSeconds; g != nil {
		grace = time.Duration(min(*g, 1e9)) * time.Second
	}
	var end func()
	end = func() {
		n := s.node(p.Spec.NodeName)
		switch {
		case s.pod(p.UID) == nil:
			return
		case n != nil && disruption.HoldsPods(n):
			s.After(time.Second, end)
			return
		}
		s.remove(p)
		if ordinal {
			s.After(10*time.Millisecond, func() { s.replace(p) })
		}
	}
	s.After(grace, end)
}

func (s *stage) replace(gone *v1.Pod) {
	if s.faults.idle {
		return
	}
	owner := metav1.GetControllerOfNoCopy(gone)
	if _, there := s.objects[s.key(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: gone.Namespace, Name: owner.Name}})]; disruption.IsDaemonSet(owner) && !there {
		return
	}
	live := 0
	for _, p := range s.pods() {
		if o := metav1.GetControllerOfNoCopy(p); o != nil && o.UID == owner.UID && p.DeletionTimestamp == nil {
			live++
		}
	}
	if live >= s.replicas[owner.UID] {
		return
	}
	s.made++
	p := s.template[owner.UID].DeepCopy()
	p.Name, p.UID = fmt.Sprintf("%s+%d", owner.Name, s.made), types.UID(fmt.Sprintf("u%d", s.made))
	if owner.Kind == "StatefulSet" {
		p.Name = gone.Name
	}
	p.CreationTimestamp, p.DeletionTimestamp = metav1.NewTime(s.Now.Truncate(time.Second)), nil
	p.Spec.NodeName, p.Status = "", v1.PodStatus{Phase: v1.PodPending}
	if len(p.Spec.Volumes)+len(p.Spec.ResourceClaims) > 0 {
		s.claims().MakeFor(p)
	}
	s.write(p)
	s.After(100*time.Millisecond, func() { s.schedule(p.UID) })
}

// schedule places a pod, or retries later.
func (s *stage) schedule(uid types.UID) {
	p := s.pod(uid)
	if p == nil || p.Spec.NodeName != "" || p.DeletionTimestamp != nil || s.faults.unscheduled {
		return
	}
	c := s.cluster()
	var room *keptRoom
	for _, r := range s.rooms {
		if room == nil && s.succeeds(p, r) {
			room = r
		} else if s.Now.Before(r.until) {
			c.SetPod(r.guest)
		}
	}
	e := decide.NewPlain(c, s.profiles[0]).Evaluate(c.Pending(p))
	if room != nil {
		s.rooms = slices.DeleteFunc(s.rooms, func(r *keptRoom) bool { return r == room })
		s.used[room.Flight] = true
		if at := slices.IndexFunc(e.Nodes, func(v decide.NodeVerdict) bool { return v.Node.Name == room.To && v.Rejection == nil }); at >= 0 {
			s.bind(p, room.To)
			return
		}
	}
	if e.Feasible == 0 {
		s.unschedulable(p, e.Message(""))
		s.After(5*time.Second, func() { s.schedule(uid) })
		return
	}
	if s.steer != "" {
		s.bind(p, s.steer)
		return
	}
	best := e.Best()
	s.bind(p, best[s.Rand.IntN(len(best))].Node.Name)
}

// unschedulable makes the scheduler write why a pod has no node.
func (s *stage) unschedulable(p *v1.Pod, why string) {
	if len(p.Status.Conditions) > 0 && p.Status.Conditions[0].Message == why {
		return
	}
	p = p.DeepCopy()
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable, Message: why}}
	s.write(p)
}

// keep reserves the rooms of successors instead of all others, for longer than any victim of these
// worlds takes to terminate. Used reservations stay used.
func (s *stage) keep(shown execute.Reservations) {
	if shown == nil || !s.keeps {
		return
	}
	before := s.rooms
	s.rooms = nil
	for _, f := range shown {
		if i := slices.IndexFunc(before, func(r *keptRoom) bool { return r.Flight == f }); i >= 0 {
			s.rooms = append(s.rooms, before[i])
		} else if victim := s.pod(f.UID); victim != nil && !s.used[f] {
			guest := victim.DeepCopy()
			guest.Name, guest.UID, guest.Spec.NodeName = guest.Name+"/room", guest.UID+"/room", f.To
			s.rooms = append(s.rooms, &keptRoom{f, guest, s.Now.Add(10 * time.Minute)})
		}
	}
}

// succeeds reports whether a pending pod is the intended user of the kept room.
func (s *stage) succeeds(p *v1.Pod, room *keptRoom) bool {
	owner, victim := metav1.GetControllerOfNoCopy(p), s.pod(room.UID)
	return owner != nil && owner.UID == room.OwnerUID && (owner.Kind != "StatefulSet" || p.Name == room.Name) && (room.Surge != nil || victim == nil || victim.DeletionTimestamp != nil)
}

func (s *stage) cluster() *cluster.Cluster {
	c := cluster.New()
	for _, key := range s.keys() {
		switch o := s.objects[key].(type) {
		case *v1.Node:
			c.SetNode(o)
		case *v1.Pod:
			if o.Spec.NodeName != "" {
				c.SetPod(o)
			}
		default:
			c.Put(o)
		}
	}
	return c
}

func (s *stage) bind(p *v1.Pod, node string) {
	s.reserve(p, node)
	p = p.DeepCopy()
	p.Spec.NodeName = node
	s.write(p)
	s.After(3*time.Second, func() {
		now := s.pod(p.UID)
		if now == nil || now.DeletionTimestamp != nil {
			return
		}
		if s.faults.unstarted != "" {
			s.failsToStart(now, s.faults.unstarted)
			return
		}
		now = now.DeepCopy()
		started := metav1.NewTime(s.Now)
		now.Status.Phase, now.Status.StartTime = v1.PodRunning, &started
		now.Status.Conditions = []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}
		if s.faults.unready || s.faults.unreadyIn == now.Namespace {
			now.Status.Conditions[0].Status = v1.ConditionFalse
		}
		s.write(now)
	})
}

// lose removes a node with its pods.
func (s *stage) lose(node string) {
	for _, p := range s.pods() {
		if p.Spec.NodeName != node {
			continue
		}
		s.remove(p)
		if owner := metav1.GetControllerOfNoCopy(p); owner != nil {
			s.stolen[owner.UID] = true
			s.After(10*time.Millisecond, func() { s.replace(p) })
		}
	}
	for _, o := range s.objects {
		if n, ok := o.(*v1.Node); ok && n.Name == node {
			s.remove(n)
		}
	}
}

// count writes the statuses of disruption budgets, in worlds with statuses.
func (s *stage) count() {
	if !s.statuses || s.counting {
		return
	}
	s.counting = true
	s.After(30*time.Millisecond, func() {
		s.counting = false
		s.countQuotas()
		for _, key := range s.keys() {
			b, ok := s.objects[key].(*policyv1.PodDisruptionBudget)
			if !ok {
				continue
			}
			b = b.DeepCopy()
			expected, healthy := s.covered(b)
			b.Status = policyv1.PodDisruptionBudgetStatus{
				ObservedGeneration: 1, ExpectedPods: int32(expected), CurrentHealthy: int32(healthy),
				DesiredHealthy: int32(expected - b.Spec.MaxUnavailable.IntValue()),
			}
			b.Status.DisruptionsAllowed = max(b.Status.CurrentHealthy-b.Status.DesiredHealthy, 0)
			s.write(b)
		}
	})
}

// countQuotas updates the quotas' counts of pods.
func (s *stage) countQuotas() {
	for _, key := range s.keys() {
		if q, ok := s.objects[key].(*v1.ResourceQuota); ok {
			q = q.DeepCopy()
			q.Status.Used[v1.ResourcePods] = *apiresource.NewQuantity(int64(len(s.pods())), apiresource.DecimalSI)
			s.write(q)
		}
	}
}

// covered counts a budget's pods, and the ready ones among them.
func (s *stage) covered(b *policyv1.PodDisruptionBudget) (expected, healthy int) {
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, p := range s.pods() {
		if selector.Matches(labels.Set(p.Labels)) && p.DeletionTimestamp == nil {
			expected++
			if isReady(p) {
				healthy++
			}
		}
	}
	return expected, healthy
}

// blocked returns the budget that does not allow a pod to leave, or "". An unready pod may leave
// while the budget has the required number of healthy pods.
func (s *stage) blocked(victim *v1.Pod) string {
	for _, o := range s.objects {
		b, ok := o.(*policyv1.PodDisruptionBudget)
		if !ok {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(victim.Labels)) {
			continue
		}
		expected, healthy := s.covered(b)
		required := expected - b.Spec.MaxUnavailable.IntValue()
		if !isReady(victim) && required > 0 && healthy >= required {
			continue
		}
		if healthy-1 < required {
			return b.Name
		}
	}
	return ""
}

func isReady(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue })
}

// evaluate counts the nodes that would take a pod.
func evaluate(s *stage, c *cluster.Cluster, p *v1.Pod) int {
	return decide.NewPlain(c, s.profiles[0]).Evaluate(c.Pending(p)).Feasible
}

// state returns the input of a plan.
func (s *stage) state() *rebalance.State {
	state := &rebalance.State{AsOf: s.Now, World: world.Open(nil)}
	for _, key := range s.keys() {
		state.World.Put(s.objects[key])
	}
	return state
}

// successors returns the pods created since the beginning.
func (s *stage) successors() map[types.UID]bool {
	list := map[types.UID]bool{}
	for _, p := range s.pods() {
		if strings.HasPrefix(string(p.UID), "u") {
			list[p.UID] = true
		}
	}
	return list
}

// busy creates short-lived pods on a node, one after another, faster than plans are made.
func (s *stage) busy(node string, until time.Time, n int) {
	if s.Now.After(until) {
		return
	}
	for _, o := range object(s.t, fmt.Sprintf("pod guest%d owner=none on=%s", n, node)) {
		s.write(o)
		s.After(30*time.Millisecond, func() { s.remove(o) })
	}
	s.After(10*time.Millisecond, func() { s.busy(node, until, n+1) })
}

// hide cordons a node for half a second.
func (s *stage) hide(node string) {
	cordon := func(on bool) {
		n := s.node(node).DeepCopy()
		n.Spec.Unschedulable = on
		s.write(n)
	}
	cordon(true)
	s.After(500*time.Millisecond, func() { cordon(false) })
}

// scale changes the number of pods wanted by a workload.
func (s *stage) scale(p *v1.Pod, n int) {
	owner := metav1.GetControllerOfNoCopy(p)
	s.replicas[owner.UID], s.stolen[owner.UID] = n, true
	for _, o := range s.objects {
		if rs, ok := o.(*appsv1.ReplicaSet); ok && rs.UID == owner.UID {
			rs = rs.DeepCopy()
			replicas := int32(n)
			rs.Spec.Replicas = &replicas
			s.write(rs)
		}
	}
}
