package options

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	cliflag "k8s.io/component-base/cli/flag"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// Gate is a feature gate that kube-scheduler v1.36 consults, and what Berth makes of it.
type Gate struct {
	Name string
	// On is the default. Alpha and beta gates follow AllAlpha and AllBeta; a locked gate has one
	// value only.
	On, Alpha, Beta, Locked bool
	// Heed tells whether Berth does as the gate says. If it does not, Why says what Berth does.
	Heed Heed
	Why  string
}

// Heed is how a gate is heeded.
type Heed uint8

const (
	// Refused: Berth does what the default says. The other value is an error.
	Refused Heed = iota
	// Honoured: both values have upstream's effect.
	Honoured
	// Indifferent: the value makes no difference in Berth. It is accepted and noted.
	Indifferent
)

// The gates that Berth honours, besides those of pod groups.
const (
	compareTolerations   = "TaintTolerationComparisonOperators"
	popFromBackoff       = "SchedulerPopFromBackoffQ"
	expectation          = "NominatedNodeNameForExpectation"
	nodeDeclaredFeatures = "NodeDeclaredFeatures"
	extendedResource     = "DRAExtendedResource"
)

const (
	apart    = "requests to the API server never hold up the next decision"
	alwaysOn = "the feature cannot be switched off"
)

// Gates lists the gates, by name.
func Gates() []Gate {
	return []Gate{
		{Name: "ComponentFlagz", On: true, Beta: true, Why: "/flagz is always served"},
		{Name: "ComponentStatusz", On: true, Beta: true, Why: "/statusz is always served"},
		{Name: "CoordinatedLeaderElection", Beta: true, Why: "the Lease is taken by whoever comes first"},
		{Name: "DRAAdminAccess", On: true, Locked: true},
		{Name: "DRAConsumableCapacity", On: true, Beta: true, Why: alwaysOn},
		{Name: "DRADeviceBindingConditions", On: true, Beta: true, Why: alwaysOn},
		{Name: "DRADeviceTaintRules", Beta: true, Why: "taints in ResourceSlices count, DeviceTaintRules do not"},
		{Name: "DRADeviceTaints", On: true, Beta: true, Why: alwaysOn},
		{Name: extendedResource, On: true, Beta: true, Heed: Honoured},
		{Name: "DRAListTypeAttributes", Alpha: true, Why: "attributes of devices that are lists are not compared"},
		{Name: "DRANodeAllocatableResources", Alpha: true, Why: "devices do not take CPU or memory of their node"},
		{Name: "DRAPartitionableDevices", On: true, Beta: true, Why: alwaysOn},
		{Name: "DRAPrioritizedList", On: true, Why: alwaysOn},
		{Name: "DRAResourceClaimDeviceStatus", On: true, Beta: true, Why: alwaysOn},
		{Name: "DRASchedulerFilterTimeout", On: true, Beta: true, Why: "the search for devices is always bounded"},
		{Name: groups.DRAWorkloadResourceClaims, Alpha: true, Heed: Honoured},
		{Name: "DynamicResourceAllocation", On: true, Locked: true},
		{Name: groups.GangScheduling, Alpha: true, Heed: Honoured},
		{Name: groups.GenericWorkload, Alpha: true, Heed: Honoured},
		// Off wherever NodeDeclaredFeatures is, on which it depends.
		{Name: "InPlacePodLevelResourcesVerticalScaling", On: true, Beta: true, Heed: Indifferent, Why: "pods tell of such resizes only where the API server's gate is on"},
		{Name: "InPlacePodVerticalScaling", On: true, Locked: true},
		{Name: "MatchLabelKeysInPodTopologySpread", On: true, Beta: true, Why: alwaysOn},
		{Name: nodeDeclaredFeatures, On: true, Beta: true, Heed: Honoured},
		{Name: "NodeInclusionPolicyInPodTopologySpread", On: true, Locked: true},
		{Name: expectation, On: true, Beta: true, Heed: Honoured},
		{Name: "OpportunisticBatching", On: true, Beta: true, Heed: Indifferent, Why: "pods that are alike are always ranked together"},
		{Name: "PodLevelResources", On: true, Beta: true, Why: alwaysOn},
		{Name: "SchedulerAsyncAPICalls", Beta: true, Heed: Indifferent, Why: apart},
		{Name: "SchedulerAsyncPreemption", On: true, Beta: true, Heed: Indifferent, Why: apart},
		{Name: popFromBackoff, On: true, Beta: true, Heed: Honoured},
		{Name: "SchedulerQueueingHints", On: true, Locked: true},
		{Name: "SidecarContainers", On: true, Locked: true},
		{Name: "StorageCapacityScoring", Alpha: true, Why: "VolumeBinding does not score nodes by free capacity"},
		{Name: compareTolerations, Alpha: true, Heed: Honoured},
		{Name: groups.TopologyAwareWorkloadScheduling, Alpha: true, Heed: Honoured},
		{Name: "VolumeAttributesClass", On: true, Locked: true},
		{Name: "VolumeLimitScaling", Alpha: true, Why: "a node is not rejected because the CSI driver of a volume is not installed there"},
		{Name: groups.WorkloadAwarePreemption, Alpha: true, Heed: Honoured},
	}
}

// gateFlag is the value of --feature-gates. As in kube-scheduler, whose only component is kube, a
// gate may be written kube:Gate.
type gateFlag struct{ *cliflag.MapStringBool }

// Set implements [pflag.Value].
func (f gateFlag) Set(value string) error {
	gates := strings.Split(value, ",")
	for i, gate := range gates {
		gates[i] = strings.TrimPrefix(strings.TrimSpace(gate), "kube:")
	}
	return f.MapStringBool.Set(strings.Join(gates, ","))
}

// Honours reports whether Berth does as the gate of that name says.
func Honours(name string) bool {
	return slices.Contains(slices.Concat(honouredGates(true), honouredGates(false)), name)
}

// honouredGates lists the gates that Berth honours and that have this default.
func honouredGates(on bool) (names []string) {
	for _, g := range Gates() {
		if g.Heed == Honoured && g.On == on {
			names = append(names, g.Name)
		}
	}
	return names
}

// enabled reports whether --feature-gates enables a gate: by name, by AllAlpha or AllBeta, or by
// default.
func (f *Flags) enabled(g *Gate) bool {
	on, given := f.gates[g.Name]
	if !given && g.Alpha {
		on, given = f.gates["AllAlpha"]
	}
	if !given && g.Beta {
		on, given = f.gates["AllBeta"]
	}
	return given && on || !given && g.On
}

// isOn reports whether the gate of that name is enabled.
func (f *Flags) isOn(name string) bool {
	for _, g := range Gates() {
		if g.Name == name {
			return f.enabled(&g)
		}
	}
	return false
}

// CompareTolerations reports whether tolerations with Gt and Lt count.
func (f *Flags) CompareTolerations() bool { return f.isOn(compareTolerations) }

// IgnoreDeclaredFeatures reports whether the plugin NodeDeclaredFeatures is disabled.
func (f *Flags) IgnoreDeclaredFeatures() bool { return !f.isOn(nodeDeclaredFeatures) }

// Disabled are those features of the cycle that gates disable.
func (f *Flags) Disabled() cycle.Disabled {
	return cycle.Disabled{PopFromBackoff: !f.isOn(popFromBackoff), Expectation: !f.isOn(expectation), ExtendedResource: !f.isOn(extendedResource)}
}

// validateGates returns an error for a gate that is given a value that Berth does not follow.
func (f *Flags) validateGates() error {
	for _, g := range Gates() {
		value, given := f.gates[g.Name]
		switch {
		case !given || value == g.On || g.Heed != Refused:
		case g.Locked:
			return fmt.Errorf("--feature-gates: %s=%t: Kubernetes v1.36 has it locked to %t", g.Name, value, g.On)
		default:
			return fmt.Errorf("--feature-gates: %s=%t: not supported: %s", g.Name, value, g.Why)
		}
	}
	return nil
}

// gateNotes says which gates have no effect, and which ones AllAlpha and AllBeta do not reach.
func (f *Flags) gateNotes() (notes []string) {
	known := map[string]Gate{}
	unreached := map[string][]string{}
	for _, g := range Gates() {
		known[g.Name] = g
		if g.Heed != Refused || f.enabled(&g) == g.On {
			continue
		}
		all := "AllAlpha"
		if g.Beta {
			all = "AllBeta"
		}
		unreached[all] = append(unreached[all], g.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(f.gates)) {
		g, consulted := known[name]
		switch {
		case len(unreached[name]) > 0:
			notes = append(notes, fmt.Sprintf("--feature-gates: %s=%t: does not change %s", name, f.gates[name], strings.Join(unreached[name], ", ")))
		case consulted && g.Heed == Indifferent:
			notes = append(notes, fmt.Sprintf("--feature-gates: %s: has no effect: %s", name, g.Why))
		case !consulted && name != "AllAlpha" && name != "AllBeta":
			notes = append(notes, fmt.Sprintf("--feature-gates: %s: has no effect: kube-scheduler does not consult it", name))
		}
	}
	return notes
}
