// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package groups

import "fmt"

// Gates are upstream's feature gates for pod groups. The zero value disables all of them, which is
// upstream's default.
type Gates struct {
	// Generic (GenericWorkload) schedules the pods of a group together: minCount pods of a gang in
	// one step, with the group's priority and disruption mode. The other gates require it.
	Generic bool `json:"genericWorkload,omitempty"`
	// Topology (TopologyAwareWorkloadScheduling) keeps a group within one domain of its topology
	// constraint.
	Topology bool `json:"topologyAwareWorkloadScheduling,omitempty"`
	// Policy (PodGroupPreemptionPolicy) applies the group's preemption policy, which must equal the
	// policy of its pods. Without the gate, the policies of the pods must be equal.
	Policy bool `json:"podGroupPreemptionPolicy,omitempty"`
	// Claims (DRAWorkloadResourceClaims) reserves device claims shared by a group for the group.
	Claims bool `json:"draWorkloadResourceClaims,omitempty"`
	// Composite (CompositePodGroup) makes groups children of composite groups, and decides a whole
	// tree together. Like upstream, it also requires Topology.
	Composite bool `json:"compositePodGroup,omitempty"`
}

// Named returns the gates by flag name; nil for nil.
func (g *Gates) Named() map[string]bool {
	if g == nil {
		return nil
	}
	return map[string]bool{
		GenericWorkload: g.Generic, TopologyAwareWorkloadScheduling: g.Topology, DRAWorkloadResourceClaims: g.Claims,
		PodGroupPreemptionPolicy: g.Policy, CompositePodGroups: g.Composite,
	}
}

// The names of the gates. GangScheduling is no gate of Berth: it is the name of the plugin that
// gates members.
const (
	GenericWorkload                 = "GenericWorkload"
	TopologyAwareWorkloadScheduling = "TopologyAwareWorkloadScheduling"
	DRAWorkloadResourceClaims       = "DRAWorkloadResourceClaims"
	PodGroupPreemptionPolicy        = "PodGroupPreemptionPolicy"
	CompositePodGroups              = "CompositePodGroup"

	GangScheduling = "GangScheduling"
)

// GateNames lists the gates that have an effect.
var GateNames = []string{GenericWorkload, TopologyAwareWorkloadScheduling, DRAWorkloadResourceClaims, PodGroupPreemptionPolicy,
	CompositePodGroups}

// stages maps a gate to the name that sets all gates of its stage: AllAlpha or AllBeta, like
// upstream.
var stages = map[string]string{GenericWorkload: "AllBeta", TopologyAwareWorkloadScheduling: "AllAlpha",
	DRAWorkloadResourceClaims: "AllBeta", PodGroupPreemptionPolicy: "AllAlpha",
	CompositePodGroups: "AllAlpha"}

// needs maps a gate to its prerequisites, like upstream.
var needs = map[string][]string{TopologyAwareWorkloadScheduling: {GenericWorkload}, DRAWorkloadResourceClaims: {GenericWorkload},
	PodGroupPreemptionPolicy: {GenericWorkload}, CompositePodGroups: {GenericWorkload, TopologyAwareWorkloadScheduling}}

// GatesOf returns the gates set by --feature-gates. AllAlpha and AllBeta set each gate of their
// stage that set does not name. Enabling a gate by name without its prerequisites is an error.
func GatesOf(set map[string]bool) (Gates, error) {
	on := map[string]bool{}
	for _, name := range GateNames {
		given := false
		if on[name], given = set[name]; !given {
			on[name] = set[stages[name]]
		}
	}

	for _, name := range GateNames {
		for _, other := range needs[name] {
			if !on[name] || on[other] {
				continue
			}
			if set[name] {
				return Gates{}, fmt.Errorf("--feature-gates: %s=true needs %s=true", name, other)
			}
			on[name] = false
		}
	}

	return Gates{
		Generic: on[GenericWorkload], Topology: on[TopologyAwareWorkloadScheduling], Claims: on[DRAWorkloadResourceClaims],
		Policy: on[PodGroupPreemptionPolicy], Composite: on[CompositePodGroups],
	}, nil
}
