package kubelet

import "net/netip"

// ipPool hands out the addresses of a node's pod range in turn, so that an address is not used
// again right after it was freed. The zero value has no range, and hands out nothing.
type ipPool struct {
	prefix netip.Prefix
	taken  map[netip.Addr]struct{} // by a pod, also of an earlier process
	last   netip.Addr              // the address that was handed out last; zero: none yet
}

// setRange sets the range, which comes with the node's object and never changes. A dual-stack
// node's second range is not used.
func (p *ipPool) setRange(cidr string) {
	if prefix, err := netip.ParsePrefix(cidr); err == nil {
		p.prefix = prefix.Masked()
	}
}

// takeFree takes a free address; "" when there is none. The first of the range is left to the
// network, the second to the node.
func (p *ipPool) takeFree() string {
	if !p.prefix.IsValid() {
		return ""
	}
	first := p.prefix.Addr().Next().Next()
	if !p.last.IsValid() {
		p.last = first.Prev()
	}

	// One turn through the range at most.
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

// takeAddress marks an address as taken, such as one that a pod had before this process began. It
// may be outside of the range.
func (p *ipPool) takeAddress(ip string) {
	if a, err := netip.ParseAddr(ip); err == nil {
		if p.taken == nil {
			p.taken = map[netip.Addr]struct{}{}
		}
		p.taken[a] = struct{}{}
	}
}

// freeAddress gives an address back. It returns "", for the owner to store in its place.
func (p *ipPool) freeAddress(ip string) string {
	if a, err := netip.ParseAddr(ip); err == nil {
		delete(p.taken, a)
	}
	return ""
}
