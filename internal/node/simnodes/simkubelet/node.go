// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"cmp"
	"fmt"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// reasonSimulated marks conditions requested by an annotation, so that they can be withdrawn when
// no longer requested. The heartbeat times of marked conditions are renewed.
const reasonSimulated = "SimulatedByAnnotation"

// Node returns the object for registering a node: already Ready, like that of a kubelet with its
// runtime up. It includes the pod range, so that no controller needs to assign one.
func (s *Shape) Node(number, lot int, now time.Time) *v1.Node {
	name := s.Name(number)
	podRange := s.podRange(lot).String()
	node := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: s.nodeLabels(number),
			// Kubelets set this annotation for clients that read it.
			Annotations: map[string]string{"node.alpha.kubernetes.io/ttl": "0"},
		},
		Spec: v1.NodeSpec{
			PodCIDR:  podRange,
			PodCIDRs: []string{podRange},
			Taints:   slices.Clone(s.Taints),
		},
	}
	node.Status = s.nodeStatus(node, addOffset(nodeNetwork.Addr(), uint32(lot)).String(), nil, now)
	return node
}

// nodeLabels returns the labels of a kubelet on Linux, the zone label, and the shape's own labels,
// which take precedence.
func (s *Shape) nodeLabels(number int) map[string]string {
	labels := map[string]string{
		v1.LabelHostname:           s.Name(number),
		v1.LabelOSStable:           "linux",
		v1.LabelArchStable:         "amd64",
		"beta.kubernetes.io/os":    "linux",
		"beta.kubernetes.io/arch":  "amd64",
		v1.LabelInstanceTypeStable: "simulated",
		LabelSimulated:             "true",
	}

	if s.Zones > 0 {
		labels[v1.LabelTopologyZone] = fmt.Sprintf("z%d", (number-1)%s.Zones+1)
		labels[v1.LabelTopologyRegion] = s.Region
	}

	maps.Copy(labels, s.Labels)
	return labels
}

// nodeStatus returns the status that the node's kubelet would report now, based on the status in
// the API. Resources that other writers added to the capacity are kept. Conditions keep their
// transition times, and heartbeat times are not changed (renewHeartbeats does that). The result is
// a copy.
func (s *Shape) nodeStatus(node *v1.Node, address string, pressed []v1.NodeConditionType, now time.Time) v1.NodeStatus {
	// The object belongs to the watch; only the copy is changed.
	st := node.Status.DeepCopy()
	if st.Capacity == nil {
		st.Capacity = v1.ResourceList{}
	}
	// Resources not named by the shape stay: a user patched them in, to try extended resources.
	maps.Copy(st.Capacity, s.Capacity)
	// Nothing is reserved for the system. A resource removed from the capacity is also removed
	// here.
	st.Allocatable = st.Capacity.DeepCopy()
	st.Addresses = []v1.NodeAddress{
		{Type: v1.NodeInternalIP, Address: address},
		{Type: v1.NodeHostName, Address: node.Name},
	}
	// This is the kubelet's default port, but a simulated node does not listen on it.
	st.DaemonEndpoints.KubeletEndpoint.Port = 10250
	st.NodeInfo = v1.NodeSystemInfo{
		MachineID:               node.Name,
		SystemUUID:              node.Name,
		BootID:                  node.Name,
		KernelVersion:           "simulated",
		OSImage:                 "Berth simulated node",
		ContainerRuntimeVersion: "berth://simulated",
		KubeletVersion:          s.Version,
		OperatingSystem:         "linux",
		Architecture:            "amd64",
	}
	s.nodeConditions(node, st, pressed, now)
	return *st
}

// nodeCondition is a condition with its reasons and messages for a healthy and an unhealthy node.
// healthy is the status without a problem: True for Ready, False for pressure.
type nodeCondition struct {
	kind                    v1.NodeConditionType
	healthy                 v1.ConditionStatus
	reason, message         string
	sickReason, sickMessage string
}

// kubeletConditions are reported by every kubelet, in the kubelet's order: Ready is last.
var kubeletConditions = []nodeCondition{
	{v1.NodeMemoryPressure, v1.ConditionFalse,
		"KubeletHasSufficientMemory", "kubelet has sufficient memory available",
		"KubeletHasInsufficientMemory", "kubelet has insufficient memory available"},
	{v1.NodeDiskPressure, v1.ConditionFalse,
		"KubeletHasNoDiskPressure", "kubelet has no disk pressure",
		"KubeletHasDiskPressure", "kubelet has disk pressure"},
	{v1.NodePIDPressure, v1.ConditionFalse,
		"KubeletHasSufficientPID", "kubelet has sufficient PID available",
		"KubeletHasInsufficientPID", "kubelet has insufficient PID available"},
	{v1.NodeReady, v1.ConditionTrue,
		"KubeletReady", "kubelet is posting ready status",
		"KubeletNotReady", "not ready because the annotation " + AnnotationConditions + " requires it"},
}

// nodeConditions sets the kubelet's conditions, and those requested by the annotation, which
// overrides measured pressure. A condition no longer requested becomes False rather than
// disappearing, so that watchers notice the change. Conditions of other writers are not touched.
func (s *Shape) nodeConditions(node *v1.Node, st *v1.NodeStatus, pressed []v1.NodeConditionType, now time.Time) {
	// A malformed annotation is ignored; `berth nodes condition` never writes one.
	asked, _ := ParseConditions(node.Annotations[AnnotationConditions])
	for _, c := range kubeletConditions {
		// After this loop, asked holds only types that kubelets do not report.
		status, ok := asked[c.kind]
		delete(asked, c.kind)
		if !ok && slices.Contains(pressed, c.kind) {
			status, ok = v1.ConditionTrue, true
		}
		if !ok || status == c.healthy {
			setNodeCondition(st, c.kind, c.healthy, c.reason, c.message, now)
		} else {
			setNodeCondition(st, c.kind, status, c.sickReason, c.sickMessage, now)
		}
	}
	const message = "set by the annotation " + AnnotationConditions
	for i := range st.Conditions {
		c := &st.Conditions[i]
		if _, still := asked[c.Type]; c.Reason == reasonSimulated && !still && c.Status != v1.ConditionFalse {
			setNodeCondition(st, c.Type, v1.ConditionFalse, reasonSimulated, "no longer "+message, now)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(asked)) {
		setNodeCondition(st, kind, asked[kind], reasonSimulated, message, now)
	}
}

// setNodeCondition sets a condition, and its transition time if its status changes. A new one is
// added at the end.
func setNodeCondition(st *v1.NodeStatus, kind v1.NodeConditionType, status v1.ConditionStatus, reason, message string, now time.Time) {
	i := slices.IndexFunc(st.Conditions, func(c v1.NodeCondition) bool { return c.Type == kind })
	if i < 0 {
		i = len(st.Conditions)
		st.Conditions = append(st.Conditions, v1.NodeCondition{
			Type: kind, LastHeartbeatTime: toSeconds(now),
		})
	}
	c := &st.Conditions[i]
	if c.Status != status {
		c.LastTransitionTime = toSeconds(now)
		c.LastHeartbeatTime = toSeconds(now)
	}
	c.Status, c.Reason, c.Message = status, reason, message
}

// renewHeartbeats renews the heartbeat times of the conditions owned by the node's kubelet. It
// changes st.
func renewHeartbeats(st *v1.NodeStatus, now time.Time) {
	for i := range st.Conditions {
		c := &st.Conditions[i]
		own := slices.ContainsFunc(kubeletConditions, func(k nodeCondition) bool { return k.kind == c.Type })
		// Other writers renew the heartbeats of their own conditions.
		if own || c.Reason == reasonSimulated {
			c.LastHeartbeatTime = toSeconds(now)
		}
	}
}

// labelsToAdd returns the labels that the node lacks or has with another value, for example after a
// run with other zones or labels. Labels added by other writers are not touched.
func (s *Shape) labelsToAdd(node *v1.Node, number int) map[string]string {
	missing := map[string]string{}
	for k, v := range s.nodeLabels(number) {
		if have, ok := node.Labels[k]; !ok || have != v {
			missing[k] = v
		}
	}
	return missing
}

// toSeconds truncates a time to whole seconds, like the API.
func toSeconds(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

// inOrder returns pods in the order of a kubelet after a restart: started pods first, since they
// are not admitted again, then by age. The result is new, so that pods may be added and removed
// during an iteration.
func inOrder(pods map[types.UID]*pod) []*pod {
	return slices.SortedFunc(maps.Values(pods), func(a, b *pod) int { return olderFirst(a.object, b.object) })
}

// olderFirst compares two pods for inOrder. The order is total and thus reproducible.
func olderFirst(a, b *v1.Pod) int {
	return cmp.Or(
		rules.FalseFirst(a.Status.StartTime == nil, b.Status.StartTime == nil),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
	)
}

// isNewer compares versions of one object. Incomparable versions count as newer, since the watch is
// in order. A watch event and the response to a write of the same object can arrive in either
// order.
func isNewer(is, than string) bool {
	order, err := resourceversion.CompareResourceVersion(is, than)
	return err != nil || order > 0
}

// olderThan reports whether a list at this version is recent enough to include the object at its
// version. If the versions are incomparable, it returns false: an object is not considered deleted
// without proof.
func olderThan(object, list string) bool {
	order, err := resourceversion.CompareResourceVersion(object, list)
	return err == nil && order <= 0
}
