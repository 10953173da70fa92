package groups

import "fmt"

// Gates are upstream's feature gates for pod groups. The zero value disables all of them, which is
// upstream's default.
type Gates struct {
	// Generic (GenericWorkload) schedules the pods of a group together: minCount of a gang at once,
	// with the group's priority and disruption mode. The other gates require it.
	Generic bool `json:"genericWorkload,omitempty"`
	// Topology (TopologyAwareWorkloadScheduling) keeps a group within one domain of its topology
	// constraint.
	Topology bool `json:"topologyAwareWorkloadScheduling,omitempty"`
	// Policy (PodGroupPreemptionPolicy) has a group's own preemption policy count, which its pods
	// must have. Without it they must have one.
	Policy bool `json:"podGroupPreemptionPolicy,omitempty"`
	// Claims (DRAWorkloadResourceClaims) reserves device claims that a group shares for the group.
	Claims bool `json:"draWorkloadResourceClaims,omitempty"`
	// Composite (CompositePodGroup) has groups be children of composite groups, and a whole tree be
	// decided together. It requires Topology, too, as upstream.
	Composite bool `json:"compositePodGroup,omitempty"`
}

// Named are the gates by name, as flags set them.
func (g Gates) Named() map[string]bool {
	return map[string]bool{
		GenericWorkload: g.Generic, TopologyAwareWorkloadScheduling: g.Topology, DRAWorkloadResourceClaims: g.Claims,
		PodGroupPreemptionPolicy: g.Policy, CompositePodGroups: g.Composite,
	}
}

// The names of the gates. GangScheduling is also that of the plugin which keeps members out.
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

// stages map a gate to the name that sets it together with all others of its stage: AllAlpha or
// AllBeta, as in upstream.
var stages = map[string]string{GenericWorkload: "AllBeta", TopologyAwareWorkloadScheduling: "AllAlpha",
	DRAWorkloadResourceClaims: "AllBeta", PodGroupPreemptionPolicy: "AllAlpha",
	CompositePodGroups: "AllAlpha"}

// needs map a gate to those without which it cannot be on, as upstream.
var needs = map[string][]string{TopologyAwareWorkloadScheduling: {GenericWorkload}, DRAWorkloadResourceClaims: {GenericWorkload},
	PodGroupPreemptionPolicy: {GenericWorkload}, CompositePodGroups: {GenericWorkload, TopologyAwareWorkloadScheduling}}

// GatesOf returns the gates that --feature-gates sets. AllAlpha and AllBeta set each of theirs that
// is not named itself. It is an error to enable a gate by name without one that it needs.
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
