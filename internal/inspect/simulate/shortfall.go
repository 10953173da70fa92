package simulate

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Shortfall is how many pods of a workload do not exist though it wants them: no scheduler
// knows of them, and none is pending. They are what "why is my pod not running?" asks about
// if there is no pod to ask about.
type Shortfall struct {
	Namespace string
	Workload  string // as deployment/web
	Labels    labels.Set
	// Wanted is how many pods the workload wants, and Missing how many of them do not exist.
	Wanted, Missing int
	// Refused is why the API server does not let them be created. Waits is for which pod the
	// controller waits. If both are empty, they are about to be created.
	Refused, Waits string
	// Since is when the creation began to fail, by the controller's condition, or when the
	// workload was created.
	Since metav1.Time
}

// Reason says why the pods are missing, to be put behind their number.
func (s *Shortfall) Reason() string {
	switch {
	case s.Refused != "":
		return "cannot be created: " + s.Refused
	case s.Waits != "":
		return fmt.Sprintf("are created one after the other, once %s is ready", s.Waits)
	}
	return "are about to be created"
}

// ShortfallOf returns what a workload, named as deployment/web, wants and lacks.
func (w *World) ShortfallOf(ref, namespace string) (Shortfall, error) {
	l, err := w.workloads.findNamed(ref, namespace)
	if err != nil {
		return Shortfall{}, err
	}
	return w.shortfalls.shortfallOf(l, w.workloads.table().MakersOf(l), w.controllers.podsOf(l)), nil
}

// Shortfalls lists the workloads that lack pods, by name. ReplicaSets of Deployments are left
// to these.
func (w *World) Shortfalls() (list []Shortfall) {
	for l := range w.workloads.table().All() {
		if w.workloads.table().DeploymentOf(l) != nil {
			continue
		}
		makers := w.workloads.table().MakersOf(l)
		if s := w.shortfalls.shortfallOf(l, makers, w.controllers.podsBy(makers)); s.Missing > 0 {
			list = append(list, s)
		}
	}

	slices.SortStableFunc(list, func(a, b Shortfall) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Workload, b.Workload))
	})
	return list
}

// shortfalls find out why pods do not exist. They ask admission as a controller would that is about
// to create one, and create none.
type shortfalls struct {
	controllers *controllers
	pods        *pods
	bounds      *bounds
}

// MakeMissing makes the pods that a live cluster lacks: those that controllers are about to make,
// and those that a quota refuses, which may have room for them later. What is refused for a reason
// that is not known here, as by a webhook, is not made.
func (w *World) MakeMissing() {
	for _, s := range w.Shortfalls() {
		l, err := w.workloads.findNamed(s.Workload, s.Namespace)
		if err != nil || l.Replicas == nil || s.Missing > mostPods {
			continue
		}
		for _, maker := range w.workloads.table().MakersOf(l) {
			_, _, failed := replicaFailure(maker.Object)
			if maker.Object.GetDeletionTimestamp() == nil && (!failed || w.shortfalls.refusalOf(maker) != "") {
				w.controllers.makeMissing(maker)
			}
		}
	}
}

// makeMissing makes the pods that a workload wanted before the world began: budgets expect them
// already.
func (c *controllers) makeMissing(l *workload.Workload) {
	if l.Kind.GroupKind() == rules.StatefulSet {
		c.fillUp(l)
		return
	}
	for there := len(c.podsOf(l)); there < int(*l.Replicas) && !c.allowed.mustStop(); there++ {
		c.pods.createPod(c.podOf(l), true)
	}
}

// shortfallOf is what a workload lacks. makers own its pods, the newest last, and pods are
// those that count.
func (f *shortfalls) shortfallOf(l *workload.Workload, makers []*workload.Workload, pods []*pod) Shortfall {
	owner := &Owner{Kind: l.Kind.Kind, Name: l.Object.GetName()}
	s := Shortfall{
		Namespace: l.Object.GetNamespace(), Workload: owner.Workload(), Labels: l.Template.Labels,
		Wanted: wantedBy(l, len(pods)), Since: l.Object.GetCreationTimestamp(),
	}
	if s.Missing = max(s.Wanted-len(pods), 0); s.Missing == 0 {
		return s
	}

	// What the controller has written comes first: it was refused by the API server itself,
	// whose webhooks and policies are not known here.
	for _, maker := range makers {
		if message, since, failed := replicaFailure(maker.Object); failed {
			s.Refused, s.Since = withoutName(message), since
		}
	}
	if s.Refused == "" && len(makers) > 0 {
		s.Refused = withoutName(f.refusalOf(makers[len(makers)-1]))
	}
	// An OrderedReady StatefulSet makes one pod at a time, and waits for the one that is
	// pending.
	if set, ok := l.Object.(*appsv1.StatefulSet); ok && s.Refused == "" && set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement {
		if i := slices.IndexFunc(pods, func(p *pod) bool { return p.NodeName == "" }); i >= 0 {
			s.Waits = pods[i].Name
		}
	}
	return s
}

// replicaFailure returns what a controller says of pods that it could not create. Only
// ReplicaSets and ReplicationControllers write a condition for that; others report events.
func replicaFailure(of metav1.Object) (message string, since metav1.Time, failed bool) {
	switch o := of.(type) {
	case *appsv1.ReplicaSet:
		for i := range o.Status.Conditions {
			if c := &o.Status.Conditions[i]; c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == v1.ConditionTrue {
				return c.Message, c.LastTransitionTime, true
			}
		}
	case *v1.ReplicationController:
		for i := range o.Status.Conditions {
			if c := &o.Status.Conditions[i]; c.Type == v1.ReplicationControllerReplicaFailure && c.Status == v1.ConditionTrue {
				return c.Message, c.LastTransitionTime, true
			}
		}
	}
	return "", metav1.Time{}, false
}

// wantedBy is how many pods a workload wants at a time; there are as many as given. Of a
// DaemonSet and a Job, that is what their controllers say, and never less than there are.
func wantedBy(l *workload.Workload, there int) int {
	switch o := l.Object.(type) {
	case *appsv1.DaemonSet:
		return max(int(o.Status.DesiredNumberScheduled), there)
	case *batchv1.Job:
		over := slices.ContainsFunc(o.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Status == v1.ConditionTrue && (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed)
		})
		if over || o.Status.StartTime == nil || ptr.Deref(o.Spec.Suspend, false) {
			return there
		}
		wanted := int(ptr.Deref(o.Spec.Parallelism, 1))
		if o.Spec.Completions != nil {
			wanted = min(wanted, int(*o.Spec.Completions-o.Status.Succeeded))
		}
		return max(wanted, there)
	}

	return int(*l.Replicas)
}

// refusalOf says why the API server would refuse another pod of the workload; empty if it
// would not. Nothing is created, and no quota is used up.
func (f *shortfalls) refusalOf(l *workload.Workload) string {
	p, err := f.pods.admitPod(f.controllers.podOf(l))
	if err != nil {
		return err.Error()
	}
	return f.bounds.refusalOf(p)
}

// ofName is how a refusal begins that names its pod.
var ofName = regexp.MustCompile(`^pods "[^"]*" is forbidden: `)

// withoutName leaves out the name of the pod, which is another one with each attempt.
func withoutName(refusal string) string { return ofName.ReplaceAllString(refusal, "") }
