// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// Gentle names the profiles with gentle preemption; see [plugins.Profile].
type Gentle struct {
	Names []string      // scheduler names; "*": all profiles
	Delay time.Duration // 0: none
	// MinRunTime protects pods that started recently; 0: none.
	MinRunTime time.Duration
}

// AddFlags adds the flags to the set.
func (g *Gentle) AddFlags(set *pflag.FlagSet) {
	set.StringSliceVar(&g.Names, gentleFlag[2:], nil,
		"scheduler names of profiles whose pods wait for room that earlier victims are leaving before they preempt "+
			"others, and spare groups of their own priority or a higher one; without =NAME: all")
	set.Lookup(gentleFlag[2:]).NoOptDefVal = "*"
	set.DurationVar(&g.Delay, "preemption-delay", 0,
		"with --gentle-preemption: how long a pod is unschedulable before it preempts others, so that an autoscaler can add nodes instead")
	set.DurationVar(&g.MinRunTime, "preemption-min-run-time", 0,
		"with --gentle-preemption: pods that have run for less than this are preempted only if other pods do not suffice")
}

// gentleFlag is the flag in the form for messages; gentleFlag[2:] is its name.
const gentleFlag = "--gentle-preemption"

// Validate returns the first error, with its flag.
func (g *Gentle) Validate() error {
	switch {
	case g.Delay < 0:
		return fmt.Errorf("--preemption-delay %v: must not be negative", g.Delay)
	case g.Delay > 0 && len(g.Names) == 0:
		return fmt.Errorf("--preemption-delay: requires %s", gentleFlag)
	case g.MinRunTime < 0:
		return fmt.Errorf("--preemption-min-run-time %v: must not be negative", g.MinRunTime)
	case g.MinRunTime > 0 && len(g.Names) == 0:
		return fmt.Errorf("--preemption-min-run-time: requires %s", gentleFlag)
	}
	return nil
}

// Apply applies the flags to profiles, in place.
func (g *Gentle) Apply(profiles []*plugins.Profile) error {
	return forNamed(gentleFlag, g.Names, profiles, func(p *plugins.Profile) {
		p.GentlePreemption, p.PreemptionDelay, p.MinRunTime = true, g.Delay, g.MinRunTime
	})
}
