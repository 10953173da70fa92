// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
	objects "github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/disruption"
	"github.com/berth-k8s/berth/internal/world/quota"
)

// SurgeLabel marks a Deployment or ReplicaSet with one more replica than before, while that replica
// takes over from a departing pod. Its value describes how to restore the scale. It is a label, not
// an annotation, since Deployments hand annotations down to their ReplicaSets, and a rollback
// restores them from there.
const SurgeLabel = "berth.dev/surge"

// Scaled is the object scaled by a surge, named in requests to scale; see package execute.
//
// This file decides whether a pod can be replaced before it leaves: its workload is scaled up by
// one, and once the new pod is ready, scaled down again, with the old pod marked for removal. That
// needs no disruption budget, since the number of ready pods never falls. Package execute carries
// out the surge.
type Scaled struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID prevents scaling a newer object of the same name.
	UID types.UID `json:"uid"`
	// Through is the controller of a ReplicaSet, such as an Argo Rollout, if that controller must
	// be scaled instead; nil otherwise.
	Through *Through `json:"through,omitempty"`
}

// Through is a ReplicaSet's controller other than a Deployment. Only its scale subresource is used.
// Scaling the ReplicaSet itself would not do: its controller would scale it back.
type Through struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
}

// ThroughOf returns the controller of a ReplicaSet, or nil if there is none or it is a Deployment.
func ThroughOf(rs metav1.Object) *Through {
	owner := metav1.GetControllerOfNoCopy(rs)
	if owner == nil || rules.KindOf(owner) == rules.Deployment {
		return nil
	}
	return &Through{owner.APIVersion, owner.Kind, owner.Name, owner.UID}
}

// target returns the kind and name of the object to scale, as named by a HorizontalPodAutoscaler.
func (s Scaled) target() (kind, name string) {
	if s.Through != nil {
		return s.Through.Kind, s.Through.Name
	}
	return s.Kind, s.Name
}

// String names the object to scale in kubectl's notation.
func (s Scaled) String() string {
	kind, name := s.target()
	return kind + "/" + name
}

// Surge lets a pod leave once one more pod of its workload is ready.
type Surge struct {
	Scaled
	// Replicas is the scale before the surge, and after it.
	Replicas int32 `json:"replicas"`
	// Most is the maximum number of additional replicas at the same time.
	Most int `json:"-"`
}

// surging is the answer to whether a pod can leave by a surge.
type surging struct {
	surge   *Surge // additional replica to start before the pod leaves; nil: none
	noSurge string // reason for no surge
	later   bool   // the reason is temporary: the pod must wait
	cramped bool   // the reason is that no node has room
}

// surges decide whether a pod's workload can have one more replica before the pod leaves. Granted
// surges keep their share of quotas: all of them may exist simultaneously.
type surges struct {
	w   *world
	use map[*v1.ResourceQuota]v1.ResourceList // usage of a quota, including granted surges
}

// surgeFor decides whether a pod's workload can have one more replica until the pod has left.
//
// Reasons are checked from the cheapest to the most expensive: the proof of a node for one more pod
// is among the last. A pod with a temporary reason must wait. With any other reason, the pod leaves
// without a surge.
func (su *surges) surgeFor(p *pod, leaving *Leaving) surging {
	if rules.ControllerKind(p.object) != rules.ReplicaSet {
		return surging{noSurge: "only pods of Deployments and ReplicaSets can surge"}
	}
	l := su.w.Workloads().ControllerOf(p.object)
	if l == nil {
		return surging{noSurge: "its ReplicaSet does not exist"}
	}
	rs, ok := l.Object.(*appsv1.ReplicaSet)
	switch {
	case !ok:
		return surging{noSurge: "its ReplicaSet does not exist"}
	case !disruption.IsReady(p.object):
		return surging{noSurge: "it is not ready itself"}
	}

	s, why := su.scaledOf(rs)
	if why != "" {
		return surging{noSurge: why}
	}
	// A rollout is a temporary reason: after it, the template of the replica is known.
	if why := cmp.Or(su.w.protections.whyRolling(l), su.split(rs)); why != "" {
		return surging{noSurge: why, later: true}
	}
	if other := su.unreadyPeer(p); other != nil {
		return surging{noSurge: other.Name + " of the same workload is not ready", later: su.w.now.Sub(other.CreationTimestamp.Time) < startsFor}
	}

	if why := cmp.Or(su.autoscalerOf(s), su.exclusiveVolume(p)); why != "" {
		return surging{noSurge: why}
	}
	if nodes, why := su.nodesBeside(p, anywhere); len(nodes) == 0 {
		return surging{noSurge: "no node fits an additional replica while this one is running: " + why.message, cramped: true}
	}
	if why, later := su.overQuota(p, leaving); why != "" {
		return surging{noSurge: why, later: later}
	}
	return surging{surge: s}
}

// overQuota returns why a quota of the namespace refuses one more pod, or "". later is set if that
// is temporary, because other surges use the quota up. The usage includes the surges of the same
// plan.
func (su *surges) overQuota(p *pod, leaving *Leaving) (why string, later bool) {
	usage := quota.UsageOf(p.object)
	for q := range objects.InNamespace[*v1.ResourceQuota](su.w.World, p.Namespace()) {
		if !quota.Covers(q, p.object) {
			continue
		}
		used, surges := su.use[q]
		if !surges {
			used = q.Status.Used
		}
		// A quota exhausted only by surges, or by a terminating pod, soon has room again.
		if why = quota.Refuses(q, used, p.object, usage); why != "" {
			return "its namespace allows no additional pod: " + why, surges || len(leaving.Surging) > 0 || su.isEnding(p.Namespace())
		}
	}
	return "", false
}

// useQuota counts a planned surge for the surges planned after it.
func (su *surges) useQuota(p *pod) {
	for q := range objects.InNamespace[*v1.ResourceQuota](su.w.World, p.Namespace()) {
		if !quota.Covers(q, p.object) {
			continue
		}
		used, surges := su.use[q]
		if !surges {
			used = q.Status.Used
		}
		su.use[q] = quota.Sum(used, quota.UsageOf(p.object))
	}
}

// isEnding reports whether a pod of the namespace is terminating, so that its quota is about to
// have room.
func (su *surges) isEnding(namespace string) bool {
	return slices.ContainsFunc(su.w.pods, func(p *v1.Pod) bool { return p.Namespace == namespace && p.DeletionTimestamp != nil })
}

// scaledOf returns the object to scale for one more pod of a ReplicaSet, or why that must not be
// done.
//
//	Pod -> ReplicaSet -> Deployment       the Deployment is scaled
//	Pod -> ReplicaSet                     the ReplicaSet is scaled
//	Pod -> ReplicaSet -> Argo Rollout     the Rollout is scaled, by its scale subresource
func (su *surges) scaledOf(rs *appsv1.ReplicaSet) (s *Surge, why string) {
	s = &Surge{Scaled: Scaled{"ReplicaSet", rs.Namespace, rs.Name, rs.UID, nil}, Replicas: ptr.Deref(rs.Spec.Replicas, 1), Most: 1}
	if s.Through = ThroughOf(rs); s.Through != nil {
		if kind := schema.FromAPIVersionAndKind(s.Through.APIVersion, s.Through.Kind).GroupKind(); !su.w.options.Scales[kind] {
			return nil, fmt.Sprintf("%s scales it, which has no scale subresource", s)
		}
		return s, ""
	}

	if metav1.GetControllerOfNoCopy(rs) != nil {
		top := su.w.Workloads().ControllerOf(rs)
		if top == nil {
			return nil, "its Deployment does not exist"
		}
		d, ok := top.Object.(*appsv1.Deployment)
		switch {
		case !ok:
			return nil, "its Deployment does not exist"
		// The strategy forbids running two versions at the same time; Berth assumes the same of two
		// pods.
		case d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
			return nil, "its Deployment recreates its pods: no two of them may run at once"
		}
		s = &Surge{Scaled: Scaled{"Deployment", d.Namespace, d.Name, d.UID, nil}, Replicas: ptr.Deref(d.Spec.Replicas, 1)}
		if s.Most = mostSurge(d, int(s.Replicas)); s.Most == 0 {
			return nil, "its Deployment allows no additional pod (maxSurge: 0)"
		}
	}

	return s, ""
}

// autoscalerOf returns why an autoscaler does not leave a workload one more replica, or "". An
// autoscaler that scales down restores the scale within its sync period of 15 s, since one more pod
// lowers the usage of each: it would do so before the successor is ready, or remove a pod other
// than the departing one. An autoscaler that never scales down still does so beyond its maximum.
//
// A rolling update is unaffected: its additional pods are the ReplicaSets', and the scale of the
// Deployment stays.
func (su *surges) autoscalerOf(s *Surge) string {
	kind, name := s.target()
	for h := range objects.InNamespace[*autoscalingv2.HorizontalPodAutoscaler](su.w.World, s.Namespace) {
		switch ref := &h.Spec.ScaleTargetRef; {
		case ref.Kind != kind || ref.Name != name:
		case !keepsReplicas(h):
			return fmt.Sprintf("the HorizontalPodAutoscaler %s would scale an additional replica down, unless its "+
				"behavior.scaleDown.selectPolicy is Disabled", h.Name)
		case s.Replicas >= h.Spec.MaxReplicas:
			return fmt.Sprintf("the HorizontalPodAutoscaler %s has maxReplicas %d", h.Name, h.Spec.MaxReplicas)
		}
	}
	return ""
}

// keepsReplicas reports whether an autoscaler never scales down between its minimum and maximum.
func keepsReplicas(h *autoscalingv2.HorizontalPodAutoscaler) bool {
	behavior := h.Spec.Behavior
	return behavior != nil && behavior.ScaleDown != nil &&
		ptr.Deref(behavior.ScaleDown.SelectPolicy, autoscalingv2.MaxChangePolicySelect) == autoscalingv2.DisabledPolicySelect
}

// split returns a message if the Through of a ReplicaSet also has another ReplicaSet with replicas,
// or "". In that case it is unknown which of the ReplicaSets gets the additional pod.
func (su *surges) split(rs *appsv1.ReplicaSet) string {
	through := ThroughOf(rs)
	if through == nil {
		return ""
	}
	for _, other := range su.w.c.ReplicaSets.All() {
		if other.UID != rs.UID && other.Namespace == rs.Namespace && ptr.Deref(other.Spec.Replicas, 1) > 0 &&
			metav1.IsControlledBy(other, &metav1.ObjectMeta{UID: through.UID}) {
			return fmt.Sprintf("%s/%s is being rolled out", through.Kind, through.Name)
		}
	}
	return ""
}

// mostSurge returns by how many pods a Deployment's own rollouts may exceed its wanted number of
// pods. Without a value the default is 25 %.
func mostSurge(d *appsv1.Deployment, replicas int) int {
	most := intstr.FromString("25%")
	if rolling := d.Spec.Strategy.RollingUpdate; rolling != nil && rolling.MaxSurge != nil {
		most = *rolling.MaxSurge
	}
	surge, err := intstr.GetScaledValueFromIntOrPercent(&most, max(replicas, 1), true)
	if err != nil {
		return 1
	}
	return surge
}

// startsFor is the maximum age of an unready pod that other pods wait for. An older pod is
// considered broken, and pods of its workload leave without a replica before them.
const startsFor = 10 * time.Minute

// unreadyPeer returns another, unready pod of the workload: the controller would remove that pod
// when the scale is restored. When scaling a ReplicaSet down, kube-controller-manager prefers
// unready pods, before it looks at the deletion cost.
func (su *surges) unreadyPeer(p *pod) *v1.Pod {
	owner := rules.OwnerOf(p.object)
	for _, other := range su.w.pods {
		healthy := other.Status.Phase == v1.PodRunning && disruption.IsReady(other)
		if other.DeletionTimestamp == nil && !rules.IsTerminal(other) && !healthy && rules.OwnerOf(other) == owner {
			return other
		}
	}
	return nil
}

// exclusiveVolume returns a message about a volume of the pod that cannot be used on two nodes, or
// "". ReadWriteMany and ReadOnlyMany allow several nodes. A claim missing from the state counts as
// exclusive.
func (su *surges) exclusiveVolume(p *pod) string {
	for i := range p.object.Spec.Volumes {
		source := p.object.Spec.Volumes[i].PersistentVolumeClaim
		if source == nil {
			continue
		}
		claim, ok := su.w.c.Claims.Get(p.Namespace(), source.ClaimName)
		shared := func(m v1.PersistentVolumeAccessMode) bool { return m == v1.ReadWriteMany || m == v1.ReadOnlyMany }
		if !ok || !slices.ContainsFunc(claim.Spec.AccessModes, shared) {
			return fmt.Sprintf("the volume of its claim %s can be on one node only", source.ClaimName)
		}
	}
	return ""
}

// nodesBeside returns the nodes on which the scheduler may put one more pod of a workload next to
// this one, by name, or why there is no such node. The pod itself still counts, including its host
// ports and its place in spread constraints.
func (su *surges) nodesBeside(p *pod, is requirements) (nodes []*cluster.Node, why proof) {
	s := su.w.schedulerOf(p)
	if s == nil {
		return nil, refuseMove(Unproven, "no profile serves the scheduler name %q", p.Spec().SchedulerName)
	}
	next := su.w.successorFor(p)
	defer su.w.Undo(su.w.Mark())
	su.w.createClaims(next.claims)
	nodes, why = su.w.landingsOf(s, next, p.Node, is)
	sortByName(nodes)
	return nodes, why
}
