package simulate

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// workload is a controller's object and the template of its pods.
type workload struct {
	kind     string
	object   metav1.Object
	template *v1.PodTemplateSpec
	replicas *int32 // nil for kinds whose number of pods is not a field
}

// workloadNamed finds a workload by TYPE/NAME as kubectl writes it, short names included.
func (w *World) workloadNamed(ref, namespace string) (*workload, error) {
	kind, name, ok := strings.Cut(ref, "/")
	if !ok {
		return nil, fmt.Errorf("%q: must be TYPE/NAME, as deployment/web", ref)
	}
	namespace = cmp.Or(namespace, v1.NamespaceDefault)
	is := func(o metav1.Object) bool { return o.GetName() == name && o.GetNamespace() == namespace }
	switch strings.ToLower(kind) {
	case "deployment", "deployments", "deploy":
		for _, d := range w.set.Deployments {
			if is(d) {
				return &workload{"Deployment", d, &d.Spec.Template, d.Spec.Replicas}, nil
			}
		}
	case "replicaset", "replicasets", "rs":
		for _, r := range w.set.ReplicaSets {
			if is(r) {
				return &workload{"ReplicaSet", r, &r.Spec.Template, r.Spec.Replicas}, nil
			}
		}
	case "statefulset", "statefulsets", "sts":
		for _, s := range w.set.StatefulSets {
			if is(s) {
				return &workload{"StatefulSet", s, &s.Spec.Template, s.Spec.Replicas}, nil
			}
		}
	case "daemonset", "daemonsets", "ds":
		for _, d := range w.set.DaemonSets {
			if is(d) {
				return &workload{"DaemonSet", d, &d.Spec.Template, nil}, nil
			}
		}
	case "job", "jobs":
		for _, j := range w.set.Jobs {
			if is(j) {
				return &workload{"Job", j, &j.Spec.Template, nil}, nil
			}
		}
	default:
		return nil, fmt.Errorf("%q: the type must be pod, deployment, replicaset, statefulset, daemonset or job", ref)
	}
	return nil, fmt.Errorf("there is no %s %s/%s", strings.ToLower(kind), namespace, name)
}

// makers returns the objects that own the workload's pods: itself, or a Deployment's ReplicaSets,
// the newest last.
func (w *World) makers(l *workload) []metav1.Object {
	if l.kind != "Deployment" {
		return []metav1.Object{l.object}
	}
	var own []*appsv1.ReplicaSet
	for _, r := range w.set.ReplicaSets {
		if ref := metav1.GetControllerOfNoCopy(r); ref != nil && ref.UID == l.object.GetUID() {
			own = append(own, r)
		}
	}
	slices.SortStableFunc(own, func(a, b *appsv1.ReplicaSet) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	list := make([]metav1.Object, len(own))
	for i, r := range own {
		list[i] = r
	}
	return list
}

// podsOf returns the workload's pods in the order in which its controller removes them when scaling
// down.
func (w *World) podsOf(l *workload) []*pod {
	owners := map[types.UID]bool{}
	for _, o := range w.makers(l) {
		owners[o.GetUID()] = true
	}
	var list []*pod
	together := map[string]int{} // pods of the workload by node
	for _, p := range w.pods {
		if ref := metav1.GetControllerOfNoCopy(p.object); ref != nil && owners[ref.UID] && p.Pod != nil && !p.Terminating {
			list = append(list, p)
			together[p.NodeName]++
		}
	}
	if l.kind == "StatefulSet" { // the highest ordinal first
		slices.SortFunc(list, func(a, b *pod) int { return cmp.Or(cmp.Compare(len(b.Name), len(a.Name)), cmp.Compare(b.Name, a.Name)) })
		return list
	}
	slices.SortFunc(list, func(a, b *pod) int {
		return cmp.Or(
			first(a.NodeName == "", b.NodeName == ""), first(a.unready, b.unready),
			cmp.Compare(deletionCost(a.object), deletionCost(b.object)),
			cmp.Compare(together[b.NodeName], together[a.NodeName]),
			w.compareAge(a, b), cmp.Compare(a.UID, b.UID),
		)
	})
	return list
}

// first orders true before false.
func first(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

func deletionCost(p *v1.Pod) int {
	cost, err := strconv.Atoi(p.Annotations["controller.kubernetes.io/pod-deletion-cost"])
	if err != nil {
		return 0
	}
	return cost
}

// compareAge orders younger pods first: by when they became ready, then by when they were created.
// Ages are compared on a logarithmic scale: to the ReplicaSet controller, pods of about the same
// age are equal, so that not all of the newest go.
func (w *World) compareAge(a, b *pod) int {
	x, y := readySince(a), readySince(b)
	if x.Equal(y) {
		x, y = a.Created, b.Created
	}
	return cmp.Compare(magnitude(w.clock().Sub(x)), magnitude(w.clock().Sub(y)))
}

func readySince(p *pod) time.Time {
	since := p.since
	for i := range p.object.Status.Conditions {
		if c := &p.object.Status.Conditions[i]; c.Type == v1.PodReady && !c.LastTransitionTime.IsZero() {
			since = c.LastTransitionTime.Time
		}
	}
	return since
}

func magnitude(age time.Duration) int {
	if age <= 0 {
		return -1
	}
	return bits.Len64(uint64(age)) - 1
}

func (w *World) scale(op *Scale) error {
	if kind, _, _ := strings.Cut(op.Workload, "/"); slices.Contains([]string{"pod", "pods", "po"}, kind) {
		return fmt.Errorf("%q: a pod has no replicas: name a deployment, replicaset or statefulset", op.Workload)
	}
	l, err := w.workloadNamed(op.Workload, op.Namespace)
	switch {
	case err != nil:
		return err
	case l.replicas == nil:
		return fmt.Errorf("%s has no replicas to set", op.Workload)
	case op.Replicas < 0 || op.Replicas > mostPods:
		return fmt.Errorf("%d replicas: must be from 0 to %d", op.Replicas, mostPods)
	}
	w.setReplicas(l, op.Replicas)
	return nil
}

func (w *World) setReplicas(l *workload, replicas int) {
	pods := w.podsOf(l)
	w.tell(Event{Kind: "Scaled", Message: fmt.Sprintf("%s %s/%s from %d to %d", strings.ToLower(l.kind), l.object.GetNamespace(), l.object.GetName(), len(pods), replicas)})
	for _, p := range pods[:max(0, len(pods)-replicas)] {
		w.drop(p, ByScaling, l.kind+"/"+l.object.GetName())
	}
	makers := w.makers(l)
	for i := len(pods); i < replicas && len(makers) > 0 && !w.halted(); i++ {
		maker, kind, template := makers[len(makers)-1], l.kind, l.template
		if r, ok := maker.(*appsv1.ReplicaSet); ok {
			kind, template = "ReplicaSet", &r.Spec.Template
		}
		p := w.podOf(maker, kind, template)
		if kind == "StatefulSet" {
			p.Name = fmt.Sprintf("%s-%d", maker.GetName(), i)
		}
		w.create(p)
	}
}

// podOf creates a pod from a template, named as its controller would name it.
func (w *World) podOf(owner metav1.Object, kind string, template *v1.PodTemplateSpec) *v1.Pod {
	t := template.DeepCopy()
	gvk := appsv1.SchemeGroupVersion.WithKind(kind)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: owner.GetNamespace(), Name: w.generated(owner.GetNamespace(), owner.GetName()+"-"), Labels: t.Labels, Annotations: t.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, gvk)},
		},
		Spec: t.Spec, Status: v1.PodStatus{Phase: v1.PodPending},
	}
}

// create adds a new pod through admission. A pod that is refused is reported and not added.
func (w *World) create(p *v1.Pod) *pod {
	p.CreationTimestamp = metav1.NewTime(w.start.Add(w.now))
	admitted, err := w.admitOne(w.catalog, p)
	if err != nil {
		w.tell(Event{Kind: "PodRefused", Namespace: p.Namespace, Name: p.Name, Message: err.Error()})
		return nil
	}
	if admitted.UID == "" || w.c.Pod(admitted.UID) != nil || w.pods[Name{p.Namespace, p.Name}] != nil {
		admitted.UID = types.UID(fmt.Sprintf("%s/%s-%d", p.Namespace, p.Name, w.entered+1))
	}
	w.claims(admitted)
	w.touched = true
	return w.enter(admitted, w.bounds.charge(admitted, true))
}

// drop removes a pod, placed or pending, which does not come back unless its controller wants it.
func (w *World) drop(p *pod, cause Cause, detail string) {
	if p.NodeName != "" {
		w.depart(p, cause, detail)
		return
	}
	w.withdraw(p)
	w.forget(p)
	w.tell(Event{Kind: "PodDeleted", Namespace: p.Namespace(), Name: p.Name, Message: detail})
}

// know and forget maintain the list of all pods.
func (w *World) know(p *pod) {
	if p.object != nil {
		w.pods[Name{p.object.Namespace, p.object.Name}] = p
	}
}

func (w *World) forget(p *pod) {
	if name := (Name{p.object.Namespace, p.object.Name}); w.pods[name] == p {
		delete(w.pods, name)
	}
}

func (w *World) delete(op *Delete) (*Done, error) {
	kind, name, _ := strings.Cut(op.Object, "/")
	switch strings.ToLower(kind) {
	case "pod", "pods", "po":
		p := w.pods[Name{cmp.Or(op.Namespace, v1.NamespaceDefault), name}]
		if p == nil || p.Pod == nil {
			return nil, fmt.Errorf("there is no pod %s/%s", cmp.Or(op.Namespace, v1.NamespaceDefault), name)
		}
		w.drop(p, ByDeletion, "")
		if p.NodeName == "" && metav1.GetControllerOfNoCopy(p.object) != nil {
			w.makeAgain(p.object)
		}
		return &Done{}, nil
	case "node", "nodes", "no":
		return &Done{}, w.each(&Nodes{Node: name}, w.removeMachine)
	}
	l, err := w.workloadNamed(op.Object, op.Namespace)
	if err != nil {
		return nil, err
	}
	for _, p := range w.podsOf(l) {
		w.drop(p, ByScaling, op.Object)
	}
	w.set.Deployments = slices.DeleteFunc(w.set.Deployments, func(o *appsv1.Deployment) bool { return metav1.Object(o) == l.object })
	w.set.DaemonSets = slices.DeleteFunc(w.set.DaemonSets, func(o *appsv1.DaemonSet) bool { return metav1.Object(o) == l.object })
	w.set.StatefulSets = slices.DeleteFunc(w.set.StatefulSets, func(o *appsv1.StatefulSet) bool { return metav1.Object(o) == l.object })
	return &Done{}, nil
}
