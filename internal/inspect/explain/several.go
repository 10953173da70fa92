// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"io"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// Several explains the pods of a workload, or the pods selected by a selector.
type Several struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Of is the workload or selector, Pods is the number of its pods, and Pending is the number of
	// its pods without a node.
	Of      string `json:"of"`
	Pods    int    `json:"pods"`
	Pending int    `json:"pending"`
	// Wanted is the number of pods required by a workload, and Missing is the number of them that
	// do not exist, because of Reason. Reason also explains why a workload wants no pods.
	Wanted  int    `json:"wanted,omitempty"`
	Missing int    `json:"missing,omitempty"`
	Reason  string `json:"reason,omitempty"`
	// Items has one explanation for all pods in the same state for the same reason, beginning with
	// pods without a node.
	Items []Alike `json:"items"`
}

// Alike is a set of pods with the same explanation.
type Alike struct {
	Pods []string `json:"pods"` // as namespace/name
	*Explanation
}

// laterRank returns the sort rank: higher for pods with less to explain, namely schedulable and
// placed ones.
func (a Alike) laterRank() int {
	switch a.State {
	case Placed:
		return 2
	case Schedulable:
		return 1
	}
	return 0
}

// mostAlike is the maximum number of pods explained one by one.
const mostAlike = 100

// OfSeveral explains pods, with one explanation for each set of pods in the same situation.
func OfSeveral(w *simulate.World, of string, found []simulate.Found,
	one func(turn int, pod simulate.Found) (*Explanation, error)) (*Several, error) {
	s := &Several{APIVersion: simulate.APIVersion, Kind: Kind + "List", Of: of, Pods: len(found), Items: []Alike{}}
	turn := map[types.UID]int{} // explaining a pod from a manifest first schedules the pods ahead of it
	for i, p := range w.Queue() {
		turn[p.UID()] = i
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
		s.Pending += 1 - pendingFirst(f)
		if i >= mostAlike {
			continue
		}
		var at int
		if same := slices.IndexFunc(before, func(b explained) bool { return SameReason(b.Found, f) }); same >= 0 {
			at = before[same].item
		} else {
			e, err := one(i, f)
			if err != nil {
				return nil, err
			}
			known := false
			if at, known = reasons[e.Alike()]; !known {
				at = len(s.Items)
				reasons[e.Alike()], s.Items = at, append(s.Items, Alike{Explanation: e})
			}
			before = append(before, explained{f, at})
		}
		s.Items[at].Pods = append(s.Items[at].Pods, f.Object.Namespace+"/"+f.Object.Name)
	}
	slices.SortStableFunc(s.Items, func(a, b Alike) int { return a.laterRank() - b.laterRank() })
	return s, nil
}

// CountMissing sets Wanted and Missing from the workload's required pods, since nonexistent pods
// are missing from any list.
func (s *Several) CountMissing(w *simulate.World, namespace string) error {
	short, err := w.ShortfallOf(s.Of, namespace)
	if err != nil {
		return err
	}
	s.Wanted = short.Wanted
	if s.Missing = short.Missing; s.Missing > 0 {
		s.Reason = short.Reason()
	}
	if s.Wanted == 0 {
		s.Reason = short.Idle
	}
	return nil
}

// pendingFirst sorts pods without a node first.
func pendingFirst(f simulate.Found) int { return min(len(f.Object.Spec.NodeName), 1) }

// Names lists the explained pods.
func (s *Several) Names() (names []string) {
	for i := range s.Items {
		for _, pod := range s.Items[i].Pods {
			_, name, _ := strings.Cut(pod, "/")
			names = append(names, "pod/"+name)
		}
	}
	return names
}

// Write writes the explanations in one of answer.Formats or as names, and otherwise as text.
func (s *Several) Write(out io.Writer, format string) error {
	return answer.Write(out, format, s, func(p *answer.Page) { s.tell(p, format == "wide") })
}

func (s *Several) tell(p *answer.Page, wide bool) {
	switch {
	case s.Missing > 0:
		p.Heading("%s: %s desired, %d existing, %d pending", s.Of, answer.Count(s.Wanted, "pod"), s.Pods, s.Pending)
		p.Line("%s missing, %s.", answer.Count(s.Missing, "pod"), strings.TrimSuffix(s.Reason, "."))
	case s.Pods == 0:
		p.Heading("%s: no pods", s.Of)
		p.Line("It needs none: %s.", strings.TrimSuffix(s.Reason, "."))
	default:
		p.Heading("%s: %s, %d pending", s.Of, answer.Count(s.Pods, "pod"), s.Pending)
	}

	told := 0
	for i := range s.Items {
		p.Line("")
		s.Items[i].tell(p, wide)
		told += len(s.Items[i].Pods)
		if others := s.Items[i].Pods[1:]; len(others) > 0 {
			p.Line("The same holds for %s.", answer.List(len(others), func(j int) string { return others[j] }))
		}
	}
	if told < s.Pods {
		p.Line("")
		p.Line("%s more were not explained individually.", answer.Count(s.Pods-told, "pod"))
	}
}

// Fingerprint returns the explanation without times and without changes caused only by the clock.
func (e *Explanation) Fingerprint() string {
	words := []string{string(e.State), e.Pod.Node, e.Pod.NominatedNode, e.Message}
	if e.Eviction != nil {
		words = append(words, e.Eviction.Taint, e.Eviction.Due.String())
	}
	words = append(words, answer.Mapped(e.Suggestions, func(s Suggestion) string { return s.Text })...)
	return strings.Join(words, "\n")
}

// Fingerprint returns the explanation without times.
func (e *GroupExplanation) Fingerprint() string { return string(e.State) + "\n" + e.Summary }

// Fingerprint returns the explanations without times.
func (s *Several) Fingerprint() string {
	words := []string{strconv.Itoa(s.Pods), strconv.Itoa(s.Pending), strconv.Itoa(s.Missing), s.Reason}
	for i := range s.Items {
		words = append(words, strings.Join(s.Items[i].Pods, ","), s.Items[i].Fingerprint())
	}
	return strings.Join(words, "\n")
}

// SameReason reports whether the explanation of one pending pod is valid for the other. One
// explanation may thus serve thousands of pods. Both pods must belong to one class, and nothing
// else may affect only one of them. It excludes pods from manifests, which are placed one after the
// other, and members of a pod group, because each has a separate place in the group.
func SameReason(a, b simulate.Found) bool {
	return a.Pod != nil && b.Pod != nil && a.Pod.Class == b.Pod.Class && waitsLikeOthers(a) && waitsLikeOthers(b)
}

// waitsLikeOthers reports whether only the pod's class determines why it is pending. A nomination,
// a gate or a group concerns a single pod.
func waitsLikeOthers(f simulate.Found) bool {
	p := f.Object
	return simulate.Stored(p) && f.Refused == "" && f.Group == "" && p.DeletionTimestamp == nil &&
		p.Spec.NodeName == "" && len(p.Spec.SchedulingGates) == 0 && p.Status.NominatedNodeName == ""
}
