// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"slices"
	"strings"
)

// Verdict is one side's rejection of one node; nil accepts the pod.
type Verdict struct {
	Plugin       string
	Reasons      []string
	Unresolvable bool
	// Failed is set without a verdict. The error's text differs between the sides and is not
	// compared.
	Failed bool
	Err    string
}

func (v *Verdict) String() string {
	switch {
	case v == nil:
		return "passes"
	case v.Failed:
		return fmt.Sprintf("error in %s: %s", v.Plugin, v.Err)
	case v.Unresolvable:
		return fmt.Sprintf("rejected by %s, unresolvable: %q", v.Plugin, v.Reasons)
	}
	return fmt.Sprintf("rejected by %s: %q", v.Plugin, v.Reasons)
}

// inFlight reports whether upstream waits for devices reserved by an earlier pod and not written
// yet.
func (v *Verdict) inFlight() bool {
	return v != nil && v.Plugin == "DynamicResources" && len(v.Reasons) == 1 &&
		strings.HasSuffix(v.Reasons[0], " is in the process of being allocated")
}

func (v *Verdict) equal(o *Verdict) bool {
	if v == nil || o == nil {
		return v == nil && o == nil
	}
	if v.Failed || o.Failed {
		return v.Failed == o.Failed && v.Plugin == o.Plugin
	}
	// Upstream lists extended resources in map order, so the order of reasons is meaningless.
	return v.Plugin == o.Plugin && v.Unresolvable == o.Unresolvable &&
		slices.Equal(slices.Sorted(slices.Values(v.Reasons)), slices.Sorted(slices.Values(o.Reasons)))
}

// Difference is one disagreement between the sides.
type Difference struct {
	Seed   uint64
	Pod    string
	Node   string // empty when it is not about one node
	Plugin string // empty when it is about all together
	What   string // filter, score, message, ...
	// Upstream and Berth are the results of the sides.
	Upstream, Berth string
}

func (d Difference) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %s of pod %s", d.Seed, d.What, d.Pod)
	if d.Plugin != "" {
		fmt.Fprintf(&b, " by %s", d.Plugin)
	}
	if d.Node != "" {
		fmt.Fprintf(&b, " on %s", d.Node)
	}
	fmt.Fprintf(&b, "\n  upstream: %s\n  berth:    %s\n", d.Upstream, d.Berth)
	return b.String()
}
