// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"
)

// addressLots assigns lots to nodes. A lot is a number that determines a node's address and pod
// range. The zero value has no assigned lots.
//
// In a new cluster, a node's lot is its number. In other clusters, real nodes and simulated nodes
// of other runs may use some of the addresses.
type addressLots struct {
	taken map[int]struct{}
	last  int // lot assigned last
}

// takeOf marks the lots taken by an existing node, which contain its address and its pod ranges.
func (l *addressLots) takeOf(shape *Shape, n *v1.Node) {
	if l.taken == nil {
		l.taken = map[int]struct{}{}
	}
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && nodeNetwork.Contains(ip) {
			l.taken[offsetIn(nodeNetwork, ip)] = struct{}{}
		}
	}
	for _, cidr := range n.Spec.PodCIDRs {
		other, err := netip.ParsePrefix(cidr)
		if err != nil || !podNetwork.Overlaps(other) {
			continue
		}
		first, size := 0, 1<<(32-podNetwork.Bits())
		if other.Bits() > podNetwork.Bits() {
			first, size = offsetIn(podNetwork, other.Masked().Addr()), 1<<(32-other.Bits())
		}
		// The range may cover several lots, or only a part of one.
		scale := 32 - shape.podRangeBits()
		for lot := first >> scale; lot <= (first+size-1)>>scale; lot++ {
			l.taken[lot] = struct{}{}
		}
	}
}

// take returns the next free lot; 0 if there is none.
func (l *addressLots) take(shape *Shape) int {
	for l.last < shape.MaxCount() {
		l.last++
		if _, taken := l.taken[l.last]; !taken {
			return l.last
		}
	}
	return 0
}

// ipPool assigns the addresses of a node's pod range in cyclic order, so that an address is not
// reused right after it was freed. The zero value has an empty range and assigns no addresses.
type ipPool struct {
	prefix netip.Prefix
	taken  map[netip.Addr]struct{} // addresses used by pods, including pods of an earlier process
	last   netip.Addr              // address assigned last; zero: none yet
}

// takeFree takes a free address; "" if the range is exhausted. It reserves the first address of the
// range for the network, the second for the node.
func (p *ipPool) takeFree() string {
	if !p.prefix.IsValid() {
		return ""
	}
	first := p.prefix.Addr().Next().Next()
	if !p.last.IsValid() {
		p.last = first.Prev()
	}

	// Iterate over the range at most once.
	for a, wrapped := p.last.Next(), false; ; a = a.Next() {
		if !p.prefix.Contains(a) {
			if wrapped {
				return ""
			}
			a, wrapped = first, true
		}
		if _, used := p.taken[a]; !used {
			p.last = a
			p.takeAddress(a.String())
			return a.String()
		}
	}
}

// takeAddress marks an address as taken, such as the address of a pod older than this process. The
// address may be outside the range.
func (p *ipPool) takeAddress(ip string) {
	if a, err := netip.ParseAddr(ip); err == nil {
		if p.taken == nil {
			p.taken = map[netip.Addr]struct{}{}
		}
		p.taken[a] = struct{}{}
	}
}

// freeAddress gives an address back. It returns "", which the owner stores as its new address.
func (p *ipPool) freeAddress(ip string) string {
	if a, err := netip.ParseAddr(ip); err == nil {
		delete(p.taken, a)
	}
	return ""
}
