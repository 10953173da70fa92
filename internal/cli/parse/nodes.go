// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package parse

import (
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/node/pressure"
	"github.com/berth-k8s/berth/internal/node/simnodes/simkubelet"
	"github.com/berth-k8s/berth/internal/usage"
)

// Nodes holds the flags describing simulated nodes.
type Nodes struct {
	simkubelet.Shape
	Workers                   int
	cpu, memory               string
	pods                      int
	resources, labels, taints []string
}

// AddFlags adds the flags of berth nodes.
func (s *Nodes) AddFlags(flags *pflag.FlagSet) {
	flags.IntVar(&s.Count, "count", 3, "how many nodes")
	flags.IntVar(&s.Zones, "zones", 3, "number of zones (z1, z2, ...) that the nodes are spread over; 0: no zone labels")
	flags.StringVar(&s.Region, "region", "r1", "the region of all zones")
	flags.StringVar(&s.Prefix, "name-prefix", "node-", "prefix of the nodes' names, before the number")
	flags.StringVar(&s.cpu, "cpu", "32", "CPUs of each node")
	flags.StringVar(&s.memory, "memory", "64Gi", "memory of each node")
	flags.IntVar(&s.pods, "pods", 110, "maximum number of pods per node, as the kubelet's --max-pods")
	flags.StringArrayVar(&s.resources, "resource", nil, "another resource of each node, such as nvidia.com/gpu=8 (repeatable)")

	flags.StringArrayVar(&s.labels, "label", nil, "a label of each node, as key=value (repeatable)")
	flags.StringArrayVar(&s.taints, "taint", nil, "a taint that each node is created with, as key=value:NoSchedule (repeatable)")
	flags.DurationVar(&s.RenewInterval, "lease-renew-interval", 0,
		"time between two renewals of a node's Lease of 40s (default 10s, the kubelet's, up to 1,000 nodes; then "+
			"longer, up to 20s, to spare the API server)")
	flags.DurationVar(&s.StatusInterval, "node-status-report-frequency", 5*time.Minute,
		"time between two status reports of a node whose status does not change")
	flags.DurationVar(&s.TerminateAfter, "terminate-after", 0, "how long a pod takes to end after SIGTERM; at most its grace period")

	s.Eviction = pressure.DefaultConfig()
	s.Eviction.AddFlags(flags)
	flags.IntVar(&s.Workers, "workers", 32, "maximum number of pod requests in flight")
}

// ShapeFor validates and combines the flags for nodes of a Kubernetes version. countFlag is the
// name of the flag with the number of nodes.
func (s *Nodes) ShapeFor(countFlag, version string) (*simkubelet.Shape, error) {
	regionErrs := validation.IsValidLabelValue(s.Region)
	longest := s.Prefix + strconv.Itoa(max(1, s.Count)) // the name is also a label value
	nameErrs := append(validation.IsDNS1123Subdomain(longest), validation.IsValidLabelValue(longest)...)
	switch {
	case s.Count < 0:
		return nil, usage.Errorf("%s %d: must be 0 or more", countFlag, s.Count)
	case s.Zones < 0:
		return nil, usage.Errorf("--zones %d: must be 0 or more", s.Zones)
	case len(regionErrs) > 0:
		return nil, usage.Errorf("--region %q: %s", s.Region, regionErrs[0])
	case len(nameErrs) > 0:
		return nil, usage.Errorf("--name-prefix %q: the name %s: %s", s.Prefix, longest, nameErrs[0])
	case s.Workers < 1:
		return nil, usage.Errorf("--workers %d: must be 1 or more", s.Workers)
	case s.StatusInterval <= 0:
		return nil, usage.Errorf("--node-status-report-frequency %s: must be more than 0", s.StatusInterval)
	case s.TerminateAfter < 0:
		return nil, usage.Errorf("--terminate-after %s: must be 0 or more", s.TerminateAfter)
	}
	if _, err := s.Eviction.Thresholds(); err != nil {
		return nil, usage.Errorf("%w", err)
	}

	shape := s.Shape
	shape.Version, shape.JobRunFor = version, time.Second
	switch renew := s.RenewInterval; {
	case renew == 0:
		shape.RenewInterval = simkubelet.RenewIntervalFor(s.Count)
	case renew < time.Second || renew >= simkubelet.LeaseDuration:
		return nil, usage.Errorf("--lease-renew-interval %s: must be between 1s and %s, the lease's duration", renew, simkubelet.LeaseDuration)
	}

	var err error
	if shape.Capacity, err = s.parseCapacity(); err != nil {
		return nil, err
	}
	if shape.Labels, err = labelsOf(s.labels); err != nil {
		return nil, err
	}
	if shape.Taints, err = Taints("--taint", s.taints); err != nil {
		return nil, err
	}

	if most := shape.MaxCount(); s.Count > most {
		return nil, usage.Errorf("%s %d: with %d pods each there are addresses for %d nodes", countFlag, s.Count, s.pods, most)
	}
	return &shape, nil
}

func (s *Nodes) parseCapacity() (v1.ResourceList, error) {
	capacity := simkubelet.DefaultCapacity()
	set := func(flag string, name v1.ResourceName, text string) error {
		quantity, err := resource.ParseQuantity(text)
		if err != nil || quantity.Sign() < 0 {
			return usage.Errorf("%s %q: must be a quantity such as 32, 500m or 64Gi, not negative", flag, text)
		}
		capacity[name] = quantity
		return nil
	}

	if err := set("--cpu", v1.ResourceCPU, s.cpu); err != nil {
		return nil, err
	}
	if err := set("--memory", v1.ResourceMemory, s.memory); err != nil {
		return nil, err
	}
	if s.pods < 0 || s.pods > 4096 {
		return nil, usage.Errorf("--pods %d: must be between 0 and 4096", s.pods)
	}

	capacity[v1.ResourcePods] = *resource.NewQuantity(int64(s.pods), resource.DecimalSI)
	for _, text := range s.resources {
		name, quantity, ok := strings.Cut(text, "=")
		if !ok || len(validation.IsQualifiedName(name)) > 0 {
			return nil, usage.Errorf("--resource %q: must be NAME=QUANTITY such as nvidia.com/gpu=8", text)
		}
		switch v1.ResourceName(name) {
		case v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods:
			return nil, usage.Errorf("--resource %q: must be another resource; use --%s for this one", text, name)
		}
		if err := set("--resource "+name+":", v1.ResourceName(name), quantity); err != nil {
			return nil, err
		}
	}

	return capacity, nil
}

func labelsOf(texts []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, usage.Errorf("--label %q: must be KEY=VALUE", text)
		}
		if errs := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(errs) > 0 {
			return nil, usage.Errorf("--label %q: %s", text, errs[0])
		}
		labels[key] = value
	}
	return labels, nil
}

// Taints parses a flag's taints.
func Taints(flag string, texts []string) ([]v1.Taint, error) {
	for _, text := range texts {
		if strings.HasSuffix(text, "-") {
			return nil, usage.Errorf("%s %q: cannot remove a taint: the nodes are created with these taints", flag, text)
		}
	}
	change, err := rules.ParseTaintChange(texts)
	if err != nil {
		return nil, usage.Errorf("%s: %w", flag, err)
	}
	return change.Add, nil
}
