// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"hash/maphash"
	"math"
	"net"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Port is a host port used by a pod. IP "0.0.0.0" conflicts with every address. As in upstream,
// "::" does not.
type Port struct {
	IP       string
	Protocol v1.Protocol
	Port     int32
}

const anyIP = "0.0.0.0"

// Ports are the host ports of a pod, without duplicates; nil if it has none.
type Ports struct {
	List []Port
	// keys represent the ports as numbers, in the ascending order of List, because thousands of
	// ports may be compared with the ports of all pods of a cluster. From the highest bits down, a
	// key is the port, a hash of the protocol, and a hash of the address, or 0 for all addresses.
	keys []uint64
}

var portSeed = maphash.MakeSeed() // an attacker cannot make up addresses with equal hashes

// sortKey orders ports by number, then by protocol, then by address; see Ports.keys. Only anyIP has
// 0 in the low 32 bits.
func (p Port) sortKey() uint64 {
	key := uint64(p.Port)<<40 | maphash.String(portSeed, string(p.Protocol))&0xff<<32
	if p.IP != anyIP {
		key |= maphash.String(portSeed, p.IP)&math.MaxUint32 | 1
	}
	return key
}

// PortOf returns the host port of a container's port.
func PortOf(p *v1.ContainerPort) Port {
	port := Port{p.HostIP, p.Protocol, p.HostPort}
	port.IP = cmp.Or(port.IP, anyIP)
	port.Protocol = cmp.Or(port.Protocol, v1.ProtocolTCP)
	return port
}

// String formats the port as ADDRESS:NUMBER/PROTOCOL, omitting defaults.
func (p Port) String() string {
	text := strconv.Itoa(int(p.Port))
	if p.IP != anyIP {
		text = net.JoinHostPort(p.IP, text)
	}
	if p.Protocol != v1.ProtocolTCP {
		text += "/" + string(p.Protocol)
	}
	return text
}

// portsOf lists the host ports of a pod.
func portsOf(pod *v1.Pod) *Ports {
	list := rules.Mapped(rules.HostPorts(pod), func(p v1.ContainerPort) Port { return PortOf(&p) })
	if list == nil {
		return nil
	}
	slices.SortFunc(list, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.sortKey(), b.sortKey()), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.IP, b.IP))
	})
	ports := &Ports{List: slices.Compact(list)}
	ports.keys = rules.Mapped(ports.List, Port.sortKey)
	return ports
}

// Conflict reports whether two pods cannot be on one node because of their ports. It walks both
// lists in parallel, so that the cost is the sum rather than the product of their lengths. A nil
// list conflicts with nothing.
func (p *Ports) Conflict(o *Ports) bool {
	if p == nil || o == nil {
		return false
	}
	a, b := p.keys, o.keys
	for i, j := 0, 0; i < len(a) && j < len(b); {
		x, y := a[i], b[j]
		switch {
		// The keys are equal, or have the same port and protocol and one side covers all addresses.
		// Compare the ports themselves to find a real conflict.
		case x == y || x>>32 == y>>32 && (uint32(x) == 0 || uint32(y) == 0):
			to, toOther := p.groupEnd(i), o.groupEnd(j)
			if slices.ContainsFunc(p.List[i:to], func(p Port) bool { return slices.ContainsFunc(o.List[j:toOther], p.Conflicts) }) {
				return true
			}
			i, j = to, toOther // the hashes are equal but the contents differ
		case x < y:
			i++
		default:
			j++
		}
	}
	return false
}

// groupEnd returns the end of the keys with the port and protocol of the i-th key.
func (p *Ports) groupEnd(i int) int {
	to := i + 1
	for to < len(p.keys) && p.keys[to]>>32 == p.keys[i]>>32 {
		to++
	}
	return to
}

// Conflicts reports whether two ports cannot be used on the same node.
func (p Port) Conflicts(o Port) bool {
	return p.Port == o.Port && p.Protocol == o.Protocol && (p.IP == o.IP || p.IP == anyIP || o.IP == anyIP)
}
