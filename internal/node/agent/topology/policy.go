package topology

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
)

// Policies and scopes, by the kubelet's names.
const (
	None       = "none"
	BestEffort = "best-effort"
	Restricted = "restricted"
	SingleNode = "single-numa-node"

	ContainerScope = "container"
	PodScope       = "pod"
)

// mostNodes is the number of NUMA nodes from which on there are too many sets of them to try.
const mostNodes = 8

// Alignment is how resources of a container have to be near each other. The zero value is no
// alignment.
type Alignment struct {
	// Policy is one of the above; empty: None.
	Policy string
	// Scope is whether each container is aligned, or all of a pod's together; empty: each.
	Scope string
	// Closest prefers nodes that are near each other among sets of as many.
	Closest bool
	// MostNodes is the number of nodes that the machine may have; 0: 8.
	MostNodes int
}

// NewAlignment checks a configuration.
func NewAlignment(policy, scope string, options map[string]string) (Alignment, error) {
	a := Alignment{Policy: cmp.Or(policy, None), Scope: cmp.Or(scope, ContainerScope), MostNodes: mostNodes}
	if !slices.Contains([]string{None, BestEffort, Restricted, SingleNode}, a.Policy) {
		return a, fmt.Errorf("unknown policy %q: must be %s, %s, %s or %s", policy, None, BestEffort, Restricted, SingleNode)
	}
	if a.Scope != ContainerScope && a.Scope != PodScope {
		return a, fmt.Errorf("unknown scope %q: must be %s or %s", scope, ContainerScope, PodScope)
	}
	for name, value := range options {
		var err error
		switch name {
		case "prefer-closest-numa-nodes":
			a.Closest, err = strconv.ParseBool(value)
		case "max-allowable-numa-nodes":
			if a.MostNodes, err = strconv.Atoi(value); err == nil && a.MostNodes < mostNodes {
				err = fmt.Errorf("must be at least %d", mostNodes)
			}
		default:
			return a, fmt.Errorf("unknown option %q: must be prefer-closest-numa-nodes or max-allowable-numa-nodes", name)
		}
		if err != nil {
			return a, fmt.Errorf("option %s=%s: %w", name, value, err)
		}
	}
	return a, nil
}

// Suits reports why a machine cannot be aligned by this configuration.
func (a Alignment) Suits(m *Machine) error {
	switch {
	case a.Off():
	case len(m.Nodes) > a.MostNodes:
		return fmt.Errorf("unsupported on machines with more than %d NUMA Nodes", a.MostNodes)
	case a.Closest && len(m.Distances) < len(m.Nodes):
		return errors.New("prefer-closest-numa-nodes: the kernel does not tell the distances between NUMA nodes")
	}
	return nil
}

// Off reports whether nothing is aligned.
func (a Alignment) Off() bool { return a.Policy == "" || a.Policy == None }

// Hint is a set of nodes that a resource could come from.
type Hint struct {
	Nodes Nodes
	// Preferred: the set is as small as it can be for the amount.
	Preferred bool
}

// Hints are those of a provider, by resource. A resource that is missing has no preference; one
// with an empty list cannot be assigned.
type Hints map[string][]Hint

// Provider assigns one kind of resource for a pod. It is used for one pod's admission, and what it
// assigned counts only if the pod is admitted.
type Provider interface {
	Hints(pod *v1.Pod, c *v1.Container) Hints
	// PodHints are those for all of the pod's containers together.
	PodHints(pod *v1.Pod) Hints
	// Assign assigns the container what it requests, near these nodes as far as possible; no nodes:
	// anywhere.
	Assign(pod *v1.Pod, c *v1.Container, near Hint) error
}

// Refusal is why the node cannot assign a pod what it requests, with the kubelet's reason.
type Refusal struct{ Reason, Message string }

func (r *Refusal) Error() string { return r.Message }

// refusal is the error as the kubelet reports it.
func refusal(err error) *Refusal {
	var known *Refusal
	if err == nil || errors.As(err, &known) {
		return known
	}
	return &Refusal{"UnexpectedAdmissionError", fmt.Sprintf("Allocate failed due to %v, which is unexpected", err)}
}

var misaligned = &Refusal{"TopologyAffinityError", "Resources cannot be allocated with Topology locality"}

// Assign lets the providers assign a pod's containers what they request; nil: all could.
func (a Alignment) Assign(m *Machine, pod *v1.Pod, providers ...Provider) *Refusal {
	var near Hint
	if !a.Off() && a.Scope == PodScope {
		var admitted bool
		if near, admitted = a.merge(m, collect(providers, func(p Provider) Hints { return p.PodHints(pod) })); !admitted {
			return misaligned
		}
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			if !a.Off() && a.Scope != PodScope {
				var admitted bool
				if near, admitted = a.merge(m, collect(providers, func(p Provider) Hints { return p.Hints(pod, c) })); !admitted {
					return misaligned
				}
			}
			for _, provider := range providers {
				if err := provider.Assign(pod, c, near); err != nil {
					return refusal(err)
				}
			}
		}
	}
	return nil
}

// collect returns one list of hints for each resource, and for each provider without a preference.
func collect(providers []Provider, hintsOf func(Provider) Hints) (all [][]Hint) {
	for _, provider := range providers {
		hints := hintsOf(provider)
		if len(hints) == 0 {
			all = append(all, []Hint{{Preferred: true}})
		}
		for _, list := range hints {
			switch {
			case list == nil:
				list = []Hint{{Preferred: true}}
			case len(list) == 0:
				list = []Hint{{}}
			}
			all = append(all, list)
		}
	}
	return all
}
