package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	evictionrequestlive "github.com/berth-k8s/berth/internal/controller/evictionrequest/live"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/scheduler/options"
)

// compareTolerations is enabled in the control plane by default, so the scheduler has to know it.
const compareTolerations = "TaintTolerationComparisonOperators"

// checkGates rejects gates that the scheduler cannot work with. The control plane rejects unknown
// ones.
func (c *cluster) checkGates() error {
	if _, err := groups.GatesOf(c.gates); err != nil {
		return usagef("%w", err)
	}
	return nil
}

// evictionRequests is the gate of the API of that name. Upstream has no controller for it yet.
const evictionRequests = "EvictionRequestAPI"

// answersEvictionRequests reports whether the API server serves EvictionRequests.
func (c *cluster) answersEvictionRequests() bool {
	on, set := c.gates[evictionRequests]
	return on || !set && c.gates["AllAlpha"]
}

// controllerFlags are those of berth controller that follow from the gates.
func (c *cluster) controllerFlags() (flags []string) {
	if c.answersEvictionRequests() {
		flags = append(flags, "--controllers", "*,"+evictionrequestlive.Name)
	}
	return flags
}

// controlplaneGates returns the flags that set the gates in the API server and the controllers and,
// for those of pod groups and EvictionRequests, enable the API.
func (c *cluster) controlplaneGates() (flags []string) {
	if len(c.gates) > 0 {
		flags = append(flags, "--feature-gates", gatesText(c.gates))
	}
	var served []string
	if on, err := groups.GatesOf(c.gates); err == nil && on.Generic {
		served = append(served, "scheduling.k8s.io/v1beta1=true")
		if on.Composite {
			served = append(served, "scheduling.k8s.io/v1alpha3=true")
		}
	}
	if c.answersEvictionRequests() {
		served = append(served, "lifecycle.k8s.io/v1alpha1=true")
	}
	if len(served) > 0 {
		flags = append(flags, "--runtime-config", strings.Join(served, ","))
	}
	return flags
}

// schedulerGates are those of the gates that the scheduler honours, and those that are enabled by
// default.
func (c *cluster) schedulerGates() string {
	gates := map[string]bool{compareTolerations: true}
	for name, on := range c.gates {
		if name == "AllAlpha" || name == "AllBeta" || options.Honours(name) {
			gates[name] = on
		}
	}
	return gatesText(gates)
}

func gatesText(gates map[string]bool) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		all = append(all, fmt.Sprintf("%s=%t", name, gates[name]))
	}
	return strings.Join(all, ",")
}
