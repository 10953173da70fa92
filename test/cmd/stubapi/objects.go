// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const (
	podMilliCPU = 100
	podsPerNode = 110
	zones       = 100
	// podsPerApp is the number of pods with the same label app.
	podsPerApp = 1000
	namespace  = "scale"
)

// nodeMilliCPU returns the allocatable CPU of a node. There are four sizes.
func nodeMilliCPU(index int32) int32 { return []int32{15_850, 31_850, 63_700, 95_600}[index/zones%4] }

// encoder encodes records as objects in the protobuf format. It is used by one goroutine.
type encoder struct {
	node  v1.Node
	pod   v1.Pod
	lease coordinationv1.Lease
}

// marshaler is an API object in the protobuf format.
type marshaler interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

func newEncoder() *encoder {
	return &encoder{node: nodeTemplate(), pod: podTemplate(), lease: leaseTemplate()}
}

// created is the time of creation of all nodes, which is the same in lists and watches.
var created = metav1.NewTime(time.Now().Truncate(time.Second))

// nodeTemplate returns a node as a kubelet writes it, with eight images and the managed fields of
// the kubelet.
func nodeTemplate() v1.Node {
	n := v1.Node{}
	n.CreationTimestamp = created
	n.Labels = map[string]string{
		"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
		"node.kubernetes.io/instance-type": "m7i.8xlarge", "beta.kubernetes.io/instance-type": "m7i.8xlarge",
		v1.LabelTopologyRegion: "region-1", "failure-domain.beta.kubernetes.io/region": "region-1",
		"example.com/pool": "general", "example.com/capacity-type": "on-demand",
	}
	n.Annotations = map[string]string{
		"node.alpha.kubernetes.io/ttl":                           "0",
		"volumes.kubernetes.io/controller-managed-attach-detach": "true",
		"csi.volume.kubernetes.io/nodeid":                        `{"ebs.csi.aws.com":"i-0123456789abcdef0"}`,
	}
	n.ManagedFields = managedFields("kubelet", "status", 1400)
	n.Status.NodeInfo = v1.NodeSystemInfo{
		MachineID: "ec2f5a3b1c9d4e6f8a7b6c5d4e3f2a1b", SystemUUID: "ec2f5a3b-1c9d-4e6f-8a7b-6c5d4e3f2a1b",
		BootID: "0c9b4d6e-2f1a-4b3c-8d7e-6f5a4b3c2d1e", KernelVersion: "6.12.40-64.114.amzn2023.x86_64",
		OSImage: "Amazon Linux 2023.9.20261101", ContainerRuntimeVersion: "containerd://2.2.1", KubeletVersion: "v1.37.2",
		OperatingSystem: "linux", Architecture: "amd64",
	}
	for i := range 8 {
		name := fmt.Sprintf("registry.example.com/platform/component-%d", i)
		n.Status.Images = append(n.Status.Images, v1.ContainerImage{
			Names: []string{name + "@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", name + ":v1.2.3"}, SizeBytes: 40 << 20,
		})
	}
	return n
}

// managedFields returns an entry with the given number of bytes.
func managedFields(manager, subresource string, size int) []metav1.ManagedFieldsEntry {
	raw := []byte(`{"f:status":{`)
	for i := 0; len(raw) < size; i++ {
		raw = fmt.Appendf(raw, `"f:field%d":{".":{},"f:value":{}},`, i)
	}
	raw = append(raw[:len(raw)-1], "}}"...)
	return []metav1.ManagedFieldsEntry{{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: ptr.To(metav1.Now()),
		FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: raw}, Subresource: subresource,
	}}
}

// podTemplate returns a pod as a ReplicaSet creates it.
func podTemplate() v1.Pod {
	p := v1.Pod{}
	p.Namespace = namespace
	p.ManagedFields = managedFields("kube-controller-manager", "", 900)
	p.Spec = v1.PodSpec{
		Containers: []v1.Container{{
			Name: "app", Image: "registry.example.com/platform/component-1:v1.2.3", ImagePullPolicy: v1.PullIfNotPresent,
			Env: []v1.EnvVar{{Name: "LOG_LEVEL", Value: "info"}, {Name: "PORT", Value: "8080"}},
			Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
				v1.ResourceCPU: *resource.NewMilliQuantity(podMilliCPU, resource.DecimalSI), v1.ResourceMemory: resource.MustParse("128Mi"),
			}},
			VolumeMounts: []v1.VolumeMount{
				{Name: "kube-api-access-x7k2p", ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"},
			},
			TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: v1.TerminationMessageReadFile,
		}},
		Volumes: []v1.Volume{{Name: "kube-api-access-x7k2p", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{
			DefaultMode: ptr.To(int32(420)), Sources: []v1.VolumeProjection{
				{ServiceAccountToken: &v1.ServiceAccountTokenProjection{ExpirationSeconds: ptr.To(int64(3607)), Path: "token"}},
				{ConfigMap: &v1.ConfigMapProjection{
					LocalObjectReference: v1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []v1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
				}},
			}}}}},
		RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: ptr.To(int64(30)), DNSPolicy: v1.DNSClusterFirst,
		ServiceAccountName: "default", DeprecatedServiceAccount: "default", SecurityContext: &v1.PodSecurityContext{},
		SchedulerName: v1.DefaultSchedulerName, Priority: ptr.To(int32(0)), EnableServiceLinks: ptr.To(true),
		PreemptionPolicy: ptr.To(v1.PreemptLowerPriority),
		Tolerations: []v1.Toleration{
			{Key: v1.TaintNodeNotReady, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: ptr.To(int64(300))},
			{Key: v1.TaintNodeUnreachable, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: ptr.To(int64(300))},
		},
	}
	p.Status = v1.PodStatus{Phase: v1.PodPending, QOSClass: v1.PodQOSBurstable}
	return p
}

func leaseTemplate() coordinationv1.Lease {
	l := coordinationv1.Lease{}
	l.Namespace = v1.NamespaceNodeLease
	l.ManagedFields = managedFields("kubelet", "", 300)
	l.Spec.LeaseDurationSeconds = ptr.To(int32(40))
	return l
}

// uid returns a UID with a kind's digit and the index.
func uid(kind byte, index int32) types.UID {
	return types.UID(fmt.Sprintf("%c0000000-0000-4000-8000-%012d", kind, index))
}

// nodeAt returns a node with its last heartbeat. The result is valid until the next call.
func (e *encoder) nodeAt(index int32, version int64, marks uint8, beat time.Time) *v1.Node {
	n, name := &e.node, nodeName(index)
	n.Name, n.UID, n.ResourceVersion = name, uid('a', index), strconv.FormatInt(version, 10)
	zone := fmt.Sprintf("zone-%03d", index%zones)
	n.Labels[v1.LabelHostname], n.Labels[v1.LabelTopologyZone], n.Labels["failure-domain.beta.kubernetes.io/zone"] = name, zone, zone
	address := fmt.Sprintf("10.%d.%d.%d", index>>16&255, index>>8&255, index&255)
	n.Spec = v1.NodeSpec{PodCIDR: address + "/24", PodCIDRs: []string{address + "/24"}, ProviderID: "aws:///" + zone + "/" + name}
	n.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: address}, {Type: v1.NodeHostName, Address: name}}
	cpu := int64(nodeMilliCPU(index))
	n.Status.Allocatable = v1.ResourceList{
		v1.ResourceCPU: *resource.NewMilliQuantity(cpu, resource.DecimalSI), v1.ResourceMemory: *resource.NewQuantity(cpu*4<<20, resource.BinarySI),
		v1.ResourcePods: *resource.NewQuantity(podsPerNode, resource.DecimalSI), v1.ResourceEphemeralStorage: *resource.NewQuantity(100<<30, resource.BinarySI),
		"hugepages-1Gi": {}, "hugepages-2Mi": {},
	}
	n.Status.Capacity = n.Status.Allocatable
	now, ready, pressure := metav1.NewTime(beat), v1.ConditionTrue, v1.ConditionFalse
	if marks&markUnknown != 0 {
		ready, pressure = v1.ConditionUnknown, v1.ConditionUnknown
	}
	if marks&markNoSchedule != 0 {
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoSchedule, TimeAdded: &created})
	}
	if marks&markNoExecute != 0 {
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute, TimeAdded: &created})
	}
	n.Status.Conditions = n.Status.Conditions[:0]
	for _, kind := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{
			Type: kind, Status: pressure, LastHeartbeatTime: now, LastTransitionTime: n.CreationTimestamp,
			Reason: "KubeletHasNo" + string(kind), Message: "kubelet has no such pressure",
		})
	}
	n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{
		Type: v1.NodeReady, Status: ready, LastHeartbeatTime: now, LastTransitionTime: n.CreationTimestamp,
		Reason: "KubeletReady", Message: "kubelet is posting ready status",
	})
	return n
}

// podAt returns a pod on a node, -1 for none. The result is valid until the next call.
func (e *encoder) podAt(index, node int32, version int64, r podRecord, b *batch) *v1.Pod {
	p := &e.pod
	app := fmt.Sprintf("%s-%d", b.Name, index/podsPerApp)
	p.Name, p.UID, p.ResourceVersion = podName(index), uid('b', index), strconv.FormatInt(version, 10)
	p.CreationTimestamp = metav1.NewTime(time.UnixMilli(r.at))
	p.Labels = map[string]string{"app": app, "pod-template-hash": "6d4cf56db6"}
	p.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app + "-6d4cf56db6", UID: uid('c', index/podsPerApp), Controller: ptr.To(true),
	}}
	p.Spec.NodeName, p.Spec.TopologySpreadConstraints, p.Status.Conditions = "", nil, nil
	if b.Spread {
		p.Spec.TopologySpreadConstraints = []v1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: v1.LabelTopologyZone, WhenUnsatisfiable: v1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		}}
	}
	switch {
	case node >= 0:
		p.Spec.NodeName = nodeName(node)
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionTrue, LastTransitionTime: p.CreationTimestamp}}
	case r.status > 0:
		p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable}}
	}
	return p
}

// leaseAt returns the Lease of a node. The result is valid until the next call.
func (e *encoder) leaseAt(index int32, version int64, renewed time.Time) *coordinationv1.Lease {
	l, name := &e.lease, nodeName(index)
	l.Name, l.UID, l.ResourceVersion = name, uid('d', index), strconv.FormatInt(version, 10)
	l.Spec.HolderIdentity, l.Spec.RenewTime = ptr.To(name), ptr.To(metav1.NewMicroTime(renewed))
	return l
}

// appendField appends a length-delimited field to a message.
func appendField(to []byte, number protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, number, protowire.BytesType), content)
}

// appendObject appends an object as a length-delimited field.
func appendObject(to []byte, number protowire.Number, o marshaler) []byte {
	size := o.Size()
	to = protowire.AppendVarint(protowire.AppendTag(to, number, protowire.BytesType), uint64(size))
	from := len(to)
	to = append(to, make([]byte, size)...)
	if _, err := o.MarshalToSizedBuffer(to[from:]); err != nil {
		panic(err)
	}
	return to
}

// appendEnvelope appends the header of an object in the protobuf format: the magic number and a
// runtime.Unknown, whose field raw contains the object.
func appendEnvelope(to []byte, version, kind string) []byte {
	meta := appendField(appendField(nil, 1, []byte(version)), 2, []byte(kind))
	return appendField(append(to, "k8s\x00"...), 1, meta)
}
