// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/berth-k8s/berth/internal/answer"
)

// printPending lists the pods pending at the end because of the operations, by pod group and
// reason.
func (p printer) printPending(list []Waiting) {
	for _, r := range reasonsOf(list) {
		p.Warning("\nPending: %s%s", answer.Count(len(r.pods), "pod"), r.of)
		p.Line("  %s", r.message)
		p.printNames(r.pods)
	}
}

// pendingAnyway prints the pods pending with or without the operations. They are last, because the
// user did not ask for them.
func (p printer) pendingAnyway(list []Waiting) {
	if len(list) == 0 {
		return
	}
	hint := " (-o wide says why)"
	if p.wide {
		hint = ""
	}
	p.Line("\nPending with or without this: %s%s", answer.Count(len(list), "pod"), hint)
	if !p.wide {
		p.Line("  %s", answer.List(len(list), func(i int) string { return list[i].Namespace + "/" + list[i].Name }))
		return
	}
	for _, r := range reasonsOf(list) {
		p.Line("  %s%s: %s", answer.Count(len(r.pods), "pod"), r.of, r.message)
		p.printNames(r.pods)
	}
}

// reason is a reason for pending pods, with the pods.
type reason struct {
	of      string // the pods' group, formatted as a suffix of their number
	message string
	pods    []string
}

// reasonsOf groups pending pods by pod group and reason, in order of first occurrence.
func reasonsOf(list []Waiting) (reasons []reason) {
	at := map[[2]string]int{} // index by group and message
	for _, w := range list {
		// The pod's name in a refusal would make every reason unique.
		r := reason{message: cmp.Or(strings.TrimPrefix(w.Message, fmt.Sprintf("pods %q is ", w.Name)),
			"not tried yet")}
		if w.Group != "" {
			r.of = " of podgroup " + w.Namespace + "/" + w.Group
		}
		// Print one paragraph for each group and reason.
		key := [2]string{r.of, r.message}
		i, known := at[key]
		if !known {
			i, reasons = len(reasons), append(reasons, r)
			at[key] = i
		}
		reasons[i].pods = append(reasons[i].pods, w.Namespace+"/"+w.Name)
	}
	return reasons
}
