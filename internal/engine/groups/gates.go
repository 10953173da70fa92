package groups

import (
	"fmt"
	"slices"
)

// Gates says what of pod groups is switched on, by upstream's feature gates. The zero value is all
// off, upstream's default in v1.36.
type Gates struct {
	// Generic (GenericWorkload) schedules the pods of a group together. All others need it.
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
}

// The names of the gates.
const (
	GenericWorkload                 = "GenericWorkload"
	GangScheduling                  = "GangScheduling"
	TopologyAwareWorkloadScheduling = "TopologyAwareWorkloadScheduling"
	WorkloadAwarePreemption         = "WorkloadAwarePreemption"
)

// GateNames lists the gates that have an effect.
var GateNames = []string{GenericWorkload, GangScheduling, TopologyAwareWorkloadScheduling, WorkloadAwarePreemption}

// needs names the gate that another one depends on, as upstream.
var needs = map[string]string{
	GangScheduling: GenericWorkload, TopologyAwareWorkloadScheduling: GenericWorkload, WorkloadAwarePreemption: GangScheduling,
}

// GatesOf reads the gates from those that were set by name. AllAlpha stands for each that is not
// set itself. It is an error if a gate is switched on by name without the one that it depends on.
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
	return Gates{on[GenericWorkload], on[GangScheduling], on[TopologyAwareWorkloadScheduling], on[WorkloadAwarePreemption]}, nil
}

// IsGate tells whether there is such a gate.
func IsGate(name string) bool { return slices.Contains(GateNames, name) }
