// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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

// Gate is a feature gate consulted by kube-scheduler v1.37, with Berth's treatment of it, or a gate
// of Berth's own.
type Gate struct {
	Name string
	// On is the default. Alpha and beta gates follow AllAlpha and AllBeta; a locked gate has only
	// one value.
	On, Alpha, Beta, Locked bool
	// Own gates are Berth's: kube-scheduler does not recognize them.
	Own bool
	// Treatment is Berth's treatment of the gate. If Berth does not follow it, Why explains Berth's
	// behavior.
	Treatment Treatment
	Why       string
}

// Treatment is the treatment of a gate.
type Treatment uint8

const (
	// Fixed gates always behave in Berth as with the default value. The other value is an error.
	Fixed Treatment = iota
	// Followed gates have upstream's effect with both values.
	Followed
	// WithoutEffect gates make no difference in Berth. They are accepted and noted.
	WithoutEffect
)

// The gates honored by Berth, in addition to those of pod groups.
const (
	compareTolerations = "TaintTolerationComparisonOperators"
	deviceTaintRules   = "DRADeviceTaintRules"
	popFromBackoff     = "SchedulerPopFromBackoffQ"
	expectation        = "NominatedNodeNameForExpectation"
	storageScores      = "StorageCapacityScoring"
	driversMissing     = "VolumeLimitScaling"
	preQueueingHints   = "SchedulerPreQueueingHints"
	preemptDevices     = "BerthDevicePreemption"
	resizePreemption   = "InPlacePodVerticalScalingSchedulerPreemption"
)

const (
	apart    = "requests to the API server never hold up the next decision"
	alwaysOn = "the feature cannot be switched off"
	notYet   = "the feature is alpha and not in Berth yet"
)

// Gates lists Berth's own gate and the gates consulted by kube-scheduler v1.37, by name.
// test/flagparity compares the list with upstream's code. Each call returns a new list.
func Gates() []Gate {
	return []Gate{
		{Name: preemptDevices, Own: true, Treatment: Followed},
		{Name: "ComponentFlagz", On: true, Beta: true, Why: "/flagz is always served"},
		{Name: "ComponentStatusz", On: true, Beta: true, Why: "/statusz is always served"},
		{Name: groups.CompositePodGroups, Alpha: true, Treatment: Followed},
		{Name: "CoordinatedLeaderElection", Beta: true, Why: "the Lease is taken by whoever comes first"},

		{Name: "DRAAdminAccess", On: true, Locked: true},
		{Name: "DRAConsumableCapacity", On: true, Beta: true, Why: alwaysOn},
		{Name: "DRADerivedAttributes", Alpha: true, Why: notYet},
		{Name: "DRADeviceBindingConditions", On: true, Beta: true, Why: alwaysOn},
		{Name: "DRADeviceCompatibilityGroups", Alpha: true, Why: notYet},
		{Name: deviceTaintRules, On: true, Treatment: Followed},
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
		{Name: groups.DRAWorkloadResourceClaims, Beta: true, Treatment: Followed},

		{Name: "DynamicResourceAllocation", On: true, Locked: true},
		{Name: groups.GenericWorkload, Beta: true, Treatment: Followed},
		{Name: "InPlacePodLevelResourcesVerticalScaling", On: true, Beta: true, Treatment: WithoutEffect,
			Why: "pods report such resizes only where the API server's gate is on"},
		{Name: "InPlacePodVerticalScaling", On: true, Locked: true},
		{Name: resizePreemption, Alpha: true, Treatment: Followed},
		{Name: "InterPodAffinityHostnameFastPath", Alpha: true, Treatment: WithoutEffect, Why: "verdicts are the same with and without it"},
		{Name: "MatchLabelKeysInPodTopologySpread", On: true, Beta: true, Why: alwaysOn},

		{Name: "NodeDeclaredFeatures", On: true, Locked: true},
		{Name: "NodeInclusionPolicyInPodTopologySpread", On: true, Locked: true},
		{Name: expectation, On: true, Beta: true, Treatment: Followed},
		{Name: "OpportunisticBatching", On: true, Beta: true, Treatment: WithoutEffect, Why: "pods that are alike are always ranked together"},
		{Name: groups.PodGroupPreemptionPolicy, Alpha: true, Treatment: Followed},
		{Name: "PodLevelResources", On: true, Beta: true, Why: alwaysOn},

		{Name: "SchedulerAsyncAPICalls", Beta: true, Treatment: WithoutEffect, Why: apart},
		{Name: "SchedulerAsyncPreemption", On: true, Beta: true, Treatment: WithoutEffect, Why: apart},
		{Name: popFromBackoff, On: true, Beta: true, Treatment: Followed},
		{Name: preQueueingHints, Alpha: true, Treatment: Followed},
		{Name: storageScores, On: true, Beta: true, Treatment: Followed},
		{Name: compareTolerations, Alpha: true, Treatment: Followed},
		{Name: groups.TopologyAwareWorkloadScheduling, Alpha: true, Treatment: Followed},
		{Name: "VolumeAttributesClass", On: true, Locked: true},
		{Name: driversMissing, On: true, Beta: true, Treatment: Followed},
	}
}

// gone holds the gates of earlier versions that the current kube-scheduler no longer has.
var gone = []string{"GangScheduling", "SchedulerQueueingHints", "SidecarContainers", "WorkloadAwarePreemption"}

// gateFlag is the value of --feature-gates. As in kube-scheduler, with kube as its only component,
// a gate may be written kube:Gate.
type gateFlag struct{ *cliflag.MapStringBool }

// Set implements [pflag.Value].
func (f gateFlag) Set(value string) error {
	gates := strings.Split(value, ",")
	for i, gate := range gates {
		gates[i] = strings.TrimPrefix(strings.TrimSpace(gate), "kube:")
	}
	return f.MapStringBool.Set(strings.Join(gates, ","))
}

// Honours reports whether Berth follows the gate of that name.
func Honours(name string) bool {
	return slices.Contains(slices.Concat(honouredGates(true), honouredGates(false)), name)
}

// IsOwn reports whether the gate of that name is Berth's own, which Kubernetes does not recognize.
func IsOwn(name string) bool {
	return slices.ContainsFunc(Gates(), func(g Gate) bool { return g.Own && g.Name == name })
}

// honouredGates lists the gates honored by Berth with this default.
func honouredGates(on bool) (names []string) {
	for _, g := range Gates() {
		if g.Treatment == Followed && g.On == on {
			names = append(names, g.Name)
		}
	}
	return names
}

// enabled reports whether --feature-gates enables a gate: by name, by AllAlpha or AllBeta, or by
// default. Like upstream, the name takes precedence over the groups, in whichever order they were
// given.
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

// isOn reports whether the gate of that name is enabled; false for a gate not consulted by
// kube-scheduler.
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

// AllowMissingDrivers reports whether a pod may be placed on a node missing the CSI driver of one
// of its volumes.
func (f *Flags) AllowMissingDrivers() bool { return !f.isOn(driversMissing) }

// PreemptDevices reports whether pods may preempt other pods for their devices.
func (f *Flags) PreemptDevices() bool { return f.isOn(preemptDevices) }

// PreQueueingHints reports whether out-of-tree plugins may name the pods that an event can help.
func (f *Flags) PreQueueingHints() bool { return f.isOn(preQueueingHints) }

// ResizePreemption reports whether deferred resizes preempt.
func (f *Flags) ResizePreemption() bool { return f.isOn(resizePreemption) }

// Disabled returns the features of the cycle disabled by gates.
func (f *Flags) Disabled() cycle.Disabled {
	return cycle.Disabled{
		PopFromBackoff: !f.isOn(popFromBackoff), Expectation: !f.isOn(expectation), DeviceTaintRules: !f.isOn(deviceTaintRules),
	}
}

// validateGates returns an error for a gate set to a value not supported by Berth. Starting with
// another behavior than the requested one would be worse than not starting. A gate not consulted by
// kube-scheduler is accepted: manifests give all components the same list.
func (f *Flags) validateGates() error {
	for _, name := range gone {
		if _, given := f.gates[name]; given {
			return fmt.Errorf("--feature-gates: unrecognized feature gate: %s", name)
		}
	}

	for _, g := range Gates() {
		value, given := f.gates[g.Name]
		switch {
		case !given || value == g.On || g.Treatment != Fixed:
		case g.Locked:
			return fmt.Errorf("--feature-gates: cannot set feature gate %s to %t, feature is locked to %t", g.Name, value, g.On)
		default:
			return fmt.Errorf("--feature-gates: %s=%t: not supported: %s", g.Name, value, g.Why)
		}
	}
	return nil
}

// gateNotes reports the gates without an effect, and the gates not reached by AllAlpha and AllBeta.
func (f *Flags) gateNotes() (notes []string) {
	known := map[string]Gate{}
	unreached := map[string][]string{}
	for _, g := range Gates() {
		known[g.Name] = g
		if g.Treatment != Fixed || f.enabled(&g) == g.On {
			continue
		}
		// Only AllAlpha or AllBeta can have set this gate: set by name, it would have been an
		// error.
		all := "AllAlpha"
		if g.Beta {
			all = "AllBeta"
		}
		unreached[all] = append(unreached[all], g.Name)
	}

	for _, name := range slices.Sorted(maps.Keys(f.gates)) {
		g, consulted := known[name]
		switch {
		// AllAlpha and AllBeta are accepted, because manifests set them for all components; the
		// gates they do not reach must be reported.
		case len(unreached[name]) > 0:
			notes = append(notes, fmt.Sprintf("--feature-gates: %s=%t: does not change %s", name, f.gates[name],
				strings.Join(unreached[name], ", ")))
		case consulted && g.Treatment == WithoutEffect:
			notes = append(notes, fmt.Sprintf("--feature-gates: %s: has no effect: %s", name, g.Why))
		case !consulted && name != "AllAlpha" && name != "AllBeta":
			notes = append(notes, fmt.Sprintf("--feature-gates: %s: has no effect: kube-scheduler does not consult it", name))
		}
	}

	return notes
}
