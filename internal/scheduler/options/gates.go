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

// Gate is a feature gate that kube-scheduler v1.37 consults, and what Berth makes of it.
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
	compareTolerations = "TaintTolerationComparisonOperators"
	deviceTaintRules   = "DRADeviceTaintRules"
	popFromBackoff     = "SchedulerPopFromBackoffQ"
	expectation        = "NominatedNodeNameForExpectation"
	storageScores      = "StorageCapacityScoring"
	driversMissing     = "VolumeLimitScaling"
	preQueueingHints   = "SchedulerPreQueueingHints"
)

const (
	apart    = "requests to the API server never hold up the next decision"
	alwaysOn = "the feature cannot be switched off"
	notYet   = "the feature is alpha and not in Berth yet"
)

// Gates lists the gates, by name: those that kube-scheduler v1.37 consults. test/flagparity
// compares it with upstream's code. The list is the caller's.
func Gates() []Gate {
	return []Gate{
		{Name: "ComponentFlagz", On: true, Beta: true, Why: "/flagz is always served"},
		{Name: "ComponentStatusz", On: true, Beta: true, Why: "/statusz is always served"},
		{Name: groups.CompositePodGroups, Alpha: true, Heed: Honoured},
		{Name: "CoordinatedLeaderElection", Beta: true, Why: "the Lease is taken by whoever comes first"},

		{Name: "DRAAdminAccess", On: true, Locked: true},
		{Name: "DRAConsumableCapacity", On: true, Beta: true, Why: alwaysOn},
		{Name: "DRADerivedAttributes", Alpha: true, Why: notYet},
		{Name: "DRADeviceBindingConditions", On: true, Beta: true, Why: alwaysOn},
		{Name: "DRADeviceCompatibilityGroups", Alpha: true, Why: notYet},
		{Name: deviceTaintRules, On: true, Heed: Honoured},
		{Name: "DRADeviceTaints", On: true, Why: alwaysOn},
		{Name: "DRAExtendedResource", On: true, Locked: true},
		{Name: "DRAFractionalCapacityRange", Beta: true, Why: "off unless all components of a cluster are of v1.37, and not in Berth yet"},
		{Name: "DRAListTypeAttributes", Alpha: true, Why: "attributes of devices that are lists are not compared"},
		{Name: "DRANodeAllocatableResources", Alpha: true, Why: "devices do not take CPU or memory of their node"},
		{Name: "DRAOptionalNodeOperations", Alpha: true, Why: notYet},
		{Name: "DRAPartitionableDevices", On: true, Beta: true, Why: alwaysOn},
		{Name: "DRAPrioritizedList", On: true, Locked: true},
		{Name: "DRAResourceClaimDeviceStatus", On: true, Locked: true},
		{Name: "DRASchedulerFilterTimeout", On: true, Beta: true, Why: "the search for devices is always bounded"},
		{Name: groups.DRAWorkloadResourceClaims, Beta: true, Heed: Honoured},

		{Name: "DynamicResourceAllocation", On: true, Locked: true},
		{Name: groups.GenericWorkload, Beta: true, Heed: Honoured},
		{Name: "InPlacePodLevelResourcesVerticalScaling", On: true, Beta: true, Heed: Indifferent,
			Why: "pods tell of such resizes only where the API server's gate is on"},
		{Name: "InPlacePodVerticalScaling", On: true, Locked: true},
		{Name: "InPlacePodVerticalScalingSchedulerPreemption", Alpha: true,
			Why: "no pods are preempted for a resize that the kubelet has deferred"},
		{Name: "InterPodAffinityHostnameFastPath", Alpha: true, Heed: Indifferent, Why: "verdicts are the same with and without it"},
		{Name: "MatchLabelKeysInPodTopologySpread", On: true, Beta: true, Why: alwaysOn},

		{Name: "NodeDeclaredFeatures", On: true, Locked: true},
		{Name: "NodeInclusionPolicyInPodTopologySpread", On: true, Locked: true},
		{Name: expectation, On: true, Beta: true, Heed: Honoured},
		{Name: "OpportunisticBatching", On: true, Beta: true, Heed: Indifferent, Why: "pods that are alike are always ranked together"},
		{Name: groups.PodGroupPreemptionPolicy, Alpha: true, Heed: Honoured},
		{Name: "PodLevelResources", On: true, Beta: true, Why: alwaysOn},

		{Name: "SchedulerAsyncAPICalls", Beta: true, Heed: Indifferent, Why: apart},
		{Name: "SchedulerAsyncPreemption", On: true, Beta: true, Heed: Indifferent, Why: apart},
		{Name: popFromBackoff, On: true, Beta: true, Heed: Honoured},
		{Name: preQueueingHints, Alpha: true, Heed: Honoured},
		{Name: storageScores, On: true, Beta: true, Heed: Honoured},
		{Name: compareTolerations, Alpha: true, Heed: Honoured},
		{Name: groups.TopologyAwareWorkloadScheduling, Alpha: true, Heed: Honoured},
		{Name: "VolumeAttributesClass", On: true, Locked: true},
		{Name: driversMissing, On: true, Beta: true, Heed: Honoured},
	}
}

// gone are the gates of earlier versions that kube-scheduler no longer knows.
var gone = []string{"GangScheduling", "SchedulerQueueingHints", "SidecarContainers", "WorkloadAwarePreemption"}

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
// default. As upstream, the name goes before the groups, in whichever order they were given.
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

// isOn reports whether the gate of that name is enabled; false for one that kube-scheduler does not
// consult.
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

// WithoutStorageScores reports whether VolumeBinding does not score.
func (f *Flags) WithoutStorageScores() bool { return !f.isOn(storageScores) }

// AllowMissingDrivers reports whether pods may go where the CSI driver of a volume is missing.
func (f *Flags) AllowMissingDrivers() bool { return !f.isOn(driversMissing) }

// PreQueueingHints reports whether out-of-tree plugins are asked which pods an event can help.
func (f *Flags) PreQueueingHints() bool { return f.isOn(preQueueingHints) }

// Disabled are those features of the cycle that gates disable.
func (f *Flags) Disabled() cycle.Disabled {
	return cycle.Disabled{
		PopFromBackoff: !f.isOn(popFromBackoff), Expectation: !f.isOn(expectation), DeviceTaintRules: !f.isOn(deviceTaintRules),
	}
}

// validateGates returns an error for a gate that is given a value that Berth does not follow. To
// start with another behaviour than the one that was asked for would be worse than not to start. A
// gate that kube-scheduler does not consult is no error: manifests give all components the same
// list.
func (f *Flags) validateGates() error {
	for _, name := range gone {
		if _, given := f.gates[name]; given {
			return fmt.Errorf("--feature-gates: unrecognized feature gate: %s", name)
		}
	}

	for _, g := range Gates() {
		value, given := f.gates[g.Name]
		switch {
		case !given || value == g.On || g.Heed != Refused:
		case g.Locked:
			return fmt.Errorf("--feature-gates: cannot set feature gate %s to %t, feature is locked to %t", g.Name, value, g.On)
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
		// Only a group can have set it: by name it would have been an error.
		all := "AllAlpha"
		if g.Beta {
			all = "AllBeta"
		}
		unreached[all] = append(unreached[all], g.Name)
	}

	for _, name := range slices.Sorted(maps.Keys(f.gates)) {
		g, consulted := known[name]
		switch {
		// The group is accepted, because manifests set it for all components; which gates it does
		// not reach must be said.
		case len(unreached[name]) > 0:
			notes = append(notes, fmt.Sprintf("--feature-gates: %s=%t: does not change %s", name, f.gates[name],
				strings.Join(unreached[name], ", ")))
		case consulted && g.Heed == Indifferent:
			notes = append(notes, fmt.Sprintf("--feature-gates: %s: has no effect: %s", name, g.Why))
		case !consulted && name != "AllAlpha" && name != "AllBeta":
			notes = append(notes, fmt.Sprintf("--feature-gates: %s: has no effect: kube-scheduler does not consult it", name))
		}
	}

	return notes
}
