package admit

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	declared "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/util/qos"
)

// Input is what an admission decision depends on.
type Input struct {
	Pod  *v1.Pod
	Node *v1.Node
	// Taken are the pods that the node runs or is about to run, without the pod in question.
	Taken []*v1.Pod
	// Pressure are the node's own conditions that keep pods away.
	Pressure []v1.NodeConditionType
	// AppArmor: the node's kernel enforces AppArmor profiles.
	AppArmor bool
	// Unassigned is why the node cannot give the pod's containers CPUs of their own; nil: it can,
	// or they need none.
	Unassigned *Refusal
}

// Refusal is why a pod is not admitted, as the kubelet words it.
type Refusal struct{ Reason, Message string }

// OfNode reports whether the pod is refused for the node's labels or taints, which others write.
func (r *Refusal) OfNode() bool { return r.Reason == "NodeAffinity" || r.Reason == "TaintToleration" }

// Answer is the decision: admitted, refused, or admitted once the victims have gone.
type Answer struct {
	Refused *Refusal
	Victims []*v1.Pod
}

// Ask decides whether the node admits the pod.
func Ask(in Input) Answer {
	if r := Unwelcome(in); r != nil {
		return Answer{Refused: r}
	}
	taken := make([]Demand, len(in.Taken))
	for i, pod := range in.Taken {
		taken[i] = DemandOf(pod, true)
	}
	if !Critical(in.Pod) {
		return Answer{Refused: Fit(in.Pod, in.Node, taken)}
	}
	if r := otherSystem(in.Pod); r != nil {
		return Answer{Refused: r}
	}
	wants := DemandOf(in.Pod, false)
	if r := misfit(in.Pod, wants, in.Node, taken); r != nil {
		return Answer{Refused: r}
	}
	if r := expelled(in.Pod, in.Node); r != nil && !Static(in.Pod) {
		return Answer{Refused: r}
	}
	short := lacking(wants, in.Node, taken)
	if len(short) == 0 {
		return Answer{}
	}
	victims, err := makeRoom(in.Pod, in.Taken, short)
	if err != nil {
		return Answer{Refused: &Refusal{"UnexpectedAdmissionError",
			fmt.Sprintf("Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: %v", err)}}
	}
	return Answer{Victims: victims}
}

// Unwelcome is the part of Ask that does not depend on other pods, and comes first.
func Unwelcome(in Input) *Refusal {
	if r := underPressure(in); r != nil {
		return r
	}
	if r := sysctls(in.Pod); r != nil {
		return r
	}
	if in.Unassigned != nil {
		return in.Unassigned
	}
	return unenforced(in)
}

// Fit is the part of Ask that depends only on the pod and the node, not on the state of the
// machine, so that simulated nodes can use it. It treats the pod as one from the API, whatever its
// annotations say.
func Fit(pod *v1.Pod, node *v1.Node, taken []Demand) *Refusal {
	if r := otherSystem(pod); r != nil {
		return r
	}
	wants := DemandOf(pod, false)
	if r := Room(wants, node, taken); r != nil {
		return r
	}
	if r := misfit(pod, wants, node, taken); r != nil {
		return r
	}
	return expelled(pod, node)
}

// Resize decides whether the node has room for the new resources of a pod that it has already
// admitted. never reports that they would not fit even on an empty node.
func Resize(pod *v1.Pod, node *v1.Node, others []Demand) (refused *Refusal, never bool) {
	wants := Demand{amounts: amounts(resource.PodRequests(pod, resource.PodResourcesOptions{}))}
	if refused = Room(wants, node, others); refused == nil {
		return nil, false
	}
	if alone := Room(wants, node, nil); alone != nil {
		return alone, true
	}
	return refused, false
}

// Static reports whether the pod comes from a file on the machine. The annotation is the node's: it
// overwrites what an API pod says there.
func Static(pod *v1.Pod) bool {
	source := pod.Annotations["kubernetes.io/config.source"]
	return source != "" && source != "api"
}

// systemCritical is the lowest priority of critical pods.
const systemCritical = 2_000_000_000

// Critical reports whether the pod is admitted even without room or under pressure.
func Critical(pod *v1.Pod) bool {
	_, mirror := pod.Annotations[v1.MirrorPodAnnotationKey]
	return mirror || Static(pod) || pod.Spec.Priority != nil && *pod.Spec.Priority >= systemCritical
}

// underPressure refuses BestEffort pods on a node short of memory, and all pods on a node short of
// anything else.
func underPressure(in Input) *Refusal {
	if len(in.Pressure) == 0 || Critical(in.Pod) {
		return nil
	}
	if len(in.Pressure) == 1 && in.Pressure[0] == v1.NodeMemoryPressure {
		taint := &v1.Taint{Key: v1.TaintNodeMemoryPressure, Effect: v1.TaintEffectNoSchedule}
		if qos.GetPodQOS(in.Pod) != v1.PodQOSBestEffort || corev1.TolerationsTolerateTaint(klog.Logger{}, in.Pod.Spec.Tolerations, taint, true) {
			return nil
		}
	}
	return &Refusal{"Evicted", fmt.Sprintf("The node had condition: %v. ", in.Pressure)}
}

// safeSysctls are namespaced: they affect no other pod.
var safeSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
	"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time",
	"net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
}

func sysctls(pod *v1.Pod) *Refusal {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		name := strings.ReplaceAll(s.Name, "/", ".")
		switch {
		case !slices.Contains(safeSysctls, name):
			return &Refusal{"SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowlisted", s.Name)}
		case strings.HasPrefix(name, "net.") && pod.Spec.HostNetwork:
			return &Refusal{"SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowed with host net enabled", s.Name)}
		case strings.HasPrefix(name, "kernel.shm") && pod.Spec.HostIPC:
			return &Refusal{"SysctlForbidden", fmt.Sprintf("forbidden sysctl: %q not allowed with host ipc enabled", s.Name)}
		}
	}
	return nil
}

// unenforced refuses a pod that requests confinement that the node cannot provide.
func unenforced(in Input) *Refusal {
	if in.Pod.Status.Phase != v1.PodRunning && !in.AppArmor && confined(in.Pod) {
		return &Refusal{"AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host"}
	}
	if r := undeclared(in); r != nil {
		return r
	}
	sc, features := in.Pod.Spec.SecurityContext, in.Node.Status.Features
	if sc == nil || sc.SupplementalGroupsPolicy == nil || *sc.SupplementalGroupsPolicy != v1.SupplementalGroupsPolicyStrict {
		return nil
	}
	if features == nil || features.SupplementalGroupsPolicy == nil || !*features.SupplementalGroupsPolicy {
		return &Refusal{"SupplementalGroupsPolicyNotSupported", "SupplementalGroupsPolicy=Strict is not supported in this node"}
	}
	return nil
}

// followed is the version of Kubernetes by which it is known what a pod needs of a node.
var followed = version.MustParseSemantic("1.36.3")

// undeclared refuses a pod that needs a feature that the node does not declare.
func undeclared(in Input) *Refusal {
	needs, err := declared.DefaultFramework.InferForPodScheduling(&declared.PodInfo{Spec: &in.Pod.Spec, Status: &in.Pod.Status}, followed)
	if err != nil || needs.IsEmpty() {
		return nil
	}
	match, err := declared.DefaultFramework.MatchNode(needs, in.Node)
	if err != nil || match.IsMatch {
		return nil
	}
	return &Refusal{"PodFeatureUnsupported", "Pod requires node features that are not available: " + strings.Join(match.UnsatisfiedRequirements, ", ")}
}

// confined reports whether the pod or a container requests an AppArmor profile. The API server
// copies the old annotations into the fields.
func confined(pod *v1.Pod) bool {
	profiles := func(p *v1.AppArmorProfile) bool { return p != nil && p.Type != v1.AppArmorProfileTypeUnconfined }
	if sc := pod.Spec.SecurityContext; sc != nil && profiles(sc.AppArmorProfile) {
		return true
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if sc := list[i].SecurityContext; sc != nil && profiles(sc.AppArmorProfile) {
				return true
			}
		}
	}
	return false
}

func otherSystem(pod *v1.Pod) *Refusal {
	// Upstream looks at the pod's label of this name, not at its selector.
	if os, ok := pod.Labels[v1.LabelOSStable]; ok && os != "linux" {
		return &Refusal{"PodOSSelectorNodeLabelDoesNotMatch", "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"}
	}
	if pod.Spec.OS != nil && pod.Spec.OS.Name != v1.Linux {
		return &Refusal{"PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS"}
	}
	return nil
}

// misfit returns what keeps the pod off this node, other than a lack of room.
func misfit(pod *v1.Pod, wants Demand, node *v1.Node, taken []Demand) *Refusal {
	if matches, _ := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); !matches {
		return predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector")
	}
	if pod.Spec.NodeName != "" && pod.Spec.NodeName != node.Name {
		return predicate("NodeName", "node(s) didn't match the requested node name")
	}
	for _, other := range taken {
		for _, port := range other.ports {
			if slices.ContainsFunc(wants.ports, port.conflicts) {
				return predicate("NodePorts", "node(s) didn't have free ports for the requested pod ports")
			}
		}
	}
	return nil
}

// expelled refuses a pod that a taint of the node would evict at once.
func expelled(pod *v1.Pod, node *v1.Node) *Refusal {
	noExecute := func(t *v1.Taint) bool { return t.Effect == v1.TaintEffectNoExecute }
	if _, untolerated := corev1.FindMatchingUntoleratedTaint(klog.Logger{}, node.Spec.Taints, pod.Spec.Tolerations, noExecute, true); untolerated {
		return predicate("TaintToleration", "node(s) had taints that the pod didn't tolerate")
	}
	return nil
}

func predicate(name, why string) *Refusal {
	return &Refusal{name, fmt.Sprintf("Predicate %s failed: %s", name, why)}
}
