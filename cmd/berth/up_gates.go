package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

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

// controlplaneGates returns the flags that set the gates in the API server and the controllers and,
// for those of pod groups, enable the API.
func (c *cluster) controlplaneGates() (flags []string) {
	if len(c.gates) > 0 {
		flags = append(flags, "--feature-gates", gatesText(c.gates))
	}
	if on, err := groups.GatesOf(c.gates); err == nil && on.Generic {
		flags = append(flags, "--runtime-config", "scheduling.k8s.io/v1beta1=true")
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
