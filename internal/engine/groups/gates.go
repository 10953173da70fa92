package groups

import "fmt"

// Gates are upstream's feature gates for pod groups. The zero value disables all of them, which is
// upstream's default in v1.36.
type Gates struct {
	// Generic (GenericWorkload) schedules the pods of a group together. The other gates require it.
	Generic bool `json:"genericWorkload,omitempty"`
	// Gang (GangScheduling) asks for minCount pods of a gang at once. Without it every group is a
	// basic one.
	Gang bool `json:"gangScheduling,omitempty"`
	// Topology (TopologyAwareWorkloadScheduling) keeps a group within one domain of its topology
	// constraint.
	Topology bool `json:"topologyAwareWorkloadScheduling,omitempty"`
	// Preemption (WorkloadAwarePreemption) gives groups a priority and a disruption mode of their
	// own.
	Preemption bool `json:"workloadAwarePreemption,omitempty"`
	// Claims (DRAWorkloadResourceClaims) reserves device claims that a group shares for the group.
	Claims bool `json:"draWorkloadResourceClaims,omitempty"`
}

// Named are the gates by name, as flags set them.
func (g Gates) Named() map[string]bool {
	return map[string]bool{
		GenericWorkload: g.Generic, GangScheduling: g.Gang, TopologyAwareWorkloadScheduling: g.Topology,
		WorkloadAwarePreemption: g.Preemption, DRAWorkloadResourceClaims: g.Claims,
	}
}

// The names of the gates.
const (
	GenericWorkload                 = "GenericWorkload"
	GangScheduling                  = "GangScheduling"
	TopologyAwareWorkloadScheduling = "TopologyAwareWorkloadScheduling"
	WorkloadAwarePreemption         = "WorkloadAwarePreemption"
	DRAWorkloadResourceClaims       = "DRAWorkloadResourceClaims"
)

// GateNames lists the gates that have an effect.
var GateNames = []string{GenericWorkload, GangScheduling, TopologyAwareWorkloadScheduling, WorkloadAwarePreemption, DRAWorkloadResourceClaims}

// needs maps a gate to the one that it depends on, as upstream.
var needs = map[string]string{
	GangScheduling: GenericWorkload, TopologyAwareWorkloadScheduling: GenericWorkload, WorkloadAwarePreemption: GangScheduling,
	DRAWorkloadResourceClaims: GenericWorkload,
}

// GatesOf returns the gates that --feature-gates sets. AllAlpha sets each that is not named itself.
// It is an error to enable a gate by name without the one that it depends on.
func GatesOf(set map[string]bool) (Gates, error) {
	on := map[string]bool{}
	for _, name := range GateNames {
		given := false
		if on[name], given = set[name]; !given {
			on[name] = set["AllAlpha"]
		}
	}
	for _, name := range GateNames {
		if of := needs[name]; on[name] && of != "" && !on[of] {
			if set[name] {
				return Gates{}, fmt.Errorf("--feature-gates: %s=true needs %s=true", name, of)
			}
			on[name] = false
		}
	}
	return Gates{
		Generic: on[GenericWorkload], Gang: on[GangScheduling], Topology: on[TopologyAwareWorkloadScheduling],
		Preemption: on[WorkloadAwarePreemption], Claims: on[DRAWorkloadResourceClaims],
	}, nil
}
