// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

const (
	// mostTries bounds the engine calls, so that an answer takes less than a second on ten thousand
	// nodes. Untried changes are not suggested.
	mostTries = 160
	// mostSuggestions is the maximum number of suggestions shown, the smallest changes first, since
	// users do not read more.
	mostSuggestions = 12
	// mostPairs is the maximum number of changes per cause that are combined for two causes, which
	// results in at most 25 tries.
	mostPairs = 5
)

// search looks for changes that let the pod run. It proposes only tried changes: found holds the
// changes with which the engine gave the pod a node.
//
//	nodes with one cause    -> each change against it, by itself
//	otherwise               -> a new node, a higher priority
//	nothing small was found -> combinations, for nodes with two causes, then three, ...
type search struct {
	*fixer
	verdicts []verdict // of all nodes, by name, without changes
	original *v1.Pod   // with its scheduling gates
	ungate   *edit     // removes the scheduling gates as part of every suggestion; nil without gates
	found    []candidate
	withheld []Withheld
	budget   *int            // remaining rehearsals
	size     int             // cost of one rehearsal
	most     int             // maximum number of suggestions
	seen     map[string]bool // texts of tried changes, to avoid trying one twice
}

// suggestChanges finds changes that let the pod run, or combinations if no single change does. It
// also tries combinations if only a new node or a higher priority helps: both are large, and a pair
// of small changes may be better. The list is sorted by size and has no duplicates.
func (s *search) suggestChanges() []Suggestion {
	s.seen = map[string]bool{}
	alone := s.nodesByCauses(1)
	for _, plugin := range sortedKeys(alone) {
		s.offerEdits(s.fixCause(plugin, alone[plugin])...)
	}
	s.offerEdits(s.newNodes(s.verdicts)...)
	s.offerEdits(s.fixPriority()...)
	list := s.takeConfirmed()
	others := func(f Suggestion) bool { return f.Changes[0].Kind != "AddNode" && f.Changes[0].Kind != "RaisePriority" }
	if !slices.ContainsFunc(list, others) {
		s.combineEdits()
		list = append(list, s.takeConfirmed()...)
		slices.SortStableFunc(list, Suggestion.compare)
	}
	return list[:min(len(list), s.most)]
}

// compare orders by size, then by text.
func (s Suggestion) compare(o Suggestion) int {
	return cmp.Or(cmp.Compare(s.Size, o.Size), cmp.Compare(s.Text, o.Text))
}

// takeConfirmed rehearses the candidates, smallest first, and returns the confirmed ones.
func (s *search) takeConfirmed() (list []Suggestion) {
	slices.SortStableFunc(s.found, func(a, b candidate) int { return a.compare(b.Suggestion) })
	for i := 0; i < len(s.found) && len(list) < s.most; i++ {
		c := s.found[i]
		if deleted := deletedPods(c.Suggestion); deleted != nil && slices.ContainsFunc(list, func(o Suggestion) bool {
			return slices.Equal(deletedPods(o), deleted)
		}) {
			continue // two causes may propose the same deletion in different words
		}

		if s.isRehearsed(c.edits) {
			if *s.budget < s.size {
				continue
			}
			if reason := s.rehearse(c.edits); reason != "" {
				s.withheld = append(s.withheld, Withheld{Text: c.Text, Reason: reason})
				if len(c.edits) == 1 && c.edits[0].otherwise != nil {
					s.keepIfHelps(c.edits[0].otherwise) // appends to found, so the loop reaches it
				}
				continue
			}
		}
		list = append(list, c.Suggestion)
	}
	s.found = nil
	return list
}

// deletedPods lists the pods deleted by a suggestion, sorted; nil if it changes anything else.
func deletedPods(s Suggestion) (pods []simulate.Name) {
	for _, c := range s.Changes {
		if len(c.Delete) == 0 || c.Patch != nil {
			return nil
		}
		pods = append(pods, c.Delete...)
	}
	slices.SortFunc(pods, simulate.Name.Compare)
	return pods
}

// decisivePlugin returns the plugin that rejects the most nodes, with its most frequent reason. If
// several plugins reject the same number of nodes, it returns the first of them. It returns nil if
// every node is feasible.
func (s *search) decisivePlugin() *Decisive {
	count, reasons := map[string]int{}, map[string]map[string]int{}
	var order []string
	for i := range s.verdicts {
		for _, r := range s.verdicts[i].rejections {
			// The scheduler does not call this failing plugin, because another plugin rejects all
			// nodes.
			if r.Err != nil {
				continue
			}
			if count[r.plugin] == 0 {
				order, reasons[r.plugin] = append(order, r.plugin), map[string]int{}
			}
			count[r.plugin]++
			reasons[r.plugin][strings.Join(r.Reasons, ", ")]++
		}
	}

	if len(order) == 0 {
		return nil
	}
	best := slices.MaxFunc(order, func(a, b string) int { return cmp.Compare(count[a], count[b]) })
	texts := sortedKeys(reasons[best])
	commonest := slices.MaxFunc(texts, func(a, b string) int { return cmp.Compare(reasons[best][a], reasons[best][b]) })
	return &Decisive{Plugin: best, Nodes: count[best], Reasons: []string{commonest}}
}

// nodesByCauses returns the nodes rejected for exactly count causes, keyed by the causes: the names
// of their plugins, joined by "+". Plugins with the same cause, such as a cordon that is also a
// taint, count once: one change resolves both.
func (s *search) nodesByCauses(count int) map[string][]verdict {
	by := map[string][]verdict{}
	for i := range s.verdicts {
		v := &s.verdicts[i]
		var names []string
		for _, r := range v.rejections {
			if name, _ := causeOf(s.profile, s.pod, v.node, r.plugin); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
		if len(names) == count {
			key := strings.Join(names, "+")
			by[key] = append(by[key], *v)
		}
	}
	return by
}

// offerEdits tries edits one by one, and keeps the helpful ones.
func (s *search) offerEdits(edits ...*edit) {
	for _, e := range edits {
		s.keepIfHelps(e)
	}
}

// keepIfHelps tries edits as a combination, and records the combination if the pod then fits.
func (s *search) keepIfHelps(edits ...*edit) {
	edits = distinctEdits(splitEdits(edits))
	texts := answer.Mapped(edits, func(e *edit) string { return e.Text })
	text := strings.Join(texts, ", and ")
	slices.Sort(texts)
	same := strings.Join(texts, "\n") // independent of the order
	// Two causes may lead to the same pair of changes.
	if s.seen[same] || s.tries >= mostTries {
		return
	}
	s.seen[same] = true
	if s.isExcluded(edits) {
		return
	}
	node := s.tryEdits(edits...)
	if node == "" {
		return
	}
	if s.ungate != nil {
		edits, text = append(slices.Clone(edits), s.ungate), text+", and "+s.ungate.Text
	}
	f := candidate{Suggestion{Text: text, Node: node, Changes: s.publishChanges(edits)}, edits}
	for _, e := range edits {
		f.Size += e.size
	}
	// A combination costs more than the sum of its changes, because none of them helps by itself.
	if len(edits) > 1 {
		f.Size += 20
	}
	s.found = append(s.found, f)
}

// publishChanges returns the edits in their published form, each patch based on the result of the
// previous patches. A single command, the command of the first pod change, makes all changes of the
// pod, since two commands would recreate the pod twice. The command is last, as in rehearsals,
// because a quota may have room for the pod only after the other changes.
func (s *search) publishChanges(edits []*edit) (list []Change) {
	edits = slices.Clone(edits)
	slices.SortStableFunc(edits, func(a, b *edit) int { return rules.FalseFirst(a.pod != nil, b.pod != nil) })
	first, before := -1, ""
	var kinds []string
	var alter alterations
	object := s.original
	for i, e := range edits {
		c := e.Change
		if e.pod != nil {
			after := object.DeepCopy()
			e.pod(after)
			c.Patch, c.Command = mergePatch(object, after, v1.Pod{}), ""
			object, before = after, cmp.Or(before, e.before)
			if kinds, alter = append(kinds, c.Kind), append(alter, e.pod); first < 0 {
				first = i
			}
		}
		list = append(list, c)
	}
	if first < 0 {
		return list
	}

	command := keeperOf(s.w, s.original).changeCommand(kinds, alter.alter)
	if command != "" && before != "" {
		command = before + " && " + command
	}
	list[first].Command = command
	return list
}

// isExcluded reports whether the edits must not be combined: preemption makes room by itself, and a
// budget may allow evicting either of two pods, but not both.
func (s *search) isExcluded(edits []*edit) bool {
	var gone []*cluster.Pod
	said := 0
	for _, e := range edits {
		if len(e.Delete) > 0 && s.preempts {
			return true
		}
		gone = append(gone, e.delete...)
		said += len(s.brokenBudgets(e.delete))
	}
	return len(s.brokenBudgets(gone)) > said
}

// distinctEdits drops edits with equal texts: two plugins may propose the same edit, for example of
// a claim.
func distinctEdits(edits []*edit) (list []*edit) {
	for _, e := range edits {
		if !slices.ContainsFunc(list, func(o *edit) bool { return o.Text == e.Text }) {
			list = append(list, e)
		}
	}
	return list
}

// combineEdits tries combinations of changes: two for nodes rejected for two causes and, as long as
// nothing helps, one more for each further cause. mostTries bounds the total.
func (s *search) combineEdits() {
	for count := 2; count <= len(s.judges); count++ {
		by := s.nodesByCauses(count)
		before := len(s.found)
		for _, key := range sortedKeys(by) {
			s.tryProduct(nil, strings.Split(key, "+"), by[key])
		}
		if len(s.found) > before {
			return
		}
	}
}

// tryProduct combines each of the smallest changes against one cause with each of the smallest
// changes against the remaining causes. chosen holds the changes so far.
func (s *search) tryProduct(chosen []*edit, causes []string, nodes []verdict) {
	if len(causes) == 0 {
		s.keepIfHelps(chosen...)
		return
	}
	most := mostPairs
	if len(chosen)+len(causes) > 2 {
		// Use fewer changes per cause in combinations of three or more, because each cause
		// multiplies the number of combinations.
		most = 2
	}
	edits := s.fixCause(causes[0], nodes)
	slices.SortStableFunc(edits, func(a, b *edit) int { return cmp.Compare(a.size, b.size) })
	for _, e := range edits[:min(len(edits), most)] {
		s.tryProduct(append(slices.Clone(chosen), e), causes[1:], nodes)
	}
}

// sortedKeys lists the keys of a map in order. Iterating in this order keeps answers the same from
// run to run.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// sortRoomiest returns a copy of the nodes sorted by descending free CPU, so that a proposal for
// the first nodes is likely to help.
func sortRoomiest(nodes []verdict) []verdict {
	sorted := slices.Clone(nodes)
	slices.SortStableFunc(sorted, func(a, b verdict) int { return cmp.Compare(freeCPU(b.node), freeCPU(a.node)) })
	return sorted
}

// freeCPU returns the node's unrequested CPU in millicores.
func freeCPU(n *cluster.Node) int64 { return n.Size.MilliCPU - n.Requested.MilliCPU }
