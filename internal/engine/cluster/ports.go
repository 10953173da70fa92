package cluster

import (
	"cmp"
	"slices"

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

// portsOf lists the host ports of a pod, in order; see compare.
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
	slices.SortFunc(ports, func(a, b Port) int { return cmp.Or(a.compare(b), a.compareIP(b)) })
	return slices.Compact(ports)
}

func (p Port) compare(o Port) int {
	return cmp.Or(cmp.Compare(p.Port, o.Port), cmp.Compare(p.Protocol, o.Protocol))
}

// compareIP puts every address before any.
func (p Port) compareIP(o Port) int {
	if p.IP == anyIP || o.IP == anyIP {
		return cmp.Compare(btoi(p.IP != anyIP), btoi(o.IP != anyIP))
	}
	return cmp.Compare(p.IP, o.IP)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Conflict tells whether two pods cannot be on one node for their ports, which are in order. It
// goes through both lists once: thousands of ports must not cost the product.
func Conflict(a, b []Port) bool {
	for len(a) > 0 && len(b) > 0 {
		switch order := a[0].compare(b[0]); {
		case order == 0 && a[0].Conflicts(b[0]):
			return true
		case order < 0 || order == 0 && a[0].compareIP(b[0]) < 0:
			a = a[1:]
		default:
			b = b[1:]
		}
	}
	return false
}

// Conflicts reports whether two ports cannot be used on the same node.
func (p Port) Conflicts(o Port) bool {
	return p.Port == o.Port && p.Protocol == o.Protocol && (p.IP == o.IP || p.IP == anyIP || o.IP == anyIP)
}
