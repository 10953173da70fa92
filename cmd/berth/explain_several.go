package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// several is the answer about the pods of a workload, or those that a selector selects.
type several struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Of is the workload or selector, Pods the number of its pods, and Pending how many of them
	// have no node.
	Of      string `json:"of"`
	Pods    int    `json:"pods"`
	Pending int    `json:"pending"`
	// Wanted is how many pods a workload wants. Missing of them do not exist, and Reason says why.
	Wanted  int    `json:"wanted,omitempty"`
	Missing int    `json:"missing,omitempty"`
	Reason  string `json:"reason,omitempty"`
	// Items has one explanation for all pods that are in the same state for the same reason, those
	// without a node first.
	Items []alike `json:"items"`
}

// alike are pods with the same explanation.
type alike struct {
	Pods []string `json:"pods"` // as namespace/name
	*explain.Explanation
}

// laterRank is more for pods that there is less to say of: those that will have a node, and those
// that have one.
func (a alike) laterRank() int {
	switch a.State {
	case explain.Placed:
		return 2
	case explain.Schedulable:
		return 1
	}
	return 0
}

// severalKind is the kind of such answers.
const severalKind = "ExplanationList"

// mostAlike is how many of a workload's pods are explained one by one.
const mostAlike = 100

// ofSeveral explains the pods of a workload, or those that a selector matches.
func (e *explanation) ofSeveral(cmd *cobra.Command, of string) (*spoken, error) {
	w, source, err := e.readWorld(cmd)
	if err != nil {
		return nil, err
	}
	defer e.work.endWork()
	namespace := e.namespaceOr(e.namespace)
	found, err := e.findPods(w, of, namespace)
	if err != nil {
		return nil, err
	}
	said := &several{APIVersion: simulate.APIVersion, Kind: severalKind, Of: of, Pods: len(found), Items: []alike{}}
	if e.selector == "" {
		if err := said.countMissing(w, of, namespace); err != nil {
			return nil, err
		}
	}
	turn := map[types.UID]int{} // explaining a pod from a manifest has the turn of those before it come
	for i, p := range w.Queue() {
		turn[p.UID] = i
	}
	slices.SortStableFunc(found, func(a, b simulate.Found) int {
		return cmp.Or(pendingFirst(a)-pendingFirst(b), turn[a.Object.UID]-turn[b.Object.UID])
	})
	reasons := map[string]int{}
	type explained struct {
		simulate.Found
		item int
	}
	var before []explained
	for i, f := range found {
		said.Pending += 1 - pendingFirst(f)
		if i >= mostAlike {
			continue
		}
		name := f.Object.Namespace + "/" + f.Object.Name
		if i := slices.IndexFunc(before, func(b explained) bool { return explain.SameReason(b.Found, f) }); i >= 0 {
			item := &said.Items[before[i].item]
			item.Pods = append(item.Pods, name)
			continue
		}
		decided := e.lastDecision(cmd, f.Object.Namespace, f.Object.Name)
		e.work.beginStep(cmd.ErrOrStderr(), fmt.Sprintf("explaining %d of %d pods", i+1, len(found)))
		one, err := explain.Of(w, explain.Options{Namespace: f.Object.Namespace, Name: f.Object.Name, Source: source, Decided: decided})
		e.work.clearLine()
		if err != nil {
			return nil, err
		}
		reason := one.Alike()
		at, known := reasons[reason]
		if !known {
			at = len(said.Items)
			reasons[reason], said.Items = at, append(said.Items, alike{Explanation: one})
		}
		said.Items[at].Pods = append(said.Items[at].Pods, name)
		before = append(before, explained{f, at})
	}
	slices.SortStableFunc(said.Items, func(a, b alike) int { return a.laterRank() - b.laterRank() })
	write := func() error {
		if err := e.writeOpening(cmd.OutOrStdout()); err != nil {
			return err
		}
		return answer.Write(cmd.OutOrStdout(), e.output, said, func(p *answer.Page) { said.writeTo(p, e.output == "wide") })
	}
	return &spoken{said.listGist(), write}, nil
}

// countMissing counts what the workload wants: pods that do not exist are missing in any list.
func (s *several) countMissing(w *simulate.World, of, namespace string) error {
	short, err := w.ShortfallOf(of, namespace)
	if err != nil {
		return err
	}
	s.Wanted = short.Wanted
	if s.Missing = short.Missing; s.Missing > 0 {
		s.Reason = short.Reason()
	}
	if s.Pods == 0 && s.Missing == 0 {
		return fmt.Errorf("%s in namespace %s has no pods, and wants none", of, namespace)
	}
	return nil
}

func (s *several) listGist() string {
	words := []string{strconv.Itoa(s.Pods), strconv.Itoa(s.Pending), strconv.Itoa(s.Missing), s.Reason}
	for i := range s.Items {
		words = append(words, strings.Join(s.Items[i].Pods, ","), explanationGist(s.Items[i].Explanation))
	}
	return strings.Join(words, "\n")
}

// Names are the pods that were explained.
func (s *several) Names() (names []string) {
	for i := range s.Items {
		for _, pod := range s.Items[i].Pods {
			_, name, _ := strings.Cut(pod, "/")
			names = append(names, "pod/"+name)
		}
	}
	return names
}

func (s *several) writeTo(p *answer.Page, wide bool) {
	if s.Missing > 0 {
		p.Heading("%s: %s wanted, %d existing, %d pending", s.Of, answer.Count(s.Wanted, "pod"), s.Pods, s.Pending)
		p.Line("%s missing: they %s.", answer.Count(s.Missing, "pod"), strings.TrimSuffix(s.Reason, "."))
	} else {
		p.Heading("%s: %s, %d pending", s.Of, answer.Count(s.Pods, "pod"), s.Pending)
	}

	told := 0
	for i := range s.Items {
		p.Line("")
		s.Items[i].Tell(p, wide)
		told += len(s.Items[i].Pods)
		if others := s.Items[i].Pods[1:]; len(others) > 0 {
			p.Line("The same holds for %s.", answer.List(len(others), func(j int) string { return others[j] }))
		}
	}

	if told < s.Pods {
		p.Line("")
		p.Line("%s more were not looked at one by one.", answer.Count(s.Pods-told, "pod"))
	}
}

// findPods returns the pods of the workload or selector.
func (e *explanation) findPods(w *simulate.World, of, namespace string) (found []simulate.Found, err error) {
	if e.selector == "" {
		return w.PodsOf(of, namespace)
	}
	selector, err := labels.Parse(e.selector)
	if err != nil {
		return nil, usagef("--selector %q: %w", e.selector, err)
	}

	for _, f := range w.Each() {
		if (e.allNamespaces || f.Object.Namespace == namespace) && selector.Matches(labels.Set(f.Object.Labels)) {
			found = append(found, f)
		}
	}

	if len(found) == 0 {
		where := "in namespace " + namespace
		if e.allNamespaces {
			where = "in any namespace"
		}
		return nil, fmt.Errorf("no pod %s has the labels %s", where, e.selector)
	}
	return found, nil
}

// pendingFirst sorts pods without a node first.
func pendingFirst(f simulate.Found) int {
	if f.Object.Spec.NodeName == "" {
		return 0
	}
	return 1
}

// ofWorkload reports whether an argument names something other than a pod.
func ofWorkload(arg string) bool {
	kind, _, typed := strings.Cut(arg, "/")
	return typed && !slices.Contains(podWords, strings.ToLower(kind))
}
