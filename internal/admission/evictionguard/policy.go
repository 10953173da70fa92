// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionguard

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// Annotations of a workload or a namespace. Those of the workload take precedence.
const (
	// PolicyAnnotation is one of the policies.
	PolicyAnnotation = "berth.dev/eviction-policy"
	// DeadlineAnnotation is the time for which an eviction is held at most, such as 5m.
	DeadlineAnnotation = "berth.dev/eviction-deadline"
	// AfterDeadlineAnnotation is admit or deny: the answer to an eviction after the deadline.
	AfterDeadlineAnnotation = "berth.dev/eviction-after-deadline"
)

// The policies: what an eviction waits for.
const (
	Surge  = "surge"  // a ready replacement; if the workload cannot grow, the fallback applies
	Place  = "place"  // a node for the replacement
	Finish = "finish" // the end of the pod, if it belongs to a Job
	Allow  = "allow"  // nothing
	// Deny is the choice to refuse an eviction after the deadline.
	Deny = "deny"
)

// Options are the operator's bounds. The webhook and the controller must have the same ones.
type Options struct {
	// Deadline is the default and the longest deadline, ShortestDeadline to DefaultDeadline.
	Deadline time.Duration
	// Fallback is the policy of pods that cannot be replaced first, Allow or Place.
	Fallback string
	// Choices lists the values that annotations may set: the policies, and Deny. Others are
	// ignored.
	Choices []string
	// Share bounds the concurrent surges, as a share of the cluster's pods. The webhook ignores it.
	Share float64
}

// DefaultOptions returns the defaults of the flags. Annotations may not hold pods that the guard
// would not hold without them.
func DefaultOptions() Options {
	return Options{Deadline: DefaultDeadline, Fallback: Allow, Choices: []string{Surge, Allow}, Share: 0.05}
}

// AddFlags adds the flags, with o as defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&o.Deadline, "guard-deadline", o.Deadline,
		"eviction guard: how long an eviction is held at most, 1m to 10m; annotations may shorten it")
	flags.StringVar(&o.Fallback, "guard-fallback", o.Fallback,
		"eviction guard: the policy of pods that cannot be replaced first: allow, or place, which holds their evictions until "+
			"a node for the replacement is proved; the webhook and the controller need the same value")
	flags.StringSliceVar(&o.Choices, "guard-choices", o.Choices,
		"eviction guard: what annotations of workloads and namespaces may choose, of surge, place, finish, allow, and deny; "+
			"the webhook and the controller need the same value")
}

// AddControllerFlags adds the flags including those of the controller only.
func (o *Options) AddControllerFlags(flags *pflag.FlagSet) {
	o.AddFlags(flags)
	flags.Float64Var(&o.Share, "guard-share", o.Share,
		"eviction guard: most pods that are replaced at the same time, as a share of the cluster's pods, but at least 30; "+
			"while pods of several namespaces wait, half of them in one namespace")
}

// WebhookFlags returns the command line flags for the webhook.
func (o *Options) WebhookFlags() []string {
	return []string{"--guard-deadline", o.Deadline.String(), "--guard-fallback", o.Fallback, "--guard-choices", strings.Join(o.Choices, ",")}
}

// Validate returns an error for the first invalid option. The error names its flag.
func (o *Options) Validate() error {
	if o.Deadline < ShortestDeadline || o.Deadline > DefaultDeadline {
		return fmt.Errorf("--guard-deadline: %v: must be 1m to 10m", o.Deadline)
	}
	if o.Fallback != Allow && o.Fallback != Place {
		return fmt.Errorf("--guard-fallback: %q: must be allow or place", o.Fallback)
	}
	if o.Share < 0 || o.Share > 1 {
		return fmt.Errorf("--guard-share: %v: must be 0 to 1", o.Share)
	}
	for _, choice := range o.Choices {
		if all := []string{Surge, Place, Finish, Allow, Deny}; !slices.Contains(all, choice) {
			return fmt.Errorf("--guard-choices: %q: must be of %s", choice, strings.Join(all, ", "))
		}
	}
	return nil
}

// chooses reports whether annotations may choose a value.
func (o *Options) chooses(value string) bool { return slices.Contains(o.Choices, value) }

// holdsOthers reports whether evictions of pods that cannot be replaced first may be held.
func (o *Options) holdsOthers() bool {
	return o.Fallback == Place || o.chooses(Place) || o.chooses(Finish)
}

// Rule is the treatment of a workload's evictions.
type Rule struct {
	Policy   string
	Deadline time.Duration
	Deny     bool // after the deadline
}

// RuleOf returns the rule by the annotations of a workload and of its namespace. Values that are
// invalid or that the operator does not allow are ignored.
func (o *Options) RuleOf(workload, namespace map[string]string) Rule {
	rule := Rule{Policy: Surge, Deadline: o.Deadline}
	for _, annotations := range []map[string]string{namespace, workload} {
		if policy := annotations[PolicyAnnotation]; policy != Deny && o.chooses(policy) {
			rule.Policy = policy
		}
		if d, err := time.ParseDuration(annotations[DeadlineAnnotation]); err == nil {
			rule.Deadline = min(max(d, ShortestDeadline), o.Deadline)
		}
		if after := annotations[AfterDeadlineAnnotation]; after == "admit" || after == Deny && o.chooses(Deny) {
			rule.Deny = after == Deny
		}
	}
	return rule
}
