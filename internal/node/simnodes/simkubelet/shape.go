// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"encoding/binary"
	"hash/fnv"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-k8s/berth/internal/node/pressure"
)

// Shape is the common configuration of all simulated nodes of one process. It must not be changed
// after New.
type Shape struct {
	// A name consists of Prefix and a number from 1 to Count: node-1, node-2, ...
	Prefix string
	Count  int
	// Zones is the number of zones z1..zN, assigned round-robin; 0: no zone labels.
	Zones  int
	Region string

	Labels map[string]string
	// Taints are set when a node is created and never again, like the kubelet's
	// --register-with-taints.
	Taints []v1.Taint
	// Capacity is reported by every node: cpu, memory, pods, ephemeral-storage and extended
	// resources, as with a device plugin.
	Capacity v1.ResourceList
	// Version is the kubelet version that the nodes report.
	Version string

	// RenewInterval is the time between two renewals of a node's Lease.
	RenewInterval time.Duration
	// StatusInterval is the time between two status reports without changes; changes are reported
	// immediately.
	StatusInterval time.Duration
	// TerminateAfter is the time a process takes to end after SIGTERM, limited by the pod's grace
	// period.
	TerminateAfter time.Duration
	// JobRunFor is the default running time of the containers of a Job's pod, overridden by
	// annotations.
	JobRunFor time.Duration
	// Eviction holds the eviction thresholds; the zero value has none.
	Eviction pressure.Config
}

const (
	// LeaseDuration is the kubelet's default (nodeLeaseDurationSeconds).
	LeaseDuration = 40 * time.Second
	// MinRenewInterval is the kubelet's interval: a quarter of the lease's duration.
	MinRenewInterval = 10 * time.Second
	// maxRenewInterval allows two renewals per lease duration, so that a node survives a single
	// late or lost renewal.
	maxRenewInterval = 20 * time.Second
	// cheapRenewals is the rate of renewals per second that is negligible for an API server on one
	// or two cores. Above 1,000 nodes the interval grows to keep this rate.
	cheapRenewals = 100
)

// RenewIntervalFor returns the kubelet's interval for up to 1,000 nodes, and a longer interval for
// more nodes. The result stays well under the node monitor's grace period of 50 s.
//
//	nodes     up to 1,000   1,500   2,000 and more
//	interval  10 s          15 s    20 s
func RenewIntervalFor(count int) time.Duration {
	interval := time.Duration(count) * time.Second / cheapRenewals
	return min(max(interval, MinRenewInterval), maxRenewInterval)
}

// DefaultCapacity returns the capacity of a mid-sized machine with the kubelet's default of 110
// pods. Each call returns a new list.
func DefaultCapacity() v1.ResourceList {
	return v1.ResourceList{
		v1.ResourceCPU:              resource.MustParse("32"),
		v1.ResourceMemory:           resource.MustParse("64Gi"),
		v1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
		v1.ResourcePods:             resource.MustParse("110"),
	}
}

// Name returns the name of the node with this number, counted from 1. It is the name of the Node
// and of its Lease.
func (s *Shape) Name(number int) string { return s.Prefix + strconv.Itoa(number) }

// Names reports whether a name is of this shape, whatever its number. Leading zeros and signs are
// not accepted: "node-01" is not the name of node 1.
func (s *Shape) Names(name string) bool {
	_, ok := s.numberOf(name)
	return ok
}

// Beyond reports whether a name is of this shape, but its number exceeds Count. It is then the name
// of a node of an earlier, larger run. Such nodes are removed when a smaller run begins.
func (s *Shape) Beyond(name string) bool {
	number, ok := s.numberOf(name)
	return ok && number > s.Count
}

// numberOf returns the number in a name of this shape.
func (s *Shape) numberOf(name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, s.Prefix)
	if !ok {
		return 0, false
	}
	number, err := strconv.Atoi(digits)
	return number, err == nil && number >= 1 && s.Name(number) == name
}

// Node addresses are in 172.16.0.0/12 and pod addresses are in 10.128.0.0/9, which avoids the usual
// service ranges (10.0.0.0/16, 10.96.0.0/12).
var (
	nodeNetwork = netip.MustParsePrefix("172.16.0.0/12")
	podNetwork  = netip.MustParsePrefix("10.128.0.0/9")
)

// MaxCount returns the number of nodes that fit into the address ranges. The number 0 is skipped in
// both ranges.
func (s *Shape) MaxCount() int {
	return min(1<<(32-nodeNetwork.Bits()), 1<<(s.podRangeBits()-podNetwork.Bits())) - 1
}

// podRangeBits returns the prefix length of a node's pod range: as small as its pods allow, with a
// quarter to spare for terminating pods. For example, 110 pods need 139 addresses and get a /24. A
// range is never smaller than a /28.
func (s *Shape) podRangeBits() int {
	pods := s.Capacity[v1.ResourcePods]
	wanted := uint64(max(pods.Value(), 1)*5/4 + 2)
	return 32 - max(bits.Len64(wanted), 4)
}

// podRange returns the range of the pods of the node with this lot. The ranges of different lots
// never overlap.
func (s *Shape) podRange(lot int) netip.Prefix {
	size := s.podRangeBits()
	return netip.PrefixFrom(addOffset(podNetwork.Addr(), uint32(lot)<<(32-size)), size)
}

// addOffset returns the n-th address after an IPv4 address; offsetIn is its inverse.
func addOffset(a netip.Addr, n uint32) netip.Addr {
	b := a.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+n)
	return netip.AddrFrom4(b)
}

func offsetIn(network netip.Prefix, a netip.Addr) int {
	from, to := network.Addr().As4(), a.As4()
	return int(binary.BigEndian.Uint32(to[:]) - binary.BigEndian.Uint32(from[:]))
}

// spreadName maps a name to a number in [0,1), always the same one. It distributes the heartbeats
// of many nodes evenly over an interval: a node with number 0.37 and an interval of 10 s sends its
// first heartbeat after 3.7 s.
func spreadName(name string) float64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	// FNV's high bits hardly differ between short names; the multiplication mixes them.
	x := h.Sum64() * 0x9e3779b97f4a7c15
	return float64(x>>11) / (1 << 53)
}
