package cluster

import v1 "k8s.io/api/core/v1"

// Port is a port of the node that a pod takes. IP "0.0.0.0" is every address; nothing else is ("::" is not, as upstream).
type Port struct {
	IP       string
	Protocol v1.Protocol
	Port     int32
}

const anyIP = "0.0.0.0"

// portsOf lists the host ports of containers and sidecars; other init containers have gone when the pod runs.
func portsOf(pod *v1.Pod) []Port {
	var ports []Port
	add := func(c *v1.Container) {
		for i := range c.Ports {
			p := &c.Ports[i]
			if p.HostPort <= 0 {
				continue
			}
			port := Port{p.HostIP, p.Protocol, p.HostPort}
			if port.IP == "" {
				port.IP = anyIP
			}
			if port.Protocol == "" {
				port.Protocol = v1.ProtocolTCP
			}
			ports = append(ports, port)
		}
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return ports
}

// Conflicts tells whether two ports cannot be taken on one node.
func (p Port) Conflicts(o Port) bool {
	return p.Port == o.Port && p.Protocol == o.Protocol && (p.IP == o.IP || p.IP == anyIP || o.IP == anyIP)
}
