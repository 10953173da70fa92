package explain

import (
	"cmp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

const (
	// mostTries bounds how often the engine is asked, so that an answer takes less than a
	// second on ten thousand nodes. What was not tried is not suggested.
	mostTries = 160
	// mostSuggestions is how many are shown, the smallest changes first: no one reads
	// more.
	mostSuggestions = 12
	// mostPairs is how many changes against one cause are combined with those against
	// another: 25 tries for a pair of causes.
	mostPairs = 5
)

// search looks for changes that let the pod run. It proposes nothing that was not tried:
// a change is in found only if the engine gave the pod a node with it.
//
//	nodes with one cause    -> each change against it, alone
//	otherwise               -> a new node, a higher priority
//	nothing small was found -> combinations, for nodes with two causes, then three, ...
type search struct {
	*fixer
	verdicts   []verdict // of all nodes, by name, without any change
	original   *v1.Pod   // with its scheduling gates
	ungate     *edit     // removes them with every change; nil without gates
	found      []candidate
	withheld   []Withheld
	rehearsals int
	most       int             // suggestions
	seen       map[string]bool // the texts of what was tried, so that nothing is tried twice
}

// suggestChanges finds changes that let the pod run: single ones, and pairs where no
// single one does. A new node and a higher priority do not count as such: they are large,
// and a pair of small changes may be better. The list is sorted by size and has no
// duplicates.
func (s *search) suggestChanges() []Suggestion {
	s.seen = map[string]bool{}
	for plugin, nodes := range s.eachAlone() {
		s.offerEdits(s.fixCause(plugin, nodes)...)
	}
	s.offerEdits(s.newNodes(s.verdicts)...)
	s.offerEdits(s.fixPriority()...)
	list := s.takeConfirmed()
	if onlyBy(list, "AddNode", "RaisePriority") {
		s.combineEdits()
		list = append(list, s.takeConfirmed()...)
		sortSuggestions(list)
	}
	return list[:min(len(list), s.most)]
}

func sortSuggestions(list []Suggestion) {
	slices.SortStableFunc(list, func(a, b Suggestion) int {
		return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(a.Text, b.Text))
	})
}

// takeConfirmed rehearses the candidates, the smallest first, and returns those that let the pod
// run.
func (s *search) takeConfirmed() (list []Suggestion) {
	slices.SortStableFunc(s.found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(a.Text, b.Text))
	})
	most := max(leastRehearsals, rehearsedPods/max(1, s.c.Len()+s.w.CountPods()))
	for i := 0; i < len(s.found) && len(list) < s.most; i++ {
		c := s.found[i]
		if s.isRehearsed(c.edits) {
			if s.rehearsals++; s.rehearsals > most {
				continue
			}
			if reason := s.rehearse(c.edits); reason != "" {
				s.withheld = append(s.withheld, Withheld{Text: c.Text, Reason: reason})
				if len(c.edits) == 1 && c.edits[0].otherwise != nil {
					s.keepIfHelps(c.edits[0].otherwise) // at the end of found
				}
				continue
			}
		}
		list = append(list, c.Suggestion)
	}
	s.found = nil
	return list
}

// decisivePlugin is the plugin that rejects the most nodes, and of several the one that
// is asked first, with its most frequent reason; nil if no node is rejected.
func (s *search) decisivePlugin() *Decisive {
	count, reasons := map[string]int{}, map[string]map[string]int{}
	var order []string
	for i := range s.verdicts {
		for _, r := range s.verdicts[i].rejections {
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

// onlyBy reports whether all suggestions begin with a change of these kinds.
func onlyBy(list []Suggestion, kinds ...string) bool {
	return !slices.ContainsFunc(list, func(f Suggestion) bool { return !slices.Contains(kinds, f.Changes[0].Kind) })
}

// eachAlone yields the nodes that are rejected for one cause only, by its plugin, always
// in the same order. They are where a single change can help.
func (s *search) eachAlone() func(yield func(string, []verdict) bool) {
	by := s.nodesByCauses(1)
	return func(yield func(string, []verdict) bool) {
		for _, key := range sortedKeys(by) {
			if !yield(key, by[key]) {
				return
			}
		}
	}
}

// nodesByCauses returns the nodes that are rejected for exactly this many causes, by
// these causes: the names of their plugins, joined by "+".
func (s *search) nodesByCauses(count int) map[string][]verdict {
	by := map[string][]verdict{}
	for i := range s.verdicts {
		v := &s.verdicts[i]
		if names := v.causesOf(s.profile, s.pod); len(names) == count {
			key := strings.Join(names, "+")
			by[key] = append(by[key], *v)
		}
	}
	return by
}

// offerEdits tries edits one by one, and keeps those that help.
func (s *search) offerEdits(edits ...*edit) {
	for _, e := range edits {
		s.keepIfHelps(e)
	}
}

// keepIfHelps tries edits together, and records them if the pod can run then. It returns
// whether it did.
func (s *search) keepIfHelps(edits ...*edit) bool {
	var texts []string
	edits = distinctEdits(splitEdits(edits))
	for _, e := range edits {
		texts = append(texts, e.Text)
	}
	text := strings.Join(texts, ", and ")
	slices.Sort(texts)
	same := strings.Join(texts, "\n") // in whatever order
	// Two causes may lead to the same pair of changes.
	if s.seen[same] || s.tries >= mostTries {
		return false
	}
	s.seen[same] = true
	if s.isExcluded(edits) {
		return false
	}
	node := s.tryEdits(edits...)
	if node == "" {
		return false
	}
	if s.ungate != nil {
		edits, text = append(slices.Clone(edits), s.ungate), text+", and "+s.ungate.Text
	}
	f := candidate{Suggestion{Text: text, Node: node, Changes: s.publishChanges(edits)}, edits}
	for _, e := range edits {
		f.Size += e.size
	}
	// Two changes are more than the sum of them: both have to be made before anything
	// helps.
	if len(edits) > 1 {
		f.Size += 20
	}
	s.found = append(s.found, f)
	return true
}

// publishChanges are the edits as they are published: one after the other, the patch of
// each on top of those before. Those of the pod are carried out by one command, that of
// the first of them: two commands would recreate the pod twice.
func (s *search) publishChanges(edits []*edit) (list []Change) {
	first, before := -1, ""
	var kinds []string
	var alter []func(*v1.Pod)
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

	command := keeperOf(s.w, s.original).changeCommand(kinds, func(p *v1.Pod) {
		for _, do := range alter {
			do(p)
		}
	})
	if command != "" && before != "" {
		command = before + " && " + command
	}
	list[first].Command = command
	return list
}

// isExcluded reports whether the edits are not to be proposed together: preemption makes
// room by itself, and a budget may allow each of two pods to go, but not both.
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

// distinctEdits drops duplicate edits: two plugins may propose the same one, such as
// a claim. Edits are the same if their texts are.
func distinctEdits(edits []*edit) (list []*edit) {
	for _, e := range edits {
		if !slices.ContainsFunc(list, func(o *edit) bool { return o.Text == e.Text }) {
			list = append(list, e)
		}
	}
	return list
}

// combineEdits tries several changes at once: two for nodes that are rejected for two
// causes and, if that does not help either, one more for each further cause. mostTries
// bounds all of it.
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

// tryProduct combines each of the smallest changes against one cause with each of those
// against the others. chosen are the changes so far, and causes what remains to be
// mended.
func (s *search) tryProduct(chosen []*edit, causes []string, nodes []verdict) {
	if len(causes) == 0 {
		s.keepIfHelps(chosen...)
		return
	}
	most := mostPairs
	if len(chosen)+len(causes) > 2 {
		// Three changes and more are combined sparingly: the number of products grows
		// with each.
		most = 2
	}
	for _, e := range smallestEdits(s.fixCause(causes[0], nodes), most) {
		s.tryProduct(append(slices.Clone(chosen), e), causes[1:], nodes)
	}
}

// smallestEdits returns the smallest of the edits, up to that many. It sorts the list.
func smallestEdits(edits []*edit, most int) []*edit {
	slices.SortStableFunc(edits, func(a, b *edit) int { return cmp.Compare(a.size, b.size) })
	return edits[:min(len(edits), most)]
}

// sortedKeys lists the keys of a map: whatever goes through a map does so in this order,
// or answers would differ from run to run.
func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// sortRoomiest sorts the nodes by free CPU, the most first, so that a proposal for a
// node has a chance. The given list is not changed.
func sortRoomiest(nodes []verdict) []verdict {
	sorted := slices.Clone(nodes)
	slices.SortStableFunc(sorted, func(a, b verdict) int { return cmp.Compare(freeCPU(b.node), freeCPU(a.node)) })
	return sorted
}

// freeCPU is how much CPU of a node is not requested, in thousandths.
func freeCPU(n *cluster.Node) int64 { return n.Size.MilliCPU - n.Requested.MilliCPU }
