package cycle

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

var churnEvents = flag.Int("churn", 40_000, "events of TestChurnLeavesNothingBehind; ten million are a long life")

// churn is a cluster in virtual time in which everything comes and goes, and every name, label and
// size is new.
type churn struct {
	rng  *rand.Rand
	now  time.Time
	core *Core
	made int

	pods       map[types.UID]*v1.Pod
	uids       []types.UID // of pods
	nodes      map[string]*v1.Node
	namespaces map[string]*v1.Namespace
	claims     map[string]*v1.PersistentVolumeClaim
	services   map[string]*v1.Service
}

var churnBegins = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	churnNodes, churnPods = 200, 2000
	churnNamespaces       = 20
)

func newChurn(seed uint64) *churn {
	c := &churn{
		rng: rand.New(rand.NewPCG(seed, 5)), now: churnBegins, pods: map[types.UID]*v1.Pod{}, nodes: map[string]*v1.Node{},
		namespaces: map[string]*v1.Namespace{}, claims: map[string]*v1.PersistentVolumeClaim{}, services: map[string]*v1.Service{},
	}
	c.begin()
	return c
}

// begin starts a core that is shown what there is.
func (c *churn) begin() {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Seed: 1})
	if err != nil {
		panic(err)
	}
	c.core = core
	c.tell(Follows{Kinds: []Kind{Nodes, Pods, Namespaces, Claims, Services}})
	c.tell(Led{})
	for _, kind := range []Kind{Nodes, Namespaces, Claims, Services, Pods} {
		c.tell(Listing{kind})
		switch kind {
		case Nodes:
			listed(c, kind, c.nodes)
		case Namespaces:
			listed(c, kind, c.namespaces)
		case Claims:
			listed(c, kind, c.claims)
		case Services:
			listed(c, kind, c.services)
		case Pods:
			listed(c, kind, c.pods)
		}
		c.tell(Listed{kind})
	}
}

func listed[K ~string, V metav1.Object](c *churn, kind Kind, objects map[K]V) {
	for _, key := range slices.Sorted(maps.Keys(objects)) {
		c.see(kind, objects[key])
	}
}

// see shows the core an object of its own, so that what it keeps is no one else's.
func (c *churn) see(kind Kind, object metav1.Object) {
	c.tell(Seen{kind, object.(apiruntime.Object).DeepCopyObject().(metav1.Object)})
}

// tell hands the core an event and carries out at once what it wants.
func (c *churn) tell(e Event) {
	for _, action := range c.core.Step(c.now, e) {
		switch a := action.(type) {
		case Bind:
			o := Outcome{}
			if p := c.pods[a.Attempt.Pod.UID]; p == nil {
				o.Fault = &Fault{Message: "gone"}
			} else {
				bound := p.DeepCopy()
				bound.Spec.NodeName = a.Attempt.Node
				c.pods[p.UID] = bound
				defer c.see(Pods, bound)
			}
			c.tell(Answered{a.Ticket, o})
		case Remove:
			c.tell(Answered{a.Ticket, Outcome{}})
			c.removePod(a.Victim.UID)
		case Preflight:
			c.tell(Answered{a.Ticket, Outcome{Work: make([]PreBindWork, len(a.By.PreBind))}})
		case PreBind:
			c.tell(Answered{a.Ticket, Outcome{}})
		case WriteStatus:
			if a.Ticket != 0 {
				c.tell(Answered{a.Ticket, Outcome{}})
			}
		}
	}
}

// settle lets time pass until nobody can be decided.
func (c *churn) settle() {
	for range 50 {
		if wake := c.core.Wake(c.now); wake.After(c.now) {
			return
		}
		c.tell(Tick{})
	}
}

func (c *churn) fresh(what string) string {
	c.made++
	return fmt.Sprintf("%s-%d", what, c.made)
}

func (c *churn) something() {
	c.now = c.now.Add(time.Duration(c.rng.IntN(20)) * time.Millisecond)
	switch n := c.rng.IntN(100); {
	case n < 40 && len(c.uids) < churnPods, len(c.uids) < churnPods/2:
		c.addPod()
	case n < 80 && len(c.uids) > 0:
		c.removePod(c.uids[c.rng.IntN(len(c.uids))])
	case n < 88: // a node gets a new label, or is another machine under its name
		name := fmt.Sprintf("n%d", c.rng.IntN(churnNodes))
		if old := c.nodes[name]; old != nil && c.rng.IntN(4) == 0 {
			delete(c.nodes, name)
			c.tell(Gone{Nodes, old})
		}
		node := churnNode(name, fmt.Sprint(8+c.rng.IntN(3)))
		node.Labels[v1.LabelTopologyZone] = fmt.Sprintf("z%d", c.rng.IntN(3))
		node.Labels[c.fresh("label")] = c.fresh("value")
		node.Labels["rack"] = c.fresh("rack")
		node.Status.Allocatable[v1.ResourceMemory] = *resource.NewQuantity(64<<30+int64(c.made), resource.BinarySI)
		c.nodes[name] = node
		c.see(Nodes, node)
	case n < 92:
		name := fmt.Sprintf("ns%d", c.rng.IntN(churnNamespaces))
		ns := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": c.fresh("team")}}}
		c.namespaces[name] = ns
		c.see(Namespaces, ns)
	case n < 96:
		name := fmt.Sprintf("s%d", c.rng.IntN(50))
		s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns1", Name: name}, Spec: v1.ServiceSpec{Selector: map[string]string{"app": c.fresh("app")}}}
		c.services[name] = s
		c.see(Services, s)
	default:
		name := fmt.Sprintf("c%d", c.rng.IntN(50))
		if old := c.claims[name]; old != nil {
			delete(c.claims, name)
			c.tell(Gone{Claims, old})
			break
		}
		claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns1", Name: name, UID: types.UID(c.fresh("claim"))}}
		c.claims[name] = claim
		c.see(Claims, claim)
	}
	c.settle()
}

// addPod makes a pod that is like no other: by its labels, what it means by its terms, and what it
// requests.
func (c *churn) addPod() {
	name := c.fresh("p")
	pod := churnPod(name, fmt.Sprintf("%dm", 100+c.made%997))
	pod.Namespace = fmt.Sprintf("ns%d", c.rng.IntN(churnNamespaces))
	pod.Labels = map[string]string{"app": c.fresh("app"), "pod": name, "tier": fmt.Sprint(c.rng.IntN(3))}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": pod.Labels["app"]}}
	term := v1.PodAffinityTerm{TopologyKey: []string{v1.LabelHostname, v1.LabelTopologyZone, "rack"}[c.rng.IntN(3)], LabelSelector: selector}
	switch c.rng.IntN(8) {
	case 0:
		pod.Spec.Affinity = &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{term}}}
	case 1:
		pod.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{{Weight: 1 + c.rng.Int32N(100), PodAffinityTerm: term}}}}
	case 2:
		pod.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{
			{MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule, LabelSelector: selector},
			{MaxSkew: 1, TopologyKey: v1.LabelHostname, WhenUnsatisfiable: v1.ScheduleAnyway, LabelSelector: selector},
		}
	case 3:
		pod.Spec.Tolerations = []v1.Toleration{{Key: c.fresh("key"), Operator: v1.TolerationOpExists}}
	case 4:
		pod.Spec.NodeSelector = map[string]string{"nobody": c.fresh("value")} // it waits
	}
	c.pods[pod.UID] = pod
	c.uids = append(c.uids, pod.UID)
	c.see(Pods, pod)
}

func (c *churn) removePod(uid types.UID) {
	pod := c.pods[uid]
	if pod == nil {
		return
	}
	delete(c.pods, uid)
	for i := range c.uids {
		if c.uids[i] == uid {
			c.uids[i] = c.uids[len(c.uids)-1]
			c.uids = c.uids[:len(c.uids)-1]
			break
		}
	}
	c.tell(Gone{Pods, pod})
}

// decide has some pods decided that come and go, and returns how long one took.
func (c *churn) decide(pods int) time.Duration {
	began := time.Now()
	for range pods {
		c.addPod()
		c.settle()
		c.removePod(c.uids[len(c.uids)-1])
	}
	return time.Since(began) / time.Duration(pods)
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// size is what the core takes: what the heap loses when it goes.
func (c *churn) size() int64 {
	with := heap()
	c.core = nil
	return with - heap()
}

// TestChurnLeavesNothingBehind: after a life in which everything came and went, a core is as small
// and as fast as one that starts on what is left.
func TestChurnLeavesNothingBehind(t *testing.T) {
	c := newChurn(1)
	for range *churnEvents {
		c.something()
	}
	twin := &churn{
		rng: rand.New(rand.NewPCG(2, 5)), now: c.now, made: c.made, pods: maps.Clone(c.pods), uids: append([]types.UID{}, c.uids...), nodes: c.nodes,
		namespaces: c.namespaces, claims: c.claims, services: c.services,
	}
	twin.begin()
	c.rng = rand.New(rand.NewPCG(2, 5)) // both are told the same from now on
	const pods = 2000
	old, young := time.Hour, time.Hour
	for range 5 {
		twin.settle()
		c.settle()
		old, young = min(old, c.decide(pods/5)), min(young, twin.decide(pods/5))
	}
	oldSize, youngSize := c.size(), twin.size()
	t.Logf("%d events: %d pods left; the old core takes %d KiB and %v a pod, the new one %d KiB and %v", *churnEvents, len(c.uids), oldSize>>10, old, youngSize>>10, young)
	if oldSize > youngSize+youngSize/10 {
		t.Errorf("the old core takes %d bytes, a new one %d", oldSize, youngSize)
	}
	if *churnEvents > 1_000_000 && old > young*3/2 { // in a short life the clock says little
		t.Errorf("the old core takes %v a pod, a new one %v", old, young)
	}
}

func churnNode(name, cpu string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{v1.LabelHostname: name}},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse(cpu), v1.ResourceMemory: resource.MustParse("64Gi"), v1.ResourcePods: resource.MustParse("110"),
		}},
	}
}

func churnPod(name, cpu string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.Time{Time: churnBegins}},
		Spec: v1.PodSpec{
			SchedulerName: v1.DefaultSchedulerName, Priority: new(int32),
			Containers: []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)},
			}}},
		},
	}
}
