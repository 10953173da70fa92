package decide

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/cluster"
)

// TestMain asks for 10,000 sequences unless the command line says otherwise.
func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		checks := "10000"
		if testing.Short() {
			checks = "500"
		}
		if err := f.Value.Set(checks); err != nil {
			panic(err)
		}
	}
	worthwhile = 1 // so that few nodes are asked about together, too
	os.Exit(m.Run())
}

// TestFastWayAgreesWithPlainWay: whatever happened to the cluster before, the node that the fast way chooses is one of the best
// of the plain evaluator, with the same total, out of the same number of feasible nodes.
func TestFastWayAgreesWithPlainWay(t *testing.T) {
	profiles := profiles()
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{c: cluster.New(), nodes: map[string]bool{}}
		m.d = New(m.c, one(t, "profile", profiles...), 1)
		m.d.fewDomains = one(t, "few domains", 0, 2, fewDomains)
		for range rapid.IntRange(1, 6).Draw(t, "nodes") {
			m.setNode(t)
		}
		t.Repeat(map[string]func(*rapid.T){
			"set node":    m.setNode,
			"remove node": m.removeNode,
			"place":       m.place,
			"place again": m.placeAgain,
			"place alike": m.placeAlike,
			"bound":       m.bound,
			"remove pod":  m.removePod,
			"terminate":   m.terminate,
			"nominate":    m.nominate,
			"service":     m.service,
			"namespace":   m.namespace,
			"budget":      m.budget,
			"start":       m.start,
			"retry":       m.retry,
			"storage":     m.storage,
		})
	})
}

// machine is a cluster that things happen to.
type machine struct {
	c     *cluster.Cluster
	d     *Decider
	nodes map[string]bool
	pods  []*v1.Pod
	last  *v1.Pod // what was placed last, to be placed again

	waiting *cluster.Pod // what preempted last
	next    int
}

func one[T any](t *rapid.T, name string, of ...T) T { return rapid.SampledFrom(of).Draw(t, name) }

func (m *machine) setNode(t *rapid.T) {
	name := one(t, "node", "a", "b", "c", "d", "e", "f", "g", "h")
	m.nodes[name] = true
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	if one(t, "has hostname", true, true, true, false) {
		node.Labels[v1.LabelHostname] = one(t, "hostname", name, name, name, "shared")
	}
	if zone := one(t, "zone", "z1", "z2", "z3", "none"); zone != "none" {
		node.Labels[v1.LabelTopologyZone] = zone
	}
	if disk := one(t, "disk", "ssd", "hdd", "none"); disk != "none" {
		node.Labels["disk"] = disk
	}
	for range one(t, "taints", 0, 0, 1, 2) {
		node.Spec.Taints = append(node.Spec.Taints, v1.Taint{
			Key: one(t, "key", "k1", "k2"), Value: one(t, "value", "v1", "v2"),
			Effect: one(t, "effect", v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule, v1.TaintEffectNoExecute),
		})
	}
	node.Spec.Unschedulable = one(t, "cordoned", false, false, false, true)
	node.Status.Allocatable = v1.ResourceList{
		v1.ResourceCPU:    resource.MustParse(one(t, "cpu", "1", "2", "4", "3500m")),
		v1.ResourceMemory: resource.MustParse(one(t, "memory", "1Gi", "2Gi", "3000Mi")),
		v1.ResourcePods:   resource.MustParse(one(t, "pods", "3", "10")),
	}
	if one(t, "gpu", false, true) {
		node.Status.Allocatable["example.com/gpu"] = resource.MustParse("2")
	}
	if one(t, "image", false, true) {
		node.Status.Images = []v1.ContainerImage{{Names: []string{"app:v1"}, SizeBytes: one[int64](t, "size", 100<<20, 900<<20)}}
	}
	m.c.SetNode(node)
}

func (m *machine) removeNode(t *rapid.T) {
	name := one(t, "node", "a", "b", "c", "d", "e", "f", "g", "h")
	m.c.RemoveNode(name)
	delete(m.nodes, name)
}

func (m *machine) newPod(t *rapid.T) *v1.Pod {
	m.next++
	name := fmt.Sprintf("pod-%d", m.next)
	app := one(t, "app", "x", "y")
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: one(t, "namespace", "default", "default", "other"), Name: name, UID: types.UID(name), Labels: map[string]string{"app": app},
		},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: one(t, "image", "app:v1", "app", "other:v2")}}},
	}
	requests := v1.ResourceList{}
	if cpu := one(t, "cpu", "", "100m", "700m", "1"); cpu != "" {
		requests[v1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory := one(t, "memory", "", "64Mi", "700Mi"); memory != "" {
		requests[v1.ResourceMemory] = resource.MustParse(memory)
	}
	if one(t, "wants gpu", false, false, false, true) {
		requests["example.com/gpu"] = resource.MustParse("1")
	}
	pod.Spec.Containers[0].Resources.Requests = requests
	priority := one[int32](t, "priority", 0, 10, 20)
	pod.Spec.Priority = &priority
	if one(t, "port", false, false, false, true) {
		pod.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: one[int32](t, "host port", 80, 81), HostIP: one(t, "ip", "", "10.0.0.1")}}
	}
	if one(t, "tolerates", false, true) {
		pod.Spec.Tolerations = []v1.Toleration{{
			Key: one(t, "key", "k1", "k2", ""), Operator: v1.TolerationOpExists,
			Effect: one(t, "effect", "", v1.TaintEffectNoSchedule, v1.TaintEffectPreferNoSchedule),
		}}
	}
	if one(t, "selects", false, false, false, true) {
		pod.Spec.NodeSelector = map[string]string{one(t, "label", "disk", v1.LabelTopologyZone): one(t, "is", "ssd", "z1")}
	}
	if one(t, "member", false, false, true) { // of a StatefulSet: no two have the same labels
		pod.Labels["pod-name"] = name
	}
	m.volumes(t, pod)
	m.affinity(t, pod)
	for range one(t, "constraints", 0, 0, 0, 1, 2) {
		m.spread(t, pod)
	}
	return pod
}

func (m *machine) affinity(t *rapid.T, pod *v1.Pod) {
	a := &v1.Affinity{}
	if one(t, "node affinity", false, false, true) {
		a.NodeAffinity = &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{
			Weight: one[int32](t, "weight", 1, 30), Preference: nodeTerm(t),
		}}}
		if one(t, "required", false, true) {
			a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{nodeTerm(t)}}
		}
	}
	if one(t, "pod affinity", false, false, true) {
		a.PodAffinity = &v1.PodAffinity{}
		if one(t, "required", false, true) {
			a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []v1.PodAffinityTerm{podTerm(t)}
		} else {
			a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []v1.WeightedPodAffinityTerm{{Weight: 7, PodAffinityTerm: podTerm(t)}}
		}
	}
	if one(t, "pod anti-affinity", false, false, true) {
		a.PodAntiAffinity = &v1.PodAntiAffinity{}
		if one(t, "required", false, true) {
			a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []v1.PodAffinityTerm{podTerm(t)}
		} else {
			a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = []v1.WeightedPodAffinityTerm{{Weight: 11, PodAffinityTerm: podTerm(t)}}
		}
	}
	if a.NodeAffinity != nil || a.PodAffinity != nil || a.PodAntiAffinity != nil {
		pod.Spec.Affinity = a
	}
}

func nodeTerm(t *rapid.T) v1.NodeSelectorTerm {
	if one(t, "by", "label", "label", "hostname", "name") == "name" {
		return v1.NodeSelectorTerm{MatchFields: []v1.NodeSelectorRequirement{{
			Key: "metadata.name", Operator: one(t, "operator", v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn), Values: []string{one(t, "name", "a", "b")},
		}}}
	}
	return v1.NodeSelectorTerm{MatchExpressions: []v1.NodeSelectorRequirement{{
		Key:      one(t, "key", "disk", v1.LabelTopologyZone, v1.LabelHostname),
		Operator: one(t, "operator", v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn),
		Values:   []string{one(t, "value", "ssd", "z1", "z2", "a")},
	}}}
}

func podTerm(t *rapid.T) v1.PodAffinityTerm {
	term := v1.PodAffinityTerm{
		TopologyKey:   one(t, "topology", v1.LabelTopologyZone, v1.LabelHostname, "disk"),
		LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": one(t, "app", "x", "y")}},
	}
	switch one(t, "namespaces", "own", "own", "named", "selected") {
	case "named":
		term.Namespaces = []string{"other"}
	case "selected":
		term.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": one(t, "team", "a", "b")}}
	}
	return term
}

func (m *machine) spread(t *rapid.T, pod *v1.Pod) {
	c := v1.TopologySpreadConstraint{
		MaxSkew: one[int32](t, "skew", 1, 2), TopologyKey: one(t, "topology", v1.LabelTopologyZone, v1.LabelHostname, "disk"),
		WhenUnsatisfiable: one(t, "when", v1.DoNotSchedule, v1.ScheduleAnyway),
		LabelSelector:     &metav1.LabelSelector{MatchLabels: map[string]string{"app": one(t, "app", "x", "y")}},
	}
	if one(t, "taints policy", false, true) {
		honor := v1.NodeInclusionPolicyHonor
		c.NodeTaintsPolicy = &honor
	}
	if one(t, "affinity policy", false, false, true) {
		ignore := v1.NodeInclusionPolicyIgnore
		c.NodeAffinityPolicy = &ignore
	}
	if c.WhenUnsatisfiable == v1.DoNotSchedule && one(t, "min domains", false, true) {
		two := int32(2)
		c.MinDomains = &two
	}
	pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, c)
}

func (m *machine) place(t *rapid.T) { m.decide(t, m.newPod(t)) }

// placeAgain places another pod of the class placed last: the case that rankings are for.
func (m *machine) placeAgain(t *rapid.T) {
	if m.last == nil {
		t.Skip("nothing was placed yet")
	}
	m.next++
	pod := m.last.DeepCopy()
	pod.Name = fmt.Sprintf("pod-%d", m.next)
	pod.UID = types.UID(pod.Name)
	m.decide(t, pod)
}

// placeAlike places a pod that asks for the same and is labelled otherwise: whether it may share the ranking depends on who looks
// at labels.
func (m *machine) placeAlike(t *rapid.T) {
	if m.last == nil {
		t.Skip("nothing was placed yet")
	}
	m.next++
	pod := m.last.DeepCopy()
	pod.Name = fmt.Sprintf("pod-%d", m.next)
	pod.UID = types.UID(pod.Name)
	pod.Labels = map[string]string{"app": one(t, "app", "x", "y"), "pod-name": pod.Name}
	m.decide(t, pod)
}

// decide is what the test is about.
func (m *machine) decide(t *rapid.T, pod *v1.Pod) {
	p := m.c.Pending(pod)
	decision := m.d.Decide(p)
	e := Evaluate(m.c, m.d.profile, p)
	if (decision.Err != nil) != (e.Err != nil) {
		t.Fatalf("errors differ: fast %v, plain %v", decision.Err, e.Err)
	}
	if decision.Feasible != e.Feasible {
		t.Fatalf("%s: %d nodes are feasible the fast way, %d the plain way\n%s", pod.Name, decision.Feasible, e.Feasible, describe(e))
	}
	m.last = pod
	if decision.Node == nil {
		if decision.Err == nil {
			m.preempt(t, p, e)
		}
		return
	}
	v := e.Verdict(decision.Node)
	if best := e.Best(); v.Rejection != nil || v.Total != best[0].Total || decision.Total != v.Total {
		t.Fatalf("%s: the fast way takes %s with %d, but\n%s", pod.Name, decision.Node.Name, decision.Total, describe(e))
	}
	m.pods = append(m.pods, pod)
	m.c.Place(p, decision.Node)
}

// preempt holds what the fast way makes of a pod that fits nowhere against the plain way: the same message, and a node whose
// victims cost the same. Then it may happen.
func (m *machine) preempt(t *rapid.T, p *cluster.Pod, e *Evaluation) {
	if fast, plain := m.d.Diagnose(p).Message(""), e.Message(""); fast != plain {
		t.Fatalf("%s: the fast way says\n%s\nthe plain way\n%s", p.Name, fast, plain)
	}
	fast, plain := m.d.Preempt(p), Preempt(m.c, m.d.profile, p, e)
	if (fast.Node == nil) != (plain.Node == nil) || fast.Message != plain.Message || !slices.Equal(fast.Plugins, plain.Plugins) {
		t.Fatalf("%s: the fast way says %s %q, the plain way %s %q", p.Name, fast.name(), fast.Message, plain.name(), plain.Message)
	}
	if fast.Node == nil {
		return
	}
	same, _ := victimsOn(m.c, m.d.profile, p, fast.Node, newBudgets(m.c, m.d.profile, p))
	if same == nil || fmt.Sprint(namesOf(same.victims)) != fmt.Sprint(namesOf(fast.Victims)) {
		t.Fatalf("%s: on %s the fast way removes %v, the plain way %+v", p.Name, fast.name(), namesOf(fast.Victims), same)
	}
	a, b := same.cost(), (&candidate{plain.Node, plain.Victims, plain.Violations}).cost()
	if a.compare(&b) != 0 {
		t.Fatalf("%s: the fast way picks %s for %+v, the plain way %s for %+v", p.Name, fast.name(), a, plain.name(), b)
	}
	if one(t, "carried out", true, true, false) {
		for _, v := range fast.Victims {
			m.c.RemovePod(v.UID)
			m.pods = slices.DeleteFunc(m.pods, func(pod *v1.Pod) bool { return pod.UID == v.UID })
		}
	}
	m.c.Nominate(p, fast.Node.Name)
	m.waiting = p
}

func (p *Preemption) name() string {
	if p.Node == nil {
		return "nowhere"
	}
	return p.Node.Name
}

// namesOf lists pods by name. Those of equal importance stand in no order.
func namesOf(pods []*cluster.Pod) (names []string) {
	for _, p := range pods {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	return names
}

// retry decides the pod that preempted last once more.
func (m *machine) retry(t *rapid.T) {
	if m.waiting == nil || m.c.Pod(m.waiting.UID) != nil {
		t.Skip("nobody waits")
	}
	pod := m.waiting.Object()
	e := Evaluate(m.c, m.d.profile, m.waiting)
	decision := m.d.Decide(m.waiting)
	if decision.Node == nil {
		if e.Feasible > 0 || decision.Err != nil {
			t.Fatalf("%s fits nowhere the fast way (%v), but\n%s", pod.Name, decision.Err, describe(e))
		}
		m.preempt(t, m.waiting, e)
		return
	}
	if v := e.Verdict(decision.Node); v.Rejection != nil {
		t.Fatalf("%s: the fast way takes %s, but %s says %v", pod.Name, decision.Node.Name, v.Plugin, v.Rejection.Reasons)
	}
	m.c.Place(m.waiting, decision.Node)
	m.pods = append(m.pods, pod)
	m.waiting = nil
}

func (m *machine) budget(t *rapid.T) {
	m.c.Budgets.Set(&policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: one(t, "budget", "b1", "b2")},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": one(t, "app", "x", "y")}}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: one[int32](t, "allowed", 0, 1)},
	})
}

func (m *machine) start(t *rapid.T) {
	if len(m.pods) == 0 {
		t.Skip("there is no pod")
	}
	pod := rapid.SampledFrom(m.pods).Draw(t, "pod").DeepCopy()
	if placed := m.c.Pod(pod.UID); placed.Terminating {
		t.Skip("it is leaving")
	} else {
		pod.Spec.NodeName = placed.NodeName
	}
	pod.Status.StartTime = &metav1.Time{Time: time.Unix(int64(rapid.IntRange(1, 3).Draw(t, "started")), 0)}
	m.c.SetPod(pod)
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

func (m *machine) bound(t *rapid.T) {
	pod := m.newPod(t)
	pod.Spec.NodeName = one(t, "bound to", "a", "b", "c", "nowhere")
	m.pods = append(m.pods, pod)
	m.c.SetPod(pod)
}

func (m *machine) removePod(t *rapid.T) {
	if len(m.pods) == 0 {
		t.Skip("there is no pod")
	}
	i := rapid.IntRange(0, len(m.pods)-1).Draw(t, "pod")
	m.c.RemovePod(m.pods[i].UID)
	m.pods = append(m.pods[:i], m.pods[i+1:]...)
}

func (m *machine) terminate(t *rapid.T) {
	if len(m.pods) == 0 {
		t.Skip("there is no pod")
	}
	pod := rapid.SampledFrom(m.pods).Draw(t, "pod").DeepCopy()
	placed := m.c.Pod(pod.UID)
	now := metav1.Now()
	pod.DeletionTimestamp, pod.Spec.NodeName = &now, placed.NodeName
	m.c.SetPod(pod)
}

func (m *machine) nominate(t *rapid.T) {
	p := m.c.Pending(m.newPod(t))
	m.c.Nominate(p, one(t, "nominated to", "a", "b", "c", "d"))
}

func (m *machine) service(t *rapid.T) {
	name := one(t, "service", "s1", "s2")
	if one(t, "gone", false, false, true) {
		m.c.Services.Delete("default", name)
		return
	}
	m.c.Services.Set(&v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       v1.ServiceSpec{Selector: map[string]string{"app": one(t, "app", "x", "y")}},
	})
}

func (m *machine) namespace(t *rapid.T) {
	m.c.Namespaces.Set(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: one(t, "namespace", "default", "other"), Labels: map[string]string{"team": one(t, "team", "a", "b")},
	}})
}
