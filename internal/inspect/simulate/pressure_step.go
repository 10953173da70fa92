// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/node/pressure"
)

// Pressure sets the available memory or disk of nodes, regardless of what uses the rest. The usage
// of evicted pods is freed afterwards. Amounts are quantities such as 200Mi; an empty amount leaves
// the resource unchanged.
type Pressure struct {
	Nodes
	Memory           string `json:"memory,omitempty"`
	EphemeralStorage string `json:"ephemeralStorage,omitempty"`
	// The fields of the nodes' KubeletConfiguration. If none is set, the thresholds stay unchanged;
	// initially they are the kubelet's defaults.
	EvictionHard                     map[string]string `json:"evictionHard,omitempty"`
	EvictionSoft                     map[string]string `json:"evictionSoft,omitempty"`
	EvictionSoftGracePeriod          map[string]string `json:"evictionSoftGracePeriod,omitempty"`
	EvictionMinimumReclaim           map[string]string `json:"evictionMinimumReclaim,omitempty"`
	EvictionPressureTransitionPeriod *metav1.Duration  `json:"evictionPressureTransitionPeriod,omitempty"`
	EvictionMaxPodGracePeriod        *int32            `json:"evictionMaxPodGracePeriod,omitempty"`
}

// Use sets a pod's usage from now on, for example to simulate a leak. Omitted resources stay
// unchanged.
type Use struct {
	Pod              string `json:"pod"` // NAME or pod/NAME
	Namespace        string `json:"namespace,omitempty"`
	Memory           string `json:"memory,omitempty"`
	EphemeralStorage string `json:"ephemeralStorage,omitempty"`
}

// config returns the configured thresholds, or nil. As in a KubeletConfiguration, evictionHard
// replaces all hard defaults. Soft thresholds exist only if configured.
func (p *Pressure) config() (*pressure.Config, error) {
	if p.EvictionHard == nil && p.EvictionSoft == nil && p.EvictionSoftGracePeriod == nil && p.EvictionMinimumReclaim == nil &&
		p.EvictionPressureTransitionPeriod == nil && p.EvictionMaxPodGracePeriod == nil {
		return nil, nil
	}

	c := pressure.DefaultConfig()
	if p.EvictionHard != nil {
		c.Hard = p.EvictionHard
	}

	c.Soft, c.SoftGrace, c.MinimumReclaim = p.EvictionSoft, p.EvictionSoftGracePeriod, p.EvictionMinimumReclaim
	if p.EvictionPressureTransitionPeriod != nil {
		c.Transition = p.EvictionPressureTransitionPeriod.Duration
	}

	c.MaxPodGrace = ptr.Deref(p.EvictionMaxPodGracePeriod, c.MaxPodGrace)
	if _, err := c.Thresholds(); err != nil {
		return nil, errors.New(fieldsOfFlags.Replace(err.Error()))
	}
	return &c, nil
}

// fieldsOfFlags replaces the kubelet flags in errors with the fields of a KubeletConfiguration. A
// flag precedes any flag that is its prefix, because the first match is replaced.
var fieldsOfFlags = strings.NewReplacer(
	"--eviction-hard", "evictionHard", "--eviction-soft-grace-period", "evictionSoftGracePeriod", "--eviction-soft", "evictionSoft",
	"--eviction-minimum-reclaim", "evictionMinimumReclaim", "--eviction-pressure-transition-period", "evictionPressureTransitionPeriod",
	"--eviction-max-pod-grace-period", "evictionMaxPodGracePeriod",
)

// parseQuantities parses the given amounts of memory and ephemeral storage. Negative amounts are
// errors.
func parseQuantities(memory, disk string) (v1.ResourceList, error) {
	list := v1.ResourceList{}
	for name, text := range map[v1.ResourceName]string{v1.ResourceMemory: memory, v1.ResourceEphemeralStorage: disk} {
		if text == "" {
			continue
		}
		quantity, err := resource.ParseQuantity(text)
		if err != nil || quantity.Sign() < 0 {
			return nil, fmt.Errorf("%s %q: must be a quantity such as 200Mi", name, text)
		}
		list[name] = quantity
	}
	return list, nil
}
