// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"slices"
	"strings"
)

// Verdict is the rejection of one node by one side. A nil Verdict accepts the node.
type Verdict struct {
	Plugin       string
	Reasons      []string
	Unresolvable bool
	// Failed is set if an error prevented a verdict. Err is its text, which differs between the
	// sides and is not compared.
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

// inFlight reports whether upstream rejects the pod because a claim's allocation for an earlier pod
// has not been written yet.
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
	// Upstream lists extended resources in map order, so the order of reasons is random.
	return v.Plugin == o.Plugin && v.Unresolvable == o.Unresolvable &&
		slices.Equal(slices.Sorted(slices.Values(v.Reasons)), slices.Sorted(slices.Values(o.Reasons)))
}

// Difference is one difference between the results of the two sides.
type Difference struct {
	Seed   uint64
	Pod    string
	Node   string // empty if the difference is not limited to one node
	Plugin string // empty if the difference is in the results of all plugins together
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
