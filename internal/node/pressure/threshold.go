// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	cliflag "k8s.io/component-base/cli/flag"
)

// Config holds the values of the kubelet's --eviction-* flags, by signal. The zero value has no
// thresholds, so that a node is never under pressure.
type Config struct {
	Hard, Soft, SoftGrace, MinimumReclaim map[string]string
	// Transition is the time for which a condition stays true after its threshold was last met, so
	// that it does not flap.
	Transition time.Duration
	// MaxPodGrace is the maximum time, in seconds, that a pod gets to end after a soft threshold.
	// After a hard threshold it gets one second.
	MaxPodGrace int32
}

// DefaultConfig returns the kubelet's defaults. Each call returns a new map.
func DefaultConfig() Config {
	return Config{
		Hard: map[string]string{
			"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
			"imagefs.available": "15%", "imagefs.inodesFree": "5%",
		},
		Transition: 5 * time.Minute,
	}
}

// AddFlags adds the kubelet's flags to a command, with the present values as defaults.
func (c *Config) AddFlags(flags *pflag.FlagSet) {
	flags.Var(cliflag.NewLangleSeparatedMapStringString(&c.Hard), "eviction-hard",
		"thresholds below which pods are evicted immediately, such as memory.available<1Gi; replaces all defaults")
	flags.Var(cliflag.NewLangleSeparatedMapStringString(&c.Soft), "eviction-soft",
		"thresholds below which pods are evicted after a grace period, such as memory.available<1.5Gi")
	flags.Var(cliflag.NewMapStringString(&c.SoftGrace), "eviction-soft-grace-period",
		"grace periods of --eviction-soft, such as memory.available=1m30s")
	flags.Var(cliflag.NewMapStringString(&c.MinimumReclaim), "eviction-minimum-reclaim",
		"minimum amount to reclaim beyond the threshold, such as imagefs.available=2Gi")
	flags.DurationVar(&c.Transition, "eviction-pressure-transition-period", c.Transition,
		"how long a pressure condition stays true after it was last observed")
	flags.Int32Var(&c.MaxPodGrace, "eviction-max-pod-grace-period", c.MaxPodGrace,
		"maximum grace period, in seconds, of a pod that a soft threshold evicts")
}

// amount is a quantity or a fraction of the capacity.
type amount struct {
	quantity *resource.Quantity
	fraction float32 // fraction of the capacity; float32 as in the kubelet, so that thresholds in messages are identical
}

// quantityOf returns the quantity of the amount for a capacity. The result is new and may be
// changed.
func (a amount) quantityOf(capacity int64) resource.Quantity {
	if a.quantity != nil {
		return a.quantity.DeepCopy()
	}
	return *resource.NewQuantity(int64(float64(capacity)*float64(a.fraction)), resource.BinarySI)
}

// Threshold is met while less than its amount is available. A fraction refers to the capacity in
// the same Level.
type Threshold struct {
	Signal Signal
	// Grace is the time that the threshold must be met before a pod is evicted; 0: a hard
	// threshold.
	Grace   time.Duration
	amount  amount
	reclaim amount // amount to free beyond the threshold once it has been met
}

// isHard reports whether pods are evicted as soon as the threshold is met.
func (t Threshold) isHard() bool { return t.Grace == 0 }

// Thresholds parses the configuration. Memory thresholds precede all others, and hard thresholds
// precede soft ones in each group. This is the order in which the kubelet frees scarce resources.
func (c Config) Thresholds() ([]Threshold, error) {
	if c.Transition < 0 {
		return nil, fmt.Errorf("--eviction-pressure-transition-period: %s must not be negative", c.Transition)
	}
	if c.MaxPodGrace < 0 {
		return nil, fmt.Errorf("--eviction-max-pod-grace-period: %d must not be negative", c.MaxPodGrace)
	}

	reclaims, err := c.parseReclaims()
	if err != nil {
		return nil, err
	}

	all, err := parseThresholds("--eviction-hard", c.Hard, reclaims)
	if err != nil {
		return nil, err
	}

	if i := slices.IndexFunc(all, func(t Threshold) bool { return t.Signal == Memory }); i >= 0 {
		// As in the kubelet, the memory left for all pods has the threshold of the node's memory.
		pods := all[i]
		pods.Signal = AllocatableMemory
		all = slices.Insert(all, i+1, pods)
	}

	soft, err := parseThresholds("--eviction-soft", c.Soft, reclaims)
	if err != nil {
		return nil, err
	}
	if err := c.addGraces(soft); err != nil {
		return nil, err
	}

	// Hard thresholds are first; filterThresholds preserves the order.
	all = append(all, soft...)
	memory := func(t Threshold) bool { return t.Signal.isMemory() }
	return append(filterThresholds(all, memory), filterThresholds(all, func(t Threshold) bool { return !memory(t) })...), nil
}

// filterThresholds returns the thresholds to keep, in order.
func filterThresholds(all []Threshold, keep func(Threshold) bool) []Threshold {
	return slices.DeleteFunc(slices.Clone(all), func(t Threshold) bool { return !keep(t) })
}

// parseThresholds parses the thresholds of one flag, in a fixed order.
func parseThresholds(flag string, statements map[string]string, reclaims map[Signal]amount) (all []Threshold, err error) {
	for _, signal := range signalsIn(statements) {
		value, some, err := parseThreshold(flag, signal, statements[string(signal)])
		if err != nil {
			return nil, err
		}
		// As in the kubelet, the thresholds of containerfs follow from imagefs or nodefs.
		if some && signal != containerFs && signal != containerFsInodes {
			all = append(all, Threshold{Signal: signal, amount: value, reclaim: reclaims[signal]})
		}
	}
	return all, nil
}

// addGraces sets the grace periods of soft thresholds. Each soft threshold requires one.
func (c Config) addGraces(soft []Threshold) error {
	graces, err := c.parseGraces()
	if err != nil {
		return err
	}
	for i := range soft {
		grace, found := graces[soft[i].Signal]
		if !found {
			return fmt.Errorf("grace period must be specified for the soft eviction threshold %s: add it to "+
				"--eviction-soft-grace-period", soft[i].Signal)
		}
		soft[i].Grace = grace
	}
	return nil
}

// signalsIn lists the signals of a flag in a fixed order, so that errors and thresholds are ordered
// as well.
func signalsIn(statements map[string]string) []Signal {
	var all []Signal
	for _, name := range slices.Sorted(maps.Keys(statements)) {
		all = append(all, Signal(name))
	}
	return all
}

// checkSignal rejects unknown signals.
func checkSignal(flag string, signal Signal) error {
	if _, found := meanings[signal]; found {
		return nil
	}
	return fmt.Errorf("%s: unsupported eviction signal %q: must be one of %v", flag, string(signal), slices.Sorted(maps.Keys(meanings)))
}

// parseThreshold parses one statement. The texts 0% and 100% disable a threshold: the result named
// some is then false.
func parseThreshold(flag string, signal Signal, text string) (value amount, some bool, err error) {
	if err := checkSignal(flag, signal); err != nil {
		return amount{}, false, err
	}
	if text == "0%" || text == "100%" {
		return amount{}, false, nil
	}
	if value, err = parseAmount(text); err != nil {
		return amount{}, false, fmt.Errorf("%s: %s: %w", flag, signal, err)
	}
	switch {
	case value.quantity == nil && (value.fraction < 0 || value.fraction > 1):
		return amount{}, false, fmt.Errorf("%s: %s: %s must be from 0%% to 100%%", flag, signal, text)
	case value.quantity != nil && value.quantity.Sign() <= 0:
		return amount{}, false, fmt.Errorf("%s: %s: %s must be positive", flag, signal, text)
	}
	return value, true, nil
}

// parseGraces parses --eviction-soft-grace-period. A signal without a soft threshold is allowed.
func (c Config) parseGraces() (map[Signal]time.Duration, error) {
	const flag = "--eviction-soft-grace-period"
	all := map[Signal]time.Duration{}
	for _, signal := range signalsIn(c.SoftGrace) {
		if err := checkSignal(flag, signal); err != nil {
			return nil, err
		}
		grace, err := time.ParseDuration(c.SoftGrace[string(signal)])
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", flag, signal, err)
		}
		if grace < 0 {
			return nil, fmt.Errorf("%s: %s: %s must not be negative", flag, signal, grace)
		}
		all[signal] = grace
	}
	return all, nil
}

// parseReclaims parses --eviction-minimum-reclaim.
func (c Config) parseReclaims() (map[Signal]amount, error) {
	const flag = "--eviction-minimum-reclaim"
	all := map[Signal]amount{}
	for _, signal := range signalsIn(c.MinimumReclaim) {
		if err := checkSignal(flag, signal); err != nil {
			return nil, err
		}
		text := c.MinimumReclaim[string(signal)]
		value, err := parseAmount(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", flag, signal, err)
		}
		if value.quantity == nil && value.fraction <= 0 || value.quantity != nil && value.quantity.Sign() < 0 {
			return nil, fmt.Errorf("%s: %s: %s must be positive", flag, signal, text)
		}
		all[signal] = value
	}

	return all, nil
}

// parseAmount parses a quantity, or a percentage of the capacity.
func parseAmount(text string) (amount, error) {
	if number, percent := strings.CutSuffix(text, "%"); percent {
		value, err := strconv.ParseFloat(number, 32)
		if err != nil || math.IsNaN(value) || math.IsInf(value, 0) {
			return amount{}, fmt.Errorf("%q is not a percentage", text)
		}
		return amount{fraction: float32(value) / 100}, nil
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return amount{}, fmt.Errorf("%q is neither a quantity nor a percentage", text)
	}
	return amount{quantity: &quantity}, nil
}

// String formats the threshold as in the flags, with its grace period and minimum reclaim.
func (t Threshold) String() string {
	text := fmt.Sprintf("%s<%s", t.Signal, t.amount)
	if !t.isHard() {
		text += fmt.Sprintf(" for %s", t.Grace)
	}
	if t.reclaim != (amount{}) {
		text += fmt.Sprintf(", then %s more", t.reclaim)
	}
	return text
}

// String formats the amount as in the flags.
func (a amount) String() string {
	if a.quantity != nil {
		return a.quantity.String()
	}
	return fmt.Sprintf("%g%%", math.Round(float64(a.fraction)*1e4)/1e2)
}
