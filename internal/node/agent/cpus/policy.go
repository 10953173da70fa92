package cpus

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"

	"github.com/berth-k8s/berth/internal/node/agent/topology"
)

// Policies, by the kubelet's names.
const (
	None   = "none"
	Static = "static"
)

// Options refine the static policy.
type Options struct {
	// FullCores gives containers whole cores only: no other container runs on a core of theirs.
	FullCores bool
	// StrictReservation keeps all pods off the reserved CPUs.
	StrictReservation bool
	// AcrossNodes spreads a container evenly over NUMA nodes if it needs several.
	AcrossNodes bool
	// NearCache keeps a container within as few last-level caches as possible.
	NearCache bool
}

// options of the kubelet's static policy, by name; those without a field are alpha, and off.
var options = map[string]func(*Options) *bool{
	"full-pcpus-only":                  func(o *Options) *bool { return &o.FullCores },
	"strict-cpu-reservation":           func(o *Options) *bool { return &o.StrictReservation },
	"distribute-cpus-across-numa":      func(o *Options) *bool { return &o.AcrossNodes },
	"prefer-align-cpus-by-uncorecache": func(o *Options) *bool { return &o.NearCache },
	"align-by-socket":                  nil,
	"distribute-cpus-across-cores":     nil,
}

// ParseOptions reads the options of a configuration. The messages are the kubelet's.
func ParseOptions(texts map[string]string) (o Options, err error) {
	for name, text := range texts {
		field, known := options[name]
		switch {
		case !known:
			return o, fmt.Errorf("unknown CPU Manager Policy option: %q", name)
		case field == nil:
			return o, fmt.Errorf("CPU Manager Policy Alpha-level Options not enabled, but option %q provided", name)
		}
		if *field(&o), err = strconv.ParseBool(text); err != nil {
			return o, fmt.Errorf("bad value for option %q: %w", name, err)
		}
	}
	if o.NearCache && o.AcrossNodes {
		return o, errors.New("static policy options prefer-align-cpus-by-uncorecache and distribute-cpus-across-numa can not be used at the same time")
	}
	return o, nil
}

// OptionNames are those that can be used, in order.
func OptionNames() string {
	var names []string
	for name, field := range options {
		if field != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// Policy is the static policy on a machine. It does not change.
type Policy struct {
	machine *topology.Machine
	options Options
	// reserved CPUs are given to no container; reservedCores are all CPUs of the cores that they
	// are on.
	reserved, reservedCores cpuset.CPUSet
	// threads is the number of CPUs of a core.
	threads int
}

// New returns the policy for a machine. count CPUs are reserved, those given or, if that is empty,
// the first of as few cores as possible.
func New(m *topology.Machine, count int, reserved cpuset.CPUSet, o Options) (*Policy, error) {
	p := &Policy{machine: m, options: o, reserved: reserved, threads: m.Threads()}
	if reserved.IsEmpty() {
		p.reserved, _ = p.take(m.All(), count)
	}
	if p.reserved.Size() != count {
		return nil, fmt.Errorf("unable to reserve the required amount of CPUs (size of %s did not equal %d)", p.reserved, count)
	}
	if !p.reserved.IsSubsetOf(m.All()) {
		return nil, fmt.Errorf("reserved-cpus: %s is not a subset of online-cpus: %s", p.reserved, m.All())
	}
	for _, cpu := range p.reserved.UnsortedList() {
		p.reservedCores = p.reservedCores.Union(m.Where(topology.CPU.CoreOf, m.CPUs[cpu].Core))
	}
	return p, nil
}

// Reserved are the CPUs that no container has of its own.
func (p *Policy) Reserved() cpuset.CPUSet { return p.reserved }

// take picks CPUs from those that are free.
func (p *Policy) take(free cpuset.CPUSet, count int) (cpuset.CPUSet, error) {
	if count > free.Size() {
		return cpuset.New(), fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", count, free.Size())
	}
	if p.options.AcrossNodes {
		return p.takeAcross(free, count), nil
	}
	return p.pack(free, count, p.options.NearCache), nil
}
