package explain

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/decision"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// KindGroup is the kind of the answer about a pod group.
const KindGroup = "PodGroupExplanation"

// GroupExplanation is the state of a pod group, and the outcome of an attempt for it if it were
// made now.
type GroupExplanation struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Source     simulate.Source `json:"source"`
	Namespace  string          `json:"namespace"`
	Name       string          `json:"name"`
	// State is Placed (no pod of it waits), Schedulable (it would be placed now), Pending, or Gated
	// (it is not tried: there is no PodGroup, or too few pods).
	State State `json:"state"`
	// Summary is the explanation in one sentence.
	Summary string `json:"summary"`
	// MinCount is how many pods a gang needs at once; 0 for a basic group. Topology is the label
	// whose value all nodes must share.
	MinCount int    `json:"minCount,omitempty"`
	Topology string `json:"topology,omitempty"`
	// Scheduled is set if the group has been scheduled before, according to its condition.
	// Replacements of its pods are placed one by one.
	Scheduled bool `json:"scheduled"`
	// LastDecision is what the scheduler wrote to the group's condition, if anything.
	LastDecision *LastDecision `json:"lastDecision,omitempty"`
	// Now is the outcome of an attempt; left out if no pod of the group waits.
	Now *decision.GroupTrial `json:"now,omitempty"`
	// Leaving are the terminating pods that make room for the group. If there are any, or if the
	// group makes room by preemption, nothing needs to be done, and nothing is suggested.
	Leaving *Leaving `json:"leaving,omitempty"`
	// Suggestions are changes with which the group would be placed, the smallest first. Each of
	// them has been tried.
	Suggestions []GroupSuggestion `json:"suggestions,omitempty"`
	// Pods are all members by name, with the node that each has, or would get with the others.
	Pods []GroupPod `json:"pods"`
}

// GroupPod is a member, and the node that it has or would get.
type GroupPod struct {
	Name string `json:"name"`
	Node string `json:"node,omitempty"`
	// Waits is set if it does not have the node yet.
	Waits   bool   `json:"waits,omitempty"`
	Message string `json:"message,omitempty"`
}

// OfGroup explains a pod group of the world. The world is left as it was, except that
// pods from manifests are placed if they are ahead of the group in the queue.
// Options.Node and Options.Decided have no meaning here.
func OfGroup(w *simulate.World, o Options) (*GroupExplanation, error) {
	g := w.Group(o.Namespace, o.Name)
	if g == nil {
		return nil, fmt.Errorf("podgroup %s/%s: %w", o.Namespace, o.Name, ErrNoPod)
	}

	out := &GroupExplanation{
		APIVersion: simulate.APIVersion, Kind: KindGroup, Source: o.Source, Namespace: o.Namespace, Name: o.Name,
		MinCount: g.MinCount(), Topology: g.TopologyKey(), Scheduled: g.Scheduled(), Pods: []GroupPod{},
	}

	// What the scheduler wrote last, which may be older than the cluster's state.
	if c := g.Condition(); c != nil {
		out.LastDecision = &LastDecision{At: metav1.NewTime(c.LastTransitionTime.Time), Reason: c.Reason, Message: c.Message}
	}
	out.Now = w.TryGroup(o.Namespace, o.Name)
	placed := 0

	// Members that wait are shown with the node that they would get together: alone, each
	// might get another one.
	for _, p := range w.MembersOf(g) {
		one := GroupPod{Name: p.Object.Name, Node: p.Object.Spec.NodeName, Waits: p.Object.Spec.NodeName == ""}
		if !one.Waits {
			placed++
		} else if out.Now != nil {
			// The attempt has a place for each member that it tried.
			if i := slices.IndexFunc(out.Now.Pods, func(t decision.GroupPlace) bool { return t.Name == one.Name }); i >= 0 {
				one.Node, one.Message = out.Now.Pods[i].Node, out.Now.Pods[i].Message
			} else {
				one.Message = cmp.Or(w.Gate(p.Pod), "it is not tried with the others")
			}
		}
		out.Pods = append(out.Pods, one)
	}

	out.State, out.Summary = groupState(out.Now, placed, len(out.Pods))
	if out.State == Pending && len(out.Now.Victims) == 0 {
		search := &groupSearch{w: w, g: g, now: out.Now}
		out.Summary, out.Leaving, out.Suggestions = search.adviseGroup(out.Summary, placed)
	}
	return out, w.Err()
}

// adviseGroup says what a pending group waits for or, if nothing does that by itself,
// what would help. It extends the summary; leaving and suggestions are never both set.
func (s *groupSearch) adviseGroup(summary string, placed int) (says string, leaving *Leaving, suggestions []GroupSuggestion) {
	text := strings.TrimSuffix(summary, ".")
	if leaving = s.afterLeaving(s.w.MembersOf(s.g)); leaving != nil {
		return text + ". It " + leaving.Summary() + ". Nothing needs to be done.", leaving, nil
	}
	if suggestions = s.suggestChanges(placed); len(suggestions) > 0 {
		return text + ". Smallest change: " + suggestions[0].Text + ".", nil, suggestions
	}
	return summary, nil, nil
}

// printGroupSuggestions prints what would place a group. There are no commands: nodes are
// added by other means, and a PodGroup is immutable.
func printGroupSuggestions(page *answer.Page, group string, list []GroupSuggestion) {
	if len(list) == 0 {
		return
	}
	page.Line("\nWith any one of these %s would be placed, the smallest change first:", group)
	for i, s := range list {
		page.Line("  %d. %s", i+1, s.Text)
	}
}

// groupState is the state of a group and its summary, from an attempt for it (nil: no pod
// of it waits) and the numbers of its pods that have a node, and of all.
func groupState(t *decision.GroupTrial, placed, all int) (State, string) {
	switch {
	case t == nil && all == 0:
		return Gated, "The group has no pods."
	// No member is tried, although not all are placed: each is gated by itself.
	case t == nil && placed < all:
		return Gated, fmt.Sprintf("%d of %d pods have a node; the others are kept out by gates of their own.", placed, all)
	case t == nil:
		return Placed, fmt.Sprintf("All %s have a node.", answer.Count(all, "pod"))
	case t.Incomplete:
		return Gated, "The group is not tried yet: " + t.Message + "."
	case len(t.Victims) > 0:
		return Pending, fmt.Sprintf("The group can make room by removing %s. As things are, %s",
			answer.Count(len(t.Victims), "pod"), t.Message)
	case t.Message != "":
		return Pending, "The group is pending: " + t.Message
	// A basic group is placed as far as it fits, or a gang with more pods than it
	// needs.
	case t.Fit < t.Tried:
		return Schedulable, fmt.Sprintf("The group waits for its turn: %d of %d pods would be placed now.", t.Fit, t.Tried)
	}

	return Schedulable, fmt.Sprintf("The group waits for its turn: %s would be placed now.", answer.Count(t.Fit, "pod"))
}

// Names returns the group as kubectl -o name writes it, for answer.Named.
func (e *GroupExplanation) Names() []string { return []string{"podgroup/" + e.Name} }

// Write writes the explanation in one of answer.Formats, or as a name; any other is for people.
func (e *GroupExplanation) Write(out io.Writer, format string) error {
	return answer.Write(out, format, e, e.writeTo)
}

// writeTo writes the explanation for people.
func (e *GroupExplanation) writeTo(page *answer.Page) {
	page.Heading("podgroup %s/%s: %s", e.Namespace, e.Name, e.State)
	page.Line("%s", e.Summary)
	if e.MinCount > 0 {
		page.Line("A gang: %d pods at once.", e.MinCount)
	}

	if e.Topology != "" {
		page.Line("All on nodes with one value of %s.", e.Topology)
	}
	if len(e.Pods) > 0 {
		rows, above := [][]string{{"POD", "NODE", "WHY"}}, ""
		for _, p := range e.Pods {
			node := cmp.Or(p.Node, "<none>")
			why := p.Message
			if p.Waits && p.Node != "" {
				why = "would go there, with the others"
			}
			whole := why
			// Members of a group usually wait for the same reason.
			if why == above && strings.Count(why, " ") > 3 {
				why = "as above"
			}
			above = whole
			rows = append(rows, []string{p.Name, node, why})
		}
		page.Line("")
		page.Table("  ", rows)
	}

	if e.Now != nil && len(e.Now.Victims) > 0 {
		page.Line("\nWould have to leave: %s.", answer.List(len(e.Now.Victims), func(i int) string {
			return e.Now.Victims[i].Namespace + "/" + e.Now.Victims[i].Name
		}))
	}

	printGroupSuggestions(page, "it", e.Suggestions)

	if d := e.LastDecision; d != nil {
		page.Line("\nThe scheduler wrote %s: %s", d.At.UTC().Format("2006-01-02 15:04:05Z"), cmp.Or(d.Message, d.Reason))
	}
	page.Line("\n%s.", e.Source)
}
