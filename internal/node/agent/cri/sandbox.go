package cri

import (
	"errors"
	"maps"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// Place is what a pod's sandbox gets from the node.
type Place struct {
	CgroupParent string
	LogDir       string
	DNS          *runtimeapi.DNSConfig
	Hostname     string
	Overhead     *runtimeapi.LinuxContainerResources
	Resources    *runtimeapi.LinuxContainerResources
}

// PodLogs is the folder of a pod's logs.
func PodLogs(logDir string, pod *v1.Pod) string {
	return filepath.Join(logDir, strings.Join([]string{pod.Namespace, pod.Name, string(pod.UID)}, "_"))
}

// SandboxConfig configures a pod's sandbox.
func (r *Runtime) SandboxConfig(pod *v1.Pod, attempt int, place Place) (*runtimeapi.PodSandboxConfig, error) {
	if pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers {
		return nil, errors.New("hostUsers: false: user namespaces are not supported on this node")
	}
	annotations := maps.Clone(pod.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[annotationNode] = r.Node
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: uint32(attempt),
		},
		LogDirectory: PodLogs(place.LogDir, pod),
		DnsConfig:    place.DNS,
		PortMappings: portMappings(pod),
		Labels:       podLabels(pod),
		Annotations:  annotations,
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent:    place.CgroupParent,
			SecurityContext: sandboxSecurity(pod),
			Sysctls:         map[string]string{},
			Overhead:        place.Overhead,
			Resources:       place.Resources,
		},
	}
	if !pod.Spec.HostNetwork {
		config.Hostname = place.Hostname
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			config.Linux.Sysctls[s.Name] = s.Value
		}
	}
	return config, nil
}

func portMappings(pod *v1.Pod) []*runtimeapi.PortMapping {
	if pod.Spec.HostNetwork {
		return nil
	}
	var out []*runtimeapi.PortMapping
	add := func(c *v1.Container) {
		for _, p := range c.Ports {
			if p.HostPort == 0 {
				continue
			}
			protocol := runtimeapi.Protocol_TCP
			switch p.Protocol {
			case v1.ProtocolUDP:
				protocol = runtimeapi.Protocol_UDP
			case v1.ProtocolSCTP:
				protocol = runtimeapi.Protocol_SCTP
			}
			out = append(out, &runtimeapi.PortMapping{Protocol: protocol, ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP})
		}
	}
	for i := range pod.Spec.InitContainers {
		if lifecycle.Sidecar(&pod.Spec.InitContainers[i]) {
			add(&pod.Spec.InitContainers[i])
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}

func namespaces(pod *v1.Pod) *runtimeapi.NamespaceOption {
	mode := func(host bool, otherwise runtimeapi.NamespaceMode) runtimeapi.NamespaceMode {
		if host {
			return runtimeapi.NamespaceMode_NODE
		}
		return otherwise
	}
	pid := runtimeapi.NamespaceMode_CONTAINER
	if shared := pod.Spec.ShareProcessNamespace; shared != nil && *shared {
		pid = runtimeapi.NamespaceMode_POD
	}
	return &runtimeapi.NamespaceOption{
		Network: mode(pod.Spec.HostNetwork, runtimeapi.NamespaceMode_POD),
		Pid:     mode(pod.Spec.HostPID, pid),
		Ipc:     mode(pod.Spec.HostIPC, runtimeapi.NamespaceMode_POD),
	}
}

func sandboxSecurity(pod *v1.Pod) *runtimeapi.LinuxSandboxSecurityContext {
	out := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(pod),
		Privileged:       anyPrivileged(pod),
		// The sandbox runs nothing of the user's, so it gets the runtime's default profile.
		Seccomp:            &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		SupplementalGroups: groups(pod),
	}
	if sc := pod.Spec.SecurityContext; sc != nil {
		out.RunAsUser, out.RunAsGroup = int64Value(sc.RunAsUser), int64Value(sc.RunAsGroup)
		out.SelinuxOptions = selinux(sc.SELinuxOptions)
		out.SupplementalGroupsPolicy = groupsPolicy(pod)
	}
	return out
}

func anyPrivileged(pod *v1.Pod) bool {
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if sc := list[i].SecurityContext; sc != nil && sc.Privileged != nil && *sc.Privileged {
				return true
			}
		}
	}
	return false
}

// groups are the supplementary groups of all processes of the pod, besides those of the image.
func groups(pod *v1.Pod) []int64 {
	var out []int64
	if sc := pod.Spec.SecurityContext; sc != nil {
		if sc.FSGroup != nil {
			out = append(out, *sc.FSGroup)
		}
		out = append(out, sc.SupplementalGroups...)
	}
	return out
}

func groupsPolicy(pod *v1.Pod) runtimeapi.SupplementalGroupsPolicy {
	if sc := pod.Spec.SecurityContext; sc != nil && sc.SupplementalGroupsPolicy != nil {
		return runtimeapi.SupplementalGroupsPolicy(runtimeapi.SupplementalGroupsPolicy_value[string(*sc.SupplementalGroupsPolicy)])
	}
	return runtimeapi.SupplementalGroupsPolicy_Merge
}

func int64Value(v *int64) *runtimeapi.Int64Value {
	if v == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *v}
}

func selinux(o *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}
