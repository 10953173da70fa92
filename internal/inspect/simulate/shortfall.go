// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Shortfall counts the pods that a workload wants but that do not exist, and explains why they are
// missing. Such pods are not pending, and no scheduler sees them.
type Shortfall struct {
	Namespace string
	Workload  string // TYPE/NAME, such as deployment/web
	Labels    labels.Set
	// Wanted is the number of pods the workload wants, and Missing is the number of missing ones.
	Wanted, Missing int
	// Refused is the reason the API server refuses their creation. Waits is the event after which
	// the controller will create them. If both are empty, the pods are about to be created.
	Refused, Waits string
	// Idle is the reason a workload wants no pods; empty if it wants any.
	Idle string
	// Since is the time at which creation began to fail according to the controller's condition, or
	// else the workload's creation time.
	Since metav1.Time
}

// Reason explains why the pods are missing. The text is meant to follow the number of pods, and
// suits singular and plural.
func (s *Shortfall) Reason() string {
	switch {
	case s.Refused != "":
		return "cannot be created: " + s.Refused
	case s.Waits != "":
		return "created " + s.Waits
	}
	return "about to be created"
}

// ShortfallOf returns the shortfall of a workload such as deployment/web.
func (w *World) ShortfallOf(ref, namespace string) (Shortfall, error) {
	l, err := w.workloads.findNamed(ref, namespace)
	if err != nil {
		return Shortfall{}, err
	}
	s := w.shortfalls.shortfallOf(l, w.workloads.table().MakersOf(l), w.controllers.podsOf(l))
	if s.Wanted == 0 {
		s.Idle = w.whyIdle(l)
	}
	return s, nil
}

// Shortfalls lists the workloads with missing pods, sorted by name. Pods missing in a Deployment's
// ReplicaSets are listed for the Deployment.
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

// shortfalls determines why pods do not exist. Like a controller about to create a pod, it runs
// admission, but creates nothing.
type shortfalls struct {
	controllers *controllers
	bounds      *bounds
}

// MakeMissing creates the pods missing in a live cluster, at most the given number: pods that
// controllers are about to create, and pods refused by a quota that may have room for them later.
// It skips pods refused for reasons unknown here, such as a webhook, and workloads that miss more
// than the remaining number.
func (w *World) MakeMissing(most int) {
	for _, s := range w.Shortfalls() {
		l, err := w.workloads.findNamed(s.Workload, s.Namespace)
		if err != nil || l.Replicas == nil || s.Missing > most {
			continue
		}
		most -= s.Missing
		for _, maker := range w.workloads.table().MakersOf(l) {
			_, _, failed := replicaFailure(maker.Object)
			if maker.Object.GetDeletionTimestamp() == nil && (!failed || w.shortfalls.refusalOf(maker) != "") {
				w.controllers.makeMissing(maker)
			}
		}
	}
}

// makeMissing creates pods that a workload wanted before the world began, so budgets already expect
// them.
func (c *controllers) makeMissing(l *workload.Workload) {
	if l.Kind.GroupKind() == rules.StatefulSet {
		c.fillUp(l)
		return
	}
	for there := len(c.podsOf(l)); there < int(*l.Replicas) && !c.allowed.mustStop(); there++ {
		c.pods.createPod(c.podOf(l), true)
	}
}

// shortfallOf returns a workload's shortfall. makers are the direct owners of its pods, the newest
// last, and pods are its existing pods.
func (f *shortfalls) shortfallOf(l *workload.Workload, makers []*workload.Workload, pods []*pod) Shortfall {
	owner := &Owner{Kind: l.Kind.Kind, Name: l.Object.GetName()}
	s := Shortfall{
		Namespace: l.Object.GetNamespace(), Workload: owner.Workload(), Labels: l.Template.Labels,
		Wanted: wantedBy(l, len(pods)), Since: l.Object.GetCreationTimestamp(),
	}
	if s.Missing = max(s.Wanted-len(pods), 0); s.Missing == 0 {
		return s
	}

	// The controller's condition takes precedence: it reports a refusal by the API server itself,
	// including webhooks and policies unknown here.
	for _, maker := range makers {
		if message, since, failed := replicaFailure(maker.Object); failed {
			s.Refused, s.Since = withoutName(message), since
		}
	}
	if s.Refused == "" && len(makers) > 0 {
		s.Refused = withoutName(f.refusalOf(makers[len(makers)-1]))
	}
	// A paused Deployment scales its ReplicaSets, but creates no new ones.
	if d, ok := l.Object.(*appsv1.Deployment); ok && d.Spec.Paused && len(makers) == 0 {
		s.Waits = "once its rollout is resumed: it is paused"
	}
	// An OrderedReady StatefulSet creates one pod at a time, and waits for the pending one.
	if set, ok := l.Object.(*appsv1.StatefulSet); ok && s.Refused == "" && set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement {
		if i := slices.IndexFunc(pods, func(p *pod) bool { return p.NodeName == "" }); i >= 0 {
			s.Waits = "one after the other, once " + pods[i].Name() + " is ready"
		}
		// A pod's name is free only after its predecessor's end.
		for _, leaving := range f.controllers.scheduler.api.PodsOf(l.Owner()) {
			if leaving.DeletionTimestamp != nil {
				s.Waits = fmt.Sprintf("once %s, terminating on %s, is gone", leaving.Name, leaving.Spec.NodeName)
			}
		}
	}
	return s
}

// replicaFailure returns a controller's message about pods it failed to create. Only ReplicaSets
// and ReplicationControllers write a condition for that; other controllers report events.
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

// wantedBy returns the number of pods a workload wants now, given the number of existing pods. For
// a DaemonSet, it is the number reported by the controller. For a Job, it is limited by the
// parallelism and by the remaining completions. Both are at least the existing number.
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

// whyIdle explains why a workload wants no pods, and lists its ended pods.
func (w *World) whyIdle(l *workload.Workload) string {
	reason := "its spec.replicas is 0"
	switch o := l.Object.(type) {
	case *appsv1.DaemonSet:
		reason = w.whyNoDaemon(o)
	case *batchv1.Job:
		reason = whyNoJobPod(o)
	}
	if l.Object.GetDeletionTimestamp() != nil {
		reason = "it is being deleted"
	}

	var ended []string
	for _, p := range w.scheduler.api.PodsOf(l.Owner()) {
		if rules.IsTerminal(p) {
			ended = append(ended, fmt.Sprintf("%s (%s)", p.Name, p.Status.Phase))
		}
	}
	if slices.Sort(ended); len(ended) > 0 {
		reason += ". Ended pods: " + answer.List(len(ended), func(i int) string { return ended[i] })
	}
	return reason
}

// whyNoDaemon explains why a DaemonSet wants no pods: the selection of nodes, or their taints.
func (w *World) whyNoDaemon(set *appsv1.DaemonSet) string {
	tolerant := set.DeepCopy()
	spec := &tolerant.Spec.Template.Spec
	spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
	runs, selects := workload.NodesOf(set), workload.NodesOf(tolerant)
	eligible, selected, all := 0, 0, answer.Count(len(w.nodes.named), "node")
	taints := map[string]bool{}
	for _, m := range w.nodes.named {
		switch {
		case runs(m.object):
			eligible++
		case selects(m.object):
			selected++
			if t := rules.Untolerated(m.object.Spec.Taints, set.Spec.Template.Spec.Tolerations, rules.KeepsOff); t != nil {
				taints[t.ToString()] = true
			}
		}
	}

	by := "its node affinity"
	if len(spec.NodeSelector) > 0 {
		by = "its nodeSelector " + labels.Set(spec.NodeSelector).String()
		if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
			by += " and its node affinity"
		}
	}
	switch {
	case eligible > 0:
		return fmt.Sprintf("its controller has not counted the matching nodes yet (%d of %s)", eligible, all)
	case selected > 0:
		list := slices.Sorted(maps.Keys(taints))
		return fmt.Sprintf("it does not tolerate the taints of the matching nodes (%d of %s): %s", selected, all,
			answer.List(len(list), func(i int) string { return list[i] }))
	}
	return fmt.Sprintf("%s matches no node of %d", by, len(w.nodes.named))
}

// whyNoJobPod explains why a Job wants no pods.
func whyNoJobPod(job *batchv1.Job) string {
	for _, c := range job.Status.Conditions {
		switch {
		case c.Status != v1.ConditionTrue:
		case c.Type == batchv1.JobFailed || c.Type == batchv1.JobFailureTarget:
			return fmt.Sprintf("the Job has failed (%s: %s)", c.Reason, strings.TrimSuffix(c.Message, "."))
		case c.Type == batchv1.JobComplete || c.Type == batchv1.JobSuccessCriteriaMet:
			return "the Job is complete"
		}
	}

	switch manager := ptr.Deref(job.Spec.ManagedBy, batchv1.JobControllerName); {
	case ptr.Deref(job.Spec.Suspend, false):
		return "the Job is suspended by spec.suspend"
	case manager != batchv1.JobControllerName:
		return "the Job is managed by " + manager
	case job.Status.StartTime == nil:
		return "its controller has not started the Job yet"
	case ptr.Deref(job.Spec.Parallelism, 1) == 0:
		return "its spec.parallelism is 0"
	}
	return "all its completions have succeeded"
}

// refusalOf returns the reason the API server would refuse another pod of the workload; empty if it
// would not. It neither creates a pod nor uses up quota.
func (f *shortfalls) refusalOf(l *workload.Workload) string {
	p, err := f.controllers.pods.admitPod(f.controllers.podOf(l))
	if err != nil {
		return err.Error()
	}
	return f.bounds.refusalOf(p)
}

// ofName matches the beginning of a refusal that names its pod.
var ofName = regexp.MustCompile(`^pods "[^"]*" is forbidden: `)

// withoutName strips the name of the pod, which differs with each attempt.
func withoutName(refusal string) string { return ofName.ReplaceAllString(refusal, "") }
