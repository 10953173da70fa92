// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// machine is a cluster with random events, and a decider for its pods.
type machine struct {
	c *cluster.Cluster
	d *Decider
	// lean varies the probability of each feature between sequences, so that a feature that is rare
	// in some sequences is frequent in others, where several pods or nodes have it.
	lean map[string]float64

	placed  []*v1.Pod // API objects of the placed pods, with their nodes
	waiting []*v1.Pod // nominated pods, and pods that fit nowhere
	last    *v1.Pod   // pod decided last, a template for further pods

	workloads []*v1.Pod // one pod per workload
	next      int
}

// features lists the features whose probability varies between sequences.
var features = []string{
	"pod affinity", "node affinity", "spread", "taints", "ports", "volumes", "devices", "never", "gpu", "unique", "huge", "keys", "selects", "odd nodes",
}

func newMachine(t *draw) *machine {
	m := &machine{c: cluster.New(), lean: map[string]float64{}}
	if t.chance(0.5) {
		for _, name := range features {
			m.lean[name] = one(t, 0, 0, 0.1, 0.3, 0.7)
		}
	} else { // only a few features, which therefore often interact
		for range 1 + t.IntN(3) {
			m.lean[one(t, features...)] = 0.6
		}
	}
	m.d = New(m.c, newProfile(t), t.Uint64())
	m.d.limits.FewDomains, m.d.limits.SoftDomains = one(t, 0, 2, defaults.FewDomains), one(t, 1, defaults.SoftDomains)
	m.d.limits.SumsCost, m.d.limits.BaseGroups, m.d.limits.RankingGroups, m.d.limits.Groups = one(t, -1, -1, 0), one(t, 0, 8, defaults.BaseGroups), one(t, 0, 8, 64, defaults.RankingGroups), one(t, 1, 4, defaults.Groups)
	m.d.limits.RankingCost, m.d.limits.FewClasses, m.d.limits.LeafSize = one(t, -1, 0, 2, defaults.RankingCost, 1000), one(t, 0, 0, defaults.FewClasses), one(t, 1, 1, 2, defaults.LeafSize)
	m.d.limits.ManyNodes, m.d.limits.Patience = one(t, 0, 0, defaults.ManyNodes), one(t, 1, 2, 4)
	m.d.limits.ManyTerms, m.d.limits.Reasons = one(t, 0, 2, defaults.ManyTerms), one(t, 0, 2, defaults.Reasons)
	for range 1 + t.IntN(6) {
		m.setNode(t)
	}
	return m
}

func (m *machine) likes(t *draw, feature string) bool { return t.chance(m.lean[feature]) }

type happening struct {
	name   string
	weight int
	happen func(*machine, *draw)
}

var happenings = []happening{
	{"place", 30, (*machine).place},
	{"place again", 15, (*machine).placeAgain},
	{"place alike", 15, (*machine).placeAlike},
	{"place similar", 15, (*machine).placeSimilar},
	{"set node", 8, (*machine).setNode},
	{"change node", 4, (*machine).changeNode},
	{"remove node", 4, (*machine).removeNode},
	{"bound", 8, (*machine).bound},
	{"remove pod", 8, (*machine).removePod},
	{"terminate", 3, (*machine).terminate},
	{"relabel pod", 4, (*machine).relabel},
	{"relabel waiting pod", 3, (*machine).relabelWaiting},
	{"start", 3, (*machine).start},
	{"nominate", 5, (*machine).nominate},
	{"unnominate", 2, (*machine).unnominate},
	{"retry", 8, (*machine).retry},
	{"namespace", 4, (*machine).namespace},
	{"service", 3, (*machine).service},
	{"budget", 3, (*machine).budget},
	{"storage", 4, (*machine).storage},
	{"storage goes", 1, (*machine).storageGoes},
	{"devices", 5, (*machine).devices},
	{"resize", 4, (*machine).resize},
	{"fall behind", 1, (*machine).fallBehind},
	{"forget rankings", 1, (*machine).forgetRankings},
}

func (m *machine) place(t *draw) { m.decide(t, m.newPod(t)) }

// placeAgain decides another pod of the class decided last. Rankings are optimized for this case.
func (m *machine) placeAgain(t *draw) {
	if m.last != nil {
		m.decide(t, m.another(m.last))
	}
}

// placeAlike decides a pod with the spec of an earlier pod and different labels. Whether both pods
// may share a ranking depends on the selectors that read these labels.
func (m *machine) placeAlike(t *draw) {
	model := m.last
	if len(m.placed) > 0 && t.chance(0.5) {
		model = one(t, m.placed...)
	}
	if model == nil {
		return
	}
	pod := m.another(model)
	pod.Labels = m.podLabels(t, pod.Name)
	m.decide(t, pod)
}

// placeSimilar decides a pod with the requests of an earlier pod and different labels and
// selectors.
func (m *machine) placeSimilar(t *draw) {
	if m.last == nil {
		return
	}
	pod := m.another(one(t, append(slices.Clone(m.placed), m.last)...))
	pod.Labels = m.podLabels(t, pod.Name)
	for i := range pod.Spec.TopologySpreadConstraints {
		pod.Spec.TopologySpreadConstraints[i].LabelSelector = labelSelector(m, t)
	}
	if a := pod.Spec.Affinity; a != nil {
		if a.PodAffinity != nil {
			m.meanOthers(t, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
		if a.PodAntiAffinity != nil {
			m.meanOthers(t, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
		}
	}
	m.decide(t, pod)
}

func (m *machine) meanOthers(t *draw, required []v1.PodAffinityTerm, preferred []v1.WeightedPodAffinityTerm) {
	for i := range required {
		required[i].LabelSelector = labelSelector(m, t)
	}
	for i := range preferred {
		preferred[i].PodAffinityTerm.LabelSelector = labelSelector(m, t)
	}
}

// another returns an unplaced copy of the given pod.
func (m *machine) another(model *v1.Pod) *v1.Pod {
	pod := model.DeepCopy()
	m.name(pod)
	if _, unique := pod.Labels["pod"]; unique {
		pod.Labels["pod"] = pod.Name
	}
	pod.Spec.NodeName, pod.Status, pod.DeletionTimestamp = "", v1.PodStatus{}, nil
	return pod
}

func (m *machine) name(pod *v1.Pod) {
	m.next++
	pod.Name = fmt.Sprintf("pod-%d", m.next)
	pod.UID = types.UID(pod.Name)
}

// decide decides a pod by the fast path and by Plain, and compares the results, which is the
// purpose of the test.
func (m *machine) decide(t *draw, pod *v1.Pod) {
	p := m.c.Pending(pod)
	if own := m.c.Nominated(p.UID()); own != nil && t.chance(0.8) {
		p.SetNominated(own.Nominated)
	}
	t.say("  decides %s", summary(pod))
	preferred := ""
	if nodes := m.c.SortedNodes(); len(nodes) > 0 && t.chance(0.3) {
		preferred = one(t, nodes...).Name
	}
	m.d.Prefer = func(*cluster.Pod) string { return preferred }
	if again := m.c.Pending(p.Object()); again.Class != p.Class && p.Nominated == "" {
		t.Fatalf("%s: what the class keeps of it, %+v, is of another class", pod.Name, p.Spec())
	}
	decision := m.d.Decide(p)
	e := NewPlain(m.c, m.d.profile).Evaluate(p)
	if (decision.Err != nil) != (e.Err != nil) {
		t.Fatalf("errors differ: fast %v, plain %v", decision.Err, e.Err)
	}
	m.last = pod
	if n := m.c.Node(p.Nominated); n != nil && e.Err == nil {
		if v := e.Verdict(n); v.Rejection == nil { // the pod goes there, regardless of other nodes
			if decision.Node != n {
				t.Fatalf("%s is nominated to %s, which can take it, but goes to %+v", pod.Name, n.Name, decision.Node)
			}
			m.take(t, pod, p, n)
			return
		}
	}
	// If all feasible nodes are equally good, the fast path may choose the preferred node without
	// examining other nodes.
	alone := decision.Feasible == 1 && decision.Node != nil && decision.Node.Name == preferred && len(e.Best()) == e.Feasible
	if decision.Feasible != e.Feasible && !alone {
		t.Fatalf("%s: %d nodes are feasible the fast way, %d the plain way\n%s", pod.Name, decision.Feasible, e.Feasible, describe(e))
	}
	if decision.Node == nil {
		if decision.Err == nil {
			m.preempt(t, pod, p, e)
		}
		return
	}
	v := e.Verdict(decision.Node)
	if best := e.Best(); v.Rejection != nil || v.Compare(best[0]) != 0 || decision.Total != v.Total {
		t.Fatalf("%s: the fast way takes %s with %d, but\n%s", pod.Name, decision.Node.Name, decision.Total, describe(e))
	}
	var ties []*cluster.Node
	for _, v := range e.Best() {
		ties = append(ties, v.Node)
	}
	if all, err := m.d.Best(p); err != nil || !slices.Equal(all, ties) {
		t.Fatalf("%s: the fast way knows of the ties %v (%v), but\n%s", pod.Name, names(all), err, describe(e))
	}
	for _, v := range e.Best() {
		if v.Node.Name == preferred && decision.Node != v.Node {
			t.Fatalf("%s: the fast way takes %s, though %s is as good and preferred\n%s", pod.Name, decision.Node.Name, preferred, describe(e))
		}
	}
	m.take(t, pod, p, decision.Node)
}

func names(nodes []*cluster.Node) (list []string) {
	for _, n := range nodes {
		list = append(list, n.Name)
	}
	return list
}

// take places a pod on its node.
func (m *machine) take(t *draw, pod *v1.Pod, p *cluster.Pod, n *cluster.Node) {
	t.say("  it goes to %s", n.Name)
	for _, r := range m.d.profile.Reservers {
		if l, learns := r.(plugins.Learner); learns {
			_, _ = r.Reserve(m.c, p, n)
			defer l.Learn(m.c, p) // after the pod is placed
		}
	}
	m.c.Place(p, n)
	pod.Spec.NodeName = n.Name
	m.placed = append(m.placed, pod)
	m.waiting = slices.DeleteFunc(m.waiting, func(o *v1.Pod) bool { return o.UID == pod.UID })
}

// preempt compares the fast path with Plain for a pod that fits nowhere: the messages and the costs
// of the victims must be equal. Afterwards it nominates the pod, and may remove the victims.
func (m *machine) preempt(t *draw, pod *v1.Pod, p *cluster.Pod, e *Evaluation) {
	if fast, plain := m.d.Diagnose(p).Message(""), e.Message(""); fast != plain {
		t.Fatalf("%s: the fast way says\n%s\nthe plain way\n%s", p.Name(), fast, plain)
	}
	if fast, plain := m.d.Diagnose(p), e.Failure(); !slices.Equal(fast.Plugins, plain.Plugins) {
		t.Fatalf("%s: the fast way names %v, the plain way %v", p.Name(), fast.Plugins, plain.Plugins)
	}
	fast, plain := m.d.Preempt(p), NewPlain(m.c, m.d.profile).Preempt(p, e)
	if (fast.Node == nil) != (plain.Node == nil) || fast.Message != plain.Message || !slices.Equal(fast.Plugins, plain.Plugins) {
		t.Fatalf("%s: the fast way says %s %q %v, the plain way %s %q %v",
			p.Name(), fast.name(), fast.Message, fast.Plugins, plain.name(), plain.Message, plain.Plugins)
	}
	if !slices.ContainsFunc(m.waiting, func(o *v1.Pod) bool { return o.UID == pod.UID }) {
		m.waiting = append(m.waiting, pod)
	}
	if fast.Node == nil {
		return
	}
	same, _ := victimsPlainly(m.c, m.d.profile, p, fast.Node, newBudgets(m.c, m.d.profile, p), nil)
	if same == nil || fmt.Sprint(namesOf(same.victims)) != fmt.Sprint(namesOf(fast.Victims)) {
		t.Fatalf("%s: on %s the fast way removes %v, the plain way %+v", p.Name(), fast.name(), namesOf(fast.Victims), same)
	}
	a, b := same.cost(), (&candidate{plain.Node, plain.Victims, plain.Violations}).cost()
	if a.compare(&b) != 0 {
		t.Fatalf("%s: the fast way picks %s for %+v, the plain way %s for %+v", p.Name(), fast.name(), a, plain.name(), b)
	}
	t.say("  it makes room on %s", fast.name())
	if t.chance(0.6) {
		for _, v := range fast.Victims {
			m.forget(v.UID())
		}
	}
	m.c.Nominate(p, fast.Node.Name)
}

func (m *machine) forget(uid types.UID) {
	m.c.RemovePod(uid)
	gone := func(pod *v1.Pod) bool { return pod.UID == uid }
	m.placed, m.waiting = slices.DeleteFunc(m.placed, gone), slices.DeleteFunc(m.waiting, gone)
}

// retry decides a waiting pod again.
func (m *machine) retry(t *draw) {
	if len(m.waiting) > 0 {
		m.decide(t, one(t, m.waiting...))
	}
}

func (p *Preemption) name() string {
	if p.Node == nil {
		return "nowhere"
	}
	return p.Node.Name
}

// namesOf lists pods by name, since pods of equal importance have no defined order.
func namesOf(pods []*cluster.Pod) (names []string) {
	for _, p := range pods {
		names = append(names, p.Name())
	}
	slices.Sort(names)
	return names
}

func describe(e *Evaluation) (text string) {
	for i := range e.Nodes {
		v := &e.Nodes[i]
		if v.Rejection != nil {
			text += fmt.Sprintf("%s: %s rejects %v\n", v.Node.Name, v.Plugin, v.Rejection.Reasons)
		} else {
			text += fmt.Sprintf("%s: %d = %v\n", v.Node.Name, v.Total, v.Scores)
		}
	}
	return text
}

func (m *machine) removeNode(t *draw) {
	name := one(t, nodeNames...)
	t.say("  %s", name)
	m.c.RemoveNode(name)
}

func (m *machine) bound(t *draw) {
	pod := m.newPod(t)
	pod.Spec.NodeName = one(t, append([]string{"nowhere"}, nodeNames...)...)
	t.say("  %s", summary(pod))
	m.placed = append(m.placed, pod)
	m.c.SetPod(pod)
}

func (m *machine) removePod(t *draw) {
	if all := slices.Concat(m.placed, m.waiting); len(all) > 0 {
		pod := one(t, all...)
		t.say("  %s", pod.Name)
		m.forget(pod.UID)
	}
}

// change updates a placed pod.
func (m *machine) change(t *draw, change func(pod *v1.Pod)) {
	if len(m.placed) == 0 {
		return
	}
	i := t.IntN(len(m.placed))
	pod := m.placed[i].DeepCopy()
	change(pod)
	t.say("  %s", summary(pod))
	m.placed[i] = pod
	m.c.SetPod(pod)
}

func (m *machine) terminate(t *draw) {
	m.change(t, func(pod *v1.Pod) {
		now := metav1.Unix(1000, 0)
		pod.DeletionTimestamp = &now
		if t.chance(0.3) {
			pod.Status.Conditions = []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler}}
		}
	})
}

func (m *machine) relabel(t *draw) {
	m.change(t, func(pod *v1.Pod) { pod.Labels = m.podLabels(t, pod.Name) })
}

func (m *machine) start(t *draw) {
	m.change(t, func(pod *v1.Pod) { pod.Status.StartTime = &metav1.Time{Time: time.Unix(int64(1+t.IntN(3)), 0)} })
}

func (m *machine) relabelWaiting(t *draw) {
	if len(m.waiting) == 0 {
		return
	}
	i := t.IntN(len(m.waiting))
	pod := m.waiting[i].DeepCopy()
	pod.Labels = m.podLabels(t, pod.Name)
	t.say("  %s", summary(pod))
	m.waiting[i] = pod
	m.c.Renew(m.c.Pending(pod))
}

// nominate nominates a waiting or new pod to a node, which need not exist.
func (m *machine) nominate(t *draw) {
	var pod *v1.Pod
	if len(m.waiting) > 0 && t.chance(0.5) {
		pod = one(t, m.waiting...)
	} else {
		pod = m.newPod(t)
		m.waiting = append(m.waiting, pod)
	}
	node := one(t, nodeNames...)
	t.say("  %s to %s", summary(pod), node)
	m.c.Nominate(m.c.Pending(pod), node)
}

func (m *machine) unnominate(t *draw) {
	if len(m.waiting) > 0 {
		m.c.Unnominate(one(t, m.waiting...).UID)
	}
}

func (m *machine) budget(t *draw) {
	namespace, name := one(t, namespaceNames...), one(t, "b1", "b2")
	before, there := m.c.Budgets.Get(namespace, name)
	if there && t.chance(0.1) {
		m.c.Budgets.Delete(namespace, name)
		return
	}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: labelSelector(m, t)},
	}
	if there && t.chance(0.7) { // only the status changes
		budget = before.DeepCopy()
	}
	budget.Status.DisruptionsAllowed = one[int32](t, 0, 1, 2, 3, -1)
	if len(m.placed) > 0 && t.chance(0.3) {
		budget.Status.DisruptedPods = map[string]metav1.Time{one(t, m.placed...).Name: {}}
	}
	m.c.Budgets.Set(budget)
}

func (m *machine) service(t *draw) {
	namespace, name := one(t, namespaceNames...), one(t, "s1", "s2")
	if t.chance(0.25) {
		m.c.Services.Delete(namespace, name)
		return
	}
	m.c.Services.Set(&v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1.ServiceSpec{Selector: map[string]string{"app": one(t, apps...)}},
	})
}

func (m *machine) namespace(t *draw) {
	name := one(t, namespaceNames...)
	if t.chance(0.2) {
		m.c.Namespaces.Delete("", name)
		return
	}
	labels := map[string]string{}
	for _, key := range []string{"team", "env"} {
		if t.chance(0.5) {
			labels[key] = one(t, "a", "b")
		}
	}
	t.say("  %s %v", name, labels)
	m.c.Namespaces.Set(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
}

// fallBehind makes all readers of the log rescan the cluster.
func (m *machine) fallBehind(*draw) {
	m.d.ix.synced = -1
	for _, r := range m.d.cache.rankings {
		r.seen = -1
	}
	for _, b := range m.d.cache.bases {
		b.seen = -1
	}
}

func (m *machine) forgetRankings(t *draw) {
	for _, key := range sortedKeys(m.d.cache.rankings) {
		if t.chance(0.5) {
			m.d.cache.dropRanking(m.d.cache.rankings[key])
		}
	}
}

// sortedKeys lists the keys of the rankings by last use, so that draws are reproducible.
func sortedKeys(rankings map[rankingKey]*ranking) []rankingKey {
	var keys []rankingKey
	for key := range rankings {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b rankingKey) int { return int(rankings[a].used) - int(rankings[b].used) })
	return keys
}

// sizes returns the numbers of looks and of their labels and terms, and the numbers of further
// looks with the same label or terms.
func (p *placed) sizes() (n [5]int) {
	n = [5]int{p.looks.Len(), p.byLabel.first.Len(), p.byTerms.first.Len()}
	for i, index := range []*lookIndex{&p.byLabel, &p.byTerms} {
		for _, also := range index.also {
			n[3+i] += len(also)
		}
	}
	return n
}

// recount compares the decider's data about pods and terms with the cluster.
func (m *machine) recount(t *draw) {
	m.d.ix.followLog()
	m.d.checkBases(t)
	m.d.cache.weighUsed()
	weight := 0
	for _, r := range m.d.cache.rankings {
		weight += m.d.cache.bytesOf(r)
	}
	if weight != m.d.cache.weight {
		t.Fatalf("the rankings weigh %d bytes, not %d", weight, m.d.cache.weight)
	}
	known, counted := &m.d.ix.placed, placed{named: m.d.ix.placed.named}
	terms := map[[2]uint64]int{}
	for _, n := range m.c.Nodes {
		if n == nil {
			continue
		}
		for _, p := range n.Pods {
			counted.countPod(p.Class, n.Index, p.Terminating, 1)
		}
		for _, p := range slices.Concat(n.Pods, n.Nominated) {
			if p.Class.HasAffinity() {
				terms[p.Class.Affinities]++
			}
		}
	}
	for pods := range counted.looks.All {
		is := known.at(pods.look)
		if is == nil || !maps.Equal(maps.Collect(is.nodes.all), maps.Collect(pods.nodes.all)) {
			t.Fatalf("of class %v %+v are known, want %+v", pods.class.Labels, is, pods)
		}
	}
	if is, want := known.sizes(), counted.sizes(); is != want {
		t.Fatalf("%v looks, labels and terms are known, want %v", is, want)
	}
	for users := range m.d.ix.terms.known.All {
		if want := terms[users.class.Affinities]; int(users.pods) != want {
			t.Fatalf("%d pods have the terms of %v, want %d", users.pods, users.class.Labels, want)
		}
	}
}
