// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// TenantReport holds the tenant's actions and their effects on other namespaces.
type TenantReport struct {
	Report
	Peace, Tenant, After figures // figures of the witness
	Calm, Left           map[string]size
	Decided              decisions
	Evicted              time.Duration // time taken by the API server to delete the tenant's objects
}

func (t *tenancy) makeTenantReport() *TenantReport {
	return &TenantReport{Report: *t.campaign.makeReport(), Peace: t.peace, Tenant: t.war, After: t.again, Calm: t.calm,
		Left: t.after, Decided: t.decided, Evicted: t.evicted}
}

// Print writes the human-readable report.
func (r *TenantReport) Print(to io.Writer) {
	out := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintf(out, "\nseed %d, %d nodes, %s\n", r.Seed, r.Nodes, r.Took)
	printTable(out, "what the tenant did", r.Deeds)
	printTable(out, "what the API server refused it", r.Requests)
	printTable(out, "processes that ended by themselves", r.Ends)
	fmt.Fprintf(out, "\nhow long pods of the witness waited for a node\n  in peace\t%v\n  with the tenant\t%v\n  "+
		"after it\t%v\n", r.Peace, r.Tenant, r.After)
	fmt.Fprintf(out, "\ndecisions\t%d, longer than %ss: %d\n", r.Decided.all, longDecision, r.Decided.long)

	fmt.Fprint(out, "\nmemory\tin peace\tat most\tafter\n")
	for name, calm := range r.Calm {
		fmt.Fprintf(out, "  %s\t%d MiB\t%s\t%d MiB\n", name, calm.memory>>20, r.Sizes[name], r.Left[name].memory>>20)
	}

	fmt.Fprintf(out, "\nwhat it left was deleted after\t%v\n", r.Evicted.Round(100*time.Millisecond))
	for _, took := range r.Rests {
		fmt.Fprintf(out, "back to normal after another\t%v\n", took.Round(100*time.Millisecond))
	}

	out.Flush()
	fmt.Fprintf(to, "\n%d promises broken\n", len(r.Violations))
	for i, v := range r.Violations {
		fmt.Fprintf(to, "\n%d. after %s (%s): %s\n   %s\n", i+1, v.After, v.At.Format("15:04:05.000"), v.Promise, v.What)
		for _, l := range v.Lines {
			fmt.Fprintf(to, "     %.600s\n", l)
		}
	}
}
