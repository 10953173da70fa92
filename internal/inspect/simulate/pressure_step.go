package simulate

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/node/pressure"
)

// Pressure leaves so much of nodes' memory or disk available, whatever it is that takes the
// rest. What evicted pods used is free afterwards. Amounts are quantities such as 200Mi; an
// empty one leaves that resource as it is.
type Pressure struct {
	Nodes
	Memory           string `json:"memory,omitempty"`
	EphemeralStorage string `json:"ephemeralStorage,omitempty"`
	// The fields of the nodes' KubeletConfiguration; if none is set, they stay as they are, at
	// first the kubelet's defaults.
	EvictionHard                     map[string]string `json:"evictionHard,omitempty"`
	EvictionSoft                     map[string]string `json:"evictionSoft,omitempty"`
	EvictionSoftGracePeriod          map[string]string `json:"evictionSoftGracePeriod,omitempty"`
	EvictionMinimumReclaim           map[string]string `json:"evictionMinimumReclaim,omitempty"`
	EvictionPressureTransitionPeriod *metav1.Duration  `json:"evictionPressureTransitionPeriod,omitempty"`
	EvictionMaxPodGracePeriod        *int32            `json:"evictionMaxPodGracePeriod,omitempty"`
}

// Use has a pod use so much from now on: a leak, or a job that has begun. What is not named
// stays.
type Use struct {
	Pod              string `json:"pod"` // NAME or pod/NAME
	Namespace        string `json:"namespace,omitempty"`
	Memory           string `json:"memory,omitempty"`
	EphemeralStorage string `json:"ephemeralStorage,omitempty"`
}

// config returns the thresholds that are set; nil if none is. As in a KubeletConfiguration,
// naming evictionHard replaces all hard defaults. There are no soft thresholds unless they
// are named.
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

	if p.EvictionMaxPodGracePeriod != nil {
		c.MaxPodGrace = *p.EvictionMaxPodGracePeriod
	}
	if _, err := c.Thresholds(); err != nil {
		return nil, errors.New(fieldsOfFlags.Replace(err.Error()))
	}
	return &c, nil
}

// fieldsOfFlags has the fields of a KubeletConfiguration for the kubelet's flags that errors
// name. A flag that begins with another one comes before it: the first that matches is
// replaced.
var fieldsOfFlags = strings.NewReplacer(
	"--eviction-hard", "evictionHard", "--eviction-soft-grace-period", "evictionSoftGracePeriod", "--eviction-soft", "evictionSoft",
	"--eviction-minimum-reclaim", "evictionMinimumReclaim", "--eviction-pressure-transition-period", "evictionPressureTransitionPeriod",
	"--eviction-max-pod-grace-period", "evictionMaxPodGracePeriod",
)

// parseQuantities parses those of memory and ephemeral storage that are named. Negative ones
// are errors.
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
