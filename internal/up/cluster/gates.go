package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	evictionrequestlive "github.com/berth-k8s/berth/internal/controller/evictionrequest/live"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/scheduler/options"
	"github.com/berth-k8s/berth/internal/usage"
)

// compareTolerations is enabled in the control plane by default, so the scheduler has to know it.
const compareTolerations = "TaintTolerationComparisonOperators"

// CheckGates rejects gates that the scheduler cannot work with. The control plane rejects unknown
// ones.
func (c *Cluster) CheckGates() error {
	_, err := groups.GatesOf(c.Gates)
	return usage.Of(err)
}

// evictionRequests is the gate of the API of that name. Upstream has no controller for it yet.
const evictionRequests = "EvictionRequestAPI"

// answersEvictionRequests reports whether the API server serves EvictionRequests.
func (c *Cluster) answersEvictionRequests() bool {
	on, set := c.Gates[evictionRequests]
	return on || !set && c.Gates["AllAlpha"]
}

// controllerFlags are those of berth controller that follow from the gates.
func (c *Cluster) controllerFlags() (flags []string) {
	if c.answersEvictionRequests() {
		flags = append(flags, "--controllers", "*,"+evictionrequestlive.Name)
	}
	return flags
}

// controlplaneGates returns the flags that set the gates in the API server and the controllers and,
// for those of pod groups and EvictionRequests, enable the API.
func (c *Cluster) controlplaneGates() (flags []string) {
	if len(c.Gates) > 0 {
		flags = append(flags, "--feature-gates", gatesText(c.Gates))
	}
	var served []string
	if on, err := groups.GatesOf(c.Gates); err == nil && on.Generic {
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
func (c *Cluster) schedulerGates() string {
	gates := map[string]bool{compareTolerations: true}
	for name, on := range c.Gates {
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
