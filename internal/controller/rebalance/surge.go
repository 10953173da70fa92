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

// SurgeLabel is on a Deployment or ReplicaSet that has one more replica than it had, while that
// replica takes over from a pod that is to leave. Its value says how to put the scale back. It is
// no annotation, since Deployments hand those down to their ReplicaSets, and a rollback takes them
// back from there.
const SurgeLabel = "berth.dev/surge"

// Scaled is what a surge scales. It is also what a request to scale names; see package execute.
//
// This file decides whether a pod can be replaced before it leaves: its workload is scaled up by
// one, and once the new pod is ready, scaled down again, with this pod marked as the one to remove.
// That needs no disruption budget, since the number of ready pods never falls. Package execute
// carries it out.
type Scaled struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// UID makes sure that an object of the same name, made since, is not scaled.
	UID types.UID `json:"uid"`
	// Through is what scales a ReplicaSet by its own scale subresource, such as an Argo Rollout.
	Through *Through `json:"through,omitempty"`
}

// Through is the controller of a ReplicaSet that is no Deployment. All that is relied on is its
// scale subresource. Scaling the ReplicaSet itself would not do: its controller would scale it
// back.
type Through struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
}

// ThroughOf returns what scales a ReplicaSet if it is no Deployment, or nil.
func ThroughOf(rs metav1.Object) *Through {
	owner := metav1.GetControllerOfNoCopy(rs)
	if owner == nil || rules.KindOf(owner) == rules.Deployment {
		return nil
	}
	return &Through{owner.APIVersion, owner.Kind, owner.Name, owner.UID}
}

// target is the kind and name of what has the scale. A HorizontalPodAutoscaler names the same.
func (s Scaled) target() (kind, name string) {
	if s.Through != nil {
		return s.Through.Kind, s.Through.Name
	}
	return s.Kind, s.Name
}

// String names what has the scale as kubectl does.
func (s Scaled) String() string {
	kind, name := s.target()
	return kind + "/" + name
}

// Surge says that a pod leaves once one more pod of its workload is ready.
type Surge struct {
	Scaled
	// Replicas is the scale before, and after.
	Replicas int32 `json:"replicas"`
}

// surges decide whether a pod's workload can have one more replica before the pod leaves. What the
// surges that were granted take from quotas stays taken: all of them may be there at once.
type surges struct {
	w   *world
	use map[*v1.ResourceQuota]v1.ResourceList // what is used of a quota with them
}

// surgeFor decides whether a pod's workload can have one more replica until the pod has left. If
// not, why says so; later is set if that passes by itself.
//
// Reasons are looked for from the cheapest to the most expensive: the proof that one more pod finds
// a node comes late. p.cramped is set if none has room. A reason of the kind "later" holds the pod
// back; with any other the pod leaves without a replica before it.
func (su *surges) surgeFor(p *pod, leaving *Leaving) (s *Surge, why string, later bool) {
	if rules.ControllerKind(p.object) != rules.ReplicaSet {
		return nil, "only pods of Deployments and ReplicaSets have one beforehand", false
	}

	l := su.w.Workloads().ControllerOf(p.object)
	if l == nil {
		return nil, "its ReplicaSet does not exist", false
	}
	rs, ok := l.Object.(*appsv1.ReplicaSet)
	switch {
	case !ok:
		return nil, "its ReplicaSet does not exist", false
	case !disruption.IsReady(p.object):
		return nil, "it is not ready itself", false
	}

	s, why = su.scaledOf(rs)
	if why != "" {
		return nil, why, false
	}
	// A rollout ends, and then the replica would be of a known template.
	if why = cmp.Or(su.w.protections.whyRolling(l), su.split(rs)); why != "" {
		return nil, why, true
	}
	if other := su.unreadyPeer(p); other != nil {
		return nil, fmt.Sprintf("%s of the same workload is not ready", other.Name), su.w.now.Sub(other.CreationTimestamp.Time) < startsFor
	}

	if why = cmp.Or(su.autoscalerOf(s), su.exclusiveVolume(p)); why != "" {
		return nil, why, false
	}
	if nodes, why := su.nodesBeside(p, anywhere); len(nodes) == 0 {
		p.cramped = true
		return nil, "no node takes one more of them while it is there: " + why.message, false
	}
	if why, later = su.overQuota(p, leaving); why != "" {
		return nil, why, later
	}
	return s, "", false
}

// overQuota returns why a quota of the namespace refuses one more pod, or "". later is set if that
// passes, since other surges use the quota up. It asks with what the surges of the same plan take.
func (su *surges) overQuota(p *pod, leaving *Leaving) (why string, later bool) {
	usage := quota.UsageOf(p.object)
	for q := range objects.In[*v1.ResourceQuota](su.w.World, p.Namespace()) {
		if !quota.Covers(q, p.object) {
			continue
		}
		used, surges := su.use[q]
		if !surges {
			used = q.Status.Used
		}
		// A quota that only surges, or a pod that is ending, use up has room again in a moment.
		if why = quota.Refuses(q, used, p.object, usage); why != "" {
			return "its namespace allows no pod more: " + why, surges || len(leaving.Surging) > 0 || su.isEnding(p.Namespace())
		}
	}
	return "", false
}

// useQuota counts a surge that is planned for those that are planned after it.
func (su *surges) useQuota(p *pod) {
	for q := range objects.In[*v1.ResourceQuota](su.w.World, p.Namespace()) {
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

// isEnding reports whether a pod of the namespace is about to be gone. Its quota is about to have
// room.
func (su *surges) isEnding(namespace string) bool {
	return slices.ContainsFunc(su.w.pods, func(p *v1.Pod) bool { return p.Namespace == namespace && p.DeletionTimestamp != nil })
}

// scaledOf returns what has to be scaled for one more pod of a ReplicaSet, or why that must not be
// done.
//
//	Pod -> ReplicaSet -> Deployment       the Deployment is scaled
//	Pod -> ReplicaSet                     the ReplicaSet is
//	Pod -> ReplicaSet -> Argo Rollout     the Rollout is, by its scale subresource
func (su *surges) scaledOf(rs *appsv1.ReplicaSet) (s *Surge, why string) {
	s = &Surge{Scaled: Scaled{"ReplicaSet", rs.Namespace, rs.Name, rs.UID, nil}, Replicas: replicasOrOne(rs.Spec.Replicas)}
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
		// The user has said that two versions must not run at once; two pods are taken to be as
		// bad.
		case d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
			return nil, "its Deployment recreates its pods: no two of them may run at once"
		case noSurge(d):
			return nil, "its Deployment allows no pod more (maxSurge: 0)"
		}
		s = &Surge{Scaled: Scaled{"Deployment", d.Namespace, d.Name, d.UID, nil}, Replicas: replicasOrOne(d.Spec.Replicas)}
	}

	return s, ""
}

// autoscalerOf returns why an autoscaler does not leave a workload one more replica, or "". One
// that scales down puts the scale back within its sync period of 15 s, since one pod more lowers
// what each of them uses: before the successor is ready, or with another pod removed than the one
// that is to leave. One that never scales down still does so beyond its maximum.
//
// A rolling update has no such trouble: its additional pods are the ReplicaSets', and the scale of
// the Deployment stays.
func (su *surges) autoscalerOf(s *Surge) string {
	kind, name := s.target()
	for h := range objects.In[*autoscalingv2.HorizontalPodAutoscaler](su.w.World, s.Namespace) {
		ref := &h.Spec.ScaleTargetRef
		switch {
		case ref.Kind != kind || ref.Name != name:
		case !keepsReplicas(h):
			return fmt.Sprintf("the HorizontalPodAutoscaler %s takes one more back, unless its "+
				"behavior.scaleDown.selectPolicy is Disabled", h.Name)
		case s.Replicas >= h.Spec.MaxReplicas:
			return fmt.Sprintf("the HorizontalPodAutoscaler %s allows no more than %d replicas", h.Name, h.Spec.MaxReplicas)
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

// split reports that what scales a ReplicaSet has pods of another one, too. Then it is not known
// which of them gets one more.
func (su *surges) split(rs *appsv1.ReplicaSet) string {
	through := ThroughOf(rs)
	if through == nil {
		return ""
	}
	for _, other := range su.w.c.ReplicaSets.All() {
		if other.UID != rs.UID && other.Namespace == rs.Namespace && replicasOrOne(other.Spec.Replicas) > 0 &&
			metav1.IsControlledBy(other, &metav1.ObjectMeta{UID: through.UID}) {
			return fmt.Sprintf("%s/%s is being rolled out", through.Kind, through.Name)
		}
	}
	return ""
}

// replicasOrOne is the API server's default for spec.replicas.
func replicasOrOne(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// noSurge reports whether a Deployment's own rollouts never have a pod more than it wants. A
// percentage that rounds up to 0 is 0 %. Without a value the default is 25 %.
func noSurge(d *appsv1.Deployment) bool {
	rolling := d.Spec.Strategy.RollingUpdate
	if rolling == nil || rolling.MaxSurge == nil {
		return false
	}
	surge, err := intstr.GetScaledValueFromIntOrPercent(rolling.MaxSurge, 100, true)
	return err == nil && surge == 0
}

// startsFor is how old a pod may be that is not ready yet and is waited for. After that it is taken
// for broken, and pods of its workload leave without a replica before them.
const startsFor = 10 * time.Minute

// unreadyPeer returns another pod of the workload that is not ready: the controller would remove
// that one when the scale is put back. kube-controller-manager prefers pods that are not ready when
// it scales a ReplicaSet down, before it looks at the deletion cost.
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

// exclusiveVolume returns which of the pod's volumes no other pod can have on another node, or "".
// ReadWriteMany and ReadOnlyMany allow several nodes. A claim that was not read counts as
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

// nodesBeside returns the nodes on which the scheduler may put one more pod of a workload while
// this one is there, by name, or why there are none. The pod counts with all that it holds,
// including its host ports and its place in spread constraints.
func (su *surges) nodesBeside(p *pod, is wish) (nodes []*cluster.Node, why proof) {
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
