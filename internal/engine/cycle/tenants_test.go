package cycle_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
)

var tenants = flag.Int("tenants", 40, "tenants of TestWhateverATenantStoresHoldsNobodyUp")

// stored are the kinds that a tenant may write and that the core sees. A pod is stored pending and
// placed.
var stored = map[Kind]func() metav1.Object{
	Pods:                   func() metav1.Object { return aPod("pod", "100m") },
	Claims:                 func() metav1.Object { return &v1.PersistentVolumeClaim{} },
	DisruptionBudgets:      func() metav1.Object { return &policyv1.PodDisruptionBudget{} },
	ResourceClaims:         func() metav1.Object { return &resourcev1.ResourceClaim{} },
	Services:               func() metav1.Object { return &v1.Service{} },
	ReplicaSets:            func() metav1.Object { return &appsv1.ReplicaSet{} },
	StatefulSets:           func() metav1.Object { return &appsv1.StatefulSet{} },
	ReplicationControllers: func() metav1.Object { return &v1.ReplicationController{} },
}

// roomOfObject is how much text an object has at most: below what the API server and etcd accept.
const roomOfObject = 1_300_000

// growth fills an object by its type: every field of text, every list and every map may be as long
// as an object has room for.
type growth struct {
	*rand.Rand
	room int
}

// words are the values of fields with few of them: with others nothing is read further.
var words = map[reflect.Type][]string{
	reflect.TypeFor[metav1.LabelSelectorOperator]():            {"In", "NotIn", "Exists", "DoesNotExist"},
	reflect.TypeFor[v1.NodeSelectorOperator]():                 {"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"},
	reflect.TypeFor[v1.TolerationOperator]():                   {"Exists", "Equal"},
	reflect.TypeFor[v1.TaintEffect]():                          {"NoSchedule", "NoExecute", "PreferNoSchedule", ""},
	reflect.TypeFor[v1.UnsatisfiableConstraintAction]():        {"DoNotSchedule", "ScheduleAnyway"},
	reflect.TypeFor[v1.NodeInclusionPolicy]():                  {"Honor", "Ignore"},
	reflect.TypeFor[v1.Protocol]():                             {"TCP", "UDP", "SCTP"},
	reflect.TypeFor[v1.PersistentVolumeAccessMode]():           {"ReadWriteOnce", "ReadWriteOncePod"},
	reflect.TypeFor[resourcev1.DeviceAllocationMode]():         {"ExactCount", "All"},
	reflect.TypeFor[v1.ResourceName]():                         {"cpu", "memory", "example.com/gpu", ""},
	reflect.TypeFor[v1.PersistentVolumeClaimPhase]():           {"Pending", "Bound"},
	reflect.TypeFor[v1.PodPhase]():                             {"Pending", "Running"},
	reflect.TypeFor[v1.ContainerRestartPolicy]():               {"Always"},
	reflect.TypeFor[v1.PodFSGroupChangePolicy]():               {"Always"},
	reflect.TypeFor[policyv1.UnhealthyPodEvictionPolicyType](): {"AlwaysAllow"},
}

func (g *growth) grow(v reflect.Value, depth int) {
	if g.room <= 0 || depth > 12 {
		return
	}
	switch v.Type() {
	case reflect.TypeFor[resource.Quantity]():
		v.Set(reflect.ValueOf(*resource.NewQuantity(g.Int64N(1<<40), resource.DecimalSI)))
		return
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[metav1.MicroTime](),
		reflect.TypeFor[metav1.ObjectMeta](), reflect.TypeFor[metav1.TypeMeta](), reflect.TypeFor[metav1.ListMeta]():
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if g.IntN(2) == 0 {
			one := reflect.New(v.Type().Elem())
			g.grow(one.Elem(), depth)
			v.Set(one)
		}
	case reflect.Struct:
		for _, i := range g.Perm(v.NumField()) {
			if f := v.Field(i); f.CanSet() && g.IntN(3) > 0 {
				g.grow(f, depth+1)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		for i := range g.many() {
			v.Grow(1)
			v.SetLen(i + 1)
			if g.grow(v.Index(i), depth+1); g.room <= 0 {
				v.SetLen(i)
				break
			}
		}
	case reflect.Map:
		all := reflect.MakeMap(v.Type())
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		for range g.many() {
			key.SetZero()
			value.SetZero()
			g.grow(key, depth+1)
			if g.grow(value, depth+1); g.room <= 0 {
				break
			}
			all.SetMapIndex(key, value)
		}
		v.Set(all)
	case reflect.String:
		text := g.word(v.Type())
		g.room -= len(text) + 2
		v.SetString(text)
	case reflect.Int32, reflect.Int64, reflect.Int:
		g.room -= 4
		v.SetInt(g.Int64N(100))
	case reflect.Bool:
		v.SetBool(g.IntN(2) == 0)
	}
}

// many is the length of a list: few, some, or as many as there is room for.
func (g *growth) many() int { return []int{0, 1, 3, 100, roomOfObject}[g.IntN(5)] }

func (g *growth) word(t reflect.Type) string {
	if of := words[t]; of != nil {
		return of[g.IntN(len(of))]
	}
	if g.IntN(4) == 0 {
		return []string{"app", "app-1", "k0", "k1", v1.LabelHostname, v1.LabelTopologyZone, "gpu", "tenant"}[g.IntN(8)]
	}
	return "t-" + strconv.Itoa(g.IntN(1<<20))
}

// TestWhateverATenantStoresHoldsNobodyUp: objects of every kind with fields as long as there is
// room for. A failure names its seed. A pod of another tenant is decided as before.
func TestWhateverATenantStoresHoldsNobodyUp(t *testing.T) {
	c := newCrowd(t)
	ordinary := func(i int) time.Duration {
		took, _ := c.attempt(fmt.Sprint("ordinary-", i), func(pod *v1.Pod) { pod.Namespace = "other" })
		return took
	}
	ordinary(-1) // the first one makes what is kept
	usual := max(ordinary(-2), ordinary(-3))
	var worst time.Duration
	for seed := range *tenants {
		g := &growth{Rand: rand.New(rand.NewPCG(uint64(seed), 1))}
		var gone []Event
		for kind, empty := range stored {
			for copies := range 1 + g.IntN(3) {
				object := empty()
				g.room = roomOfObject
				g.grow(reflect.ValueOf(object).Elem(), 0)
				object.SetNamespace("tenant")
				object.SetName(fmt.Sprint("o-", seed, "-", copies))
				object.SetUID(types.UID(fmt.Sprint(kind, seed, "-", copies)))
				labels := reflect.New(reflect.TypeFor[map[string]string]()).Elem()
				g.grow(labels, 0)
				object.SetLabels(labels.Interface().(map[string]string))
				if pod, is := object.(*v1.Pod); is {
					pod.Spec.SchedulerName, pod.Spec.SchedulingGates, pod.Spec.SchedulingGroup = "default-scheduler", nil, nil
					pod.Status, pod.Spec.NodeName = v1.PodStatus{}, ""
					if g.IntN(2) == 0 {
						pod.Spec.NodeName = fmt.Sprint("node-", g.IntN(crowdNodes))
					}
				}
				c.tell(Seen{kind, object})
				gone = append(gone, Gone{kind, object})
			}
		}
		c.tell(Tick{}) // the tenant's own

		took := ordinary(seed)
		if took > usual+holdsTheLoop/4 { // once more: another goroutine's garbage counts, too
			took = min(took, ordinary(seed))
		}
		if worst = max(worst, took); took > usual+holdsTheLoop/4 {
			t.Errorf("tenant %d: an ordinary pod took %v of processor time, and %v without it", seed, took, usual)
		}
		for _, e := range gone {
			c.tell(e)
		}
	}
	t.Logf("%d tenants: an ordinary pod takes %v, and %v at worst", *tenants, usual, worst)
}
