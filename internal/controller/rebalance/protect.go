// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/disruption"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Annotations by which users control the pods that may be moved.
const (
	evictAnnotation    = "descheduler.alpha.kubernetes.io/evict"
	preferNoAnnotation = "descheduler.alpha.kubernetes.io/prefer-no-eviction"

	// EmptyingTaint keeps pods off a node being emptied. It stays on the empty node until a user
	// removes it.
	EmptyingTaint = "berth.dev/emptying"
)

// Annotations lists the pod annotations read by plans.
var Annotations = []string{evictAnnotation, preferNoAnnotation, disruption.NeverAnnotation, disruption.KarpenterAnnotation,
	disruption.AutoscalerAnnotation}

// systemCritical is the lowest priority of system pods.
const systemCritical = 2000000000

// Evictor selects the pods that may be moved: the arguments of the descheduler's DefaultEvictor.
// Its zero value applies only the unconditional protections; NewEvictor has the defaults.
//
// The fields keep the descheduler's meaning, so that a policy file protects the same pods here as
// there. Two things differ, since every move is proved: the annotation evict with the value false
// protects a pod, and a running pod without a controller is never moved, even if its annotation
// requests it.
type Evictor struct {
	// Targets limits the nodes for successors, if NodeFit is set.
	Targets labels.Selector
	NodeFit bool
	// Pods and Namespaces limit the pods by their labels and those of their namespace; nil means no
	// limit.
	Pods, Namespaces labels.Selector
	// Priority is the lowest protected priority; PriorityClass is its name. nil means no protection
	// by priority except that of Critical.
	Priority      *int32
	PriorityClass string
	// MinReplicas protects pods of workloads with fewer pods; 0 and 1 protect none. MinPodAge
	// protects younger pods; 0 protects none.
	MinReplicas int
	MinPodAge   time.Duration
	// Mandatory makes prefer-no-eviction binding.
	Mandatory bool
	// The descheduler's default protections, which can be disabled, and the optional ones, which
	// can be enabled.
	LocalStorage, DaemonSets, Critical, FailedBare bool
	Claims, WithoutBudget, DeviceClaims            bool
	// StorageClasses limits Claims to volumes of these classes; none means all.
	StorageClasses []string
	// Own is set for Berth's own goals, which also respect annotations of further tools, and
	// exclude Jobs, except for disruption-tolerant Jobs if JobsToo is set.
	Own, JobsToo bool
}

// NewEvictor returns an Evictor with the descheduler's default protections, equivalent to a policy
// file without arguments for DefaultEvictor.
func NewEvictor() *Evictor {
	return &Evictor{LocalStorage: true, DaemonSets: true, Critical: true, FailedBare: true}
}

// protections determines whether a pod must stay, whatever the reason to move it.
//
// Reasons are checked from the general to the temporary: those of any policy, the evictor's
// selection and protections, the node, the workload, the budget. The user sees the first that
// applies.
type protections struct {
	w        *world
	budgets  []*budget
	covering map[int32][]*budget // by class, since all pods of a class have the same budgets
	costs    map[*pod]*Cost      // cached costs without the budget's fields, which may change
	pinned   map[types.UID]bool  // pods that would otherwise move twice
	// unsettled records that something was skipped only because a pod had already been moved or
	// placed. The next plan may include the skipped move.
	unsettled bool
}

// whyProtected returns why the pod must stay, or "" if it may be moved. As a side effect, it
// decides whether the pod leaves by a surge (p.surge).
func (pt *protections) whyProtected(p *pod, e *Evictor) (Code, string) {
	object := p.object
	owner := metav1.GetControllerOfNoCopy(object)
	switch {
	case p.Terminating:
		return Protected, "it is being deleted"
	case p.late:
		pt.unsettled = true
		return Protected, "it has just been placed"
	case pt.w.options.Arrived[p.UID()]:
		return Protected, "it has been moved already"
	case pt.pinned[p.UID()]:
		return Protected, "it would have to move twice"
	case isStatic(p):
		return Protected, "it is a static pod of its node"
	}

	if why := e.excludedBy(pt.w, p); why != "" {
		return Protected, why
	}
	// The annotation lifts the protections below, but neither an exclusion by selection nor the
	// lack of a successor.
	lifted := false
	if value, present := object.Annotations[evictAnnotation]; present {
		if no, err := strconv.ParseBool(value); err == nil && !no {
			return Protected, fmt.Sprintf("its annotation %s is %q, which Berth treats as a refusal (the descheduler does not)",
				evictAnnotation, value)
		}
		lifted = true
	}

	if failed := object.Status.Phase == v1.PodFailed; owner == nil && !(failed && !e.FailedBare) {
		return NoSuccessor, "it has no controller that would recreate it"
	}
	if job := pt.w.Workloads().JobOf(object); job != nil && !rules.IsTerminal(object) {
		if !workload.Replaces(job) {
			return NoSuccessor, "its Job does not replace it"
		}
		if f := workload.Fail(job, object, true); f.Why != "" {
			return NoSuccessor, fmt.Sprintf("its Job, or its index of the Job, would fail: %s", f.Why)
		}
	}

	if !lifted {
		if why := e.protectionOf(pt.w, p, owner); why != "" {
			return Protected, why
		}
	}

	if n := p.Node; n != nil {
		if why := pt.w.whyLeaving(n); why != "" {
			return NodeLeaving, n.Name + " " + why
		}
		if !pt.w.isReady(n) {
			return NodeLeaving, n.Name + " is not ready: tolerations determine how long its pods stay"
		}
	}

	// The following reasons are temporary: the executor requests another plan later.
	if until, rests := pt.w.options.Resting[workloadOf(object)]; rests && until.After(pt.w.now) {
		return CoolingDown, fmt.Sprintf("its workload was moved recently and does not move again for %s",
			until.Sub(pt.w.now).Round(time.Second))
	}
	if rules.IsTerminal(object) {
		return "", ""
	}
	if why := pt.whyBusy(p); why != "" {
		return OwnerBusy, why
	}

	// A surge needs no budget, since the workload never has fewer ready pods; so the surge is
	// decided before the budget is consulted.
	if pt.w.options.Surge {
		p.surging = pt.w.surges.surgeFor(p, &Leaving{})
	}
	switch verdict := pt.mayEvict(p); {
	case p.surge != nil:
	case p.later:
		return OwnerBusy, p.noSurge
	case verdict.Answer != disruption.Allowed:
		return BudgetSpent, verdict.Message
	}
	return "", ""
}

// excludedBy returns the evictor's selection that excludes the pod, or "". Selections apply even to
// pods annotated for eviction.
func (e *Evictor) excludedBy(w *world, p *pod) string {
	switch {
	case e.Pods != nil && !e.Pods.Matches(p.Class.Labels):
		return "the policy's labelSelector excludes it"
	case e.Namespaces != nil && !e.Namespaces.Matches(w.c.NamespaceLabels(p.Namespace())):
		return "the policy's namespaceLabelSelector excludes its namespace"
	case e.MinReplicas > 1 && p.Class.Controller != nil && w.countSiblings(p) < e.MinReplicas:
		return fmt.Sprintf("its workload has fewer than %d pods", e.MinReplicas)
	case e.MinPodAge > 0 && disruption.AgeOf(p.object, w.now) < e.MinPodAge:
		return fmt.Sprintf("it is younger than %s", e.MinPodAge)
	case e.WithoutBudget && len(w.protections.budgetsOf(p)) == 0:
		return "no disruption budget covers it"
	}

	if _, present := p.object.Annotations[preferNoAnnotation]; present && e.Mandatory {
		return "it is annotated " + preferNoAnnotation
	}
	if !e.Own {
		return ""
	}

	if why := disruption.WhyUndisturbed(p.object, w.now, e.JobsToo); why != "" {
		return why
	}
	if rules.ControllerKind(p.object) == rules.Job && !w.prices.jobSurvives(p) {
		return "it belongs to a Job that would count this as a failure: " +
			"the first rule of its podFailurePolicy does not ignore DisruptionTarget"
	}
	return ""
}

// protectionOf returns the first of the descheduler's protections that applies, or "". The
// annotation evict lifts them.
func (e *Evictor) protectionOf(w *world, p *pod, owner *metav1.OwnerReference) string {
	spec := &p.object.Spec
	local := slices.ContainsFunc(spec.Volumes, func(v v1.Volume) bool { return v.EmptyDir != nil || v.HostPath != nil })
	switch {
	case e.DaemonSets && rules.KindOf(owner) == rules.DaemonSet:
		return "it belongs to a DaemonSet"
	case e.LocalStorage && local:
		return "it has local storage"
	case e.Critical && p.Class.Priority >= systemCritical:
		return "it is critical to the system"
	case e.Critical && e.Priority != nil && p.Class.Priority >= *e.Priority:
		return fmt.Sprintf("its priority %d is at or above the threshold %d", p.Class.Priority, *e.Priority)
	case e.DeviceClaims && len(spec.ResourceClaims) > 0:
		return "it has resource claims"
	case e.Claims:
		return e.protectedClaim(w, p)
	}

	return ""
}

// protectedClaim returns why the pod's PersistentVolumeClaims protect it, or "". Only named claims
// count, not those of ephemeral volumes.
func (e *Evictor) protectedClaim(w *world, p *pod) string {
	for i := range p.object.Spec.Volumes {
		source := p.object.Spec.Volumes[i].PersistentVolumeClaim
		if source == nil {
			continue
		}
		if len(e.StorageClasses) == 0 {
			return "it has a PersistentVolumeClaim"
		}
		claim, ok := w.c.Claims.Get(p.Namespace(), source.ClaimName)
		if ok && claim.Spec.StorageClassName != nil && slices.Contains(e.StorageClasses, *claim.Spec.StorageClassName) {
			return "it has a PersistentVolumeClaim of class " + *claim.Spec.StorageClassName
		}
	}
	return ""
}

// whyBusy returns a message if a pod's workload is being rolled out or scaled, or "". In that case
// the successor would be created from another template, or not at all, so nothing could be proved
// about it. A workload missing from the state is not busy.
func (pt *protections) whyBusy(p *pod) string {
	l := pt.w.Workloads().ControllerOf(p.object)
	if l == nil {
		return ""
	}
	if why := pt.whyRolling(l); why != "" {
		return why
	}
	if workload.Outdated(l.Object, p.object) {
		return fmt.Sprintf("its %s has a new template: its successor is not known", l.Kind.Kind)
	}
	// The controller is about to delete pods, perhaps this one, and creates none.
	if l.Replicas != nil && pt.w.countSiblings(p) > int(*l.Replicas) {
		return fmt.Sprintf("its %s has more pods than desired", l.Kind.Kind)
	}
	return ""
}

// whyRolling returns why a rollout of a workload, or of its Deployment, is incomplete. The rules
// follow kubectl rollout status.
func (pt *protections) whyRolling(l *workload.Workload) string {
	if top := pt.w.Workloads().DeploymentOf(l); top != nil {
		l = top
	}
	if why := workload.Rolling(l.Object); why != "" {
		return fmt.Sprintf("its %s %s", l.Kind.Kind, why)
	}
	return ""
}
