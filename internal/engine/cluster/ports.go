package cluster

import (
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Port is a host port that a pod uses. IP "0.0.0.0" conflicts with every address. As upstream, "::"
// does not.
type Port struct {
	IP       string
	Protocol v1.Protocol
	Port     int32
}

const anyIP = "0.0.0.0"

// portsOf lists the host ports of a pod.
func portsOf(pod *v1.Pod) []Port {
	var ports []Port
	for _, p := range rules.HostPorts(pod) {
		port := Port{p.HostIP, p.Protocol, p.HostPort}
		if port.IP == "" {
			port.IP = anyIP
		}
		if port.Protocol == "" {
			port.Protocol = v1.ProtocolTCP
		}
		ports = append(ports, port)
	}
	return ports
}

// Conflicts reports whether two ports cannot be used on the same node.
func (p Port) Conflicts(o Port) bool {
	return p.Port == o.Port && p.Protocol == o.Protocol && (p.IP == o.IP || p.IP == anyIP || o.IP == anyIP)
}
