// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// Codes of NodeAffinity.
const (
	CodeNodeAffinityMismatch     = "NodeAffinityMismatch"
	CodeEnforcedAffinityMismatch = "EnforcedNodeAffinityMismatch"
	CodeNodeAffinityConflict     = "NodeAffinityConflict"
)

// AffinityMismatch is the reason for nodes not selected by the pod.
const AffinityMismatch = "node(s) didn't match Pod's node affinity/selector"

// NodeAffinity rejects nodes not selected by the pod's node selector or required node affinity, and
// scores nodes by the matching preferred terms. A profile can add an affinity to all its pods: a
// node must then match both, and the preferred terms of both add up.
type NodeAffinity struct {
	addedRequired  *nodeTerms // nil: none
	addedPreferred []weightedNodeTerm

	// preferred belongs to one profile, because it includes the profile's added terms.
	preferred lastRead[v1.PreferredSchedulingTerm, preferences]
}

// requiredTerms holds the terms of a required affinity, and the names they narrow the nodes to.
// narrow without names means that the terms contradict each other.
type requiredTerms struct {
	*termIndex
	names  map[string]bool
	narrow bool
}

// lastRequired is shared by all plugins that read a pod's required affinity, and by all profiles:
// the result depends only on the spec.
var lastRequired lastRead[v1.NodeSelector, requiredTerms]

// readRequired reads a required affinity, which must belong to a class's spec: the cache is keyed
// by its pointer.
func readRequired(required *v1.NodeSelector) requiredTerms {
	parts := 0
	for i := range required.NodeSelectorTerms {
		parts += partsOf(&required.NodeSelectorTerms[i])
	}
	terms, _ := lastRequired.readOnce(required, parts, func() (requiredTerms, error) {
		names, narrow := namedNodes(required)
		return requiredTerms{indexTerms(readNodeTerms(required), nil), names, narrow}, nil
	})
	return terms
}

// lastRead caches the last result of reading an expensive part of a pod's spec, because an attempt
// needs it several times. The spec never changes, so its pointer identifies it, and holding the
// pointer prevents reuse of the address.
type lastRead[From, To any] struct {
	mutex  sync.Mutex
	from   *From
	result To
	err    error
}

// worthKeeping is the least number of terms, requirements and values that makes a result worth
// caching.
const worthKeeping = 100

// partsOf counts the parts of a term for worthKeeping.
func partsOf(term *v1.NodeSelectorTerm) int {
	parts := 1 + len(term.MatchFields)
	for i := range term.MatchExpressions {
		parts += 1 + len(term.MatchExpressions[i].Values)
	}
	return parts
}

// readOnce returns the result of read, possibly from an earlier call with the same source. It holds
// the lock while reading, so that only the first of several concurrent callers reads.
func (l *lastRead[From, To]) readOnce(source *From, parts int, read func() (To, error)) (To, error) {
	if parts < worthKeeping {
		return read()
	}
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.from != source {
		l.result, l.err = read()
		l.from = source
	}
	return l.result, l.err
}

// The rejections of NodeAffinity, shared by all judges. Preemption cannot help against any of them:
// the departure of pods does not change labels.
var (
	affinityMismatch = &Rejection{
		Code: CodeNodeAffinityMismatch, Reasons: []string{AffinityMismatch}, Unresolvable: true,
	}
	enforcedMismatch = &Rejection{
		Code: CodeEnforcedAffinityMismatch, Reasons: []string{"node(s) didn't match scheduler-enforced node affinity"}, Unresolvable: true,
	}
	affinityConflict = &Rejection{
		Code: CodeNodeAffinityConflict, Reasons: []string{"pod affinity terms conflict"}, Unresolvable: true,
	}
)

// NewNodeAffinity returns the plugin; nil args select the defaults.
func NewNodeAffinity(args *config.NodeAffinityArgs) (*NodeAffinity, error) {
	plugin := &NodeAffinity{}
	if args == nil || args.AddedAffinity == nil {
		return plugin, nil
	}
	if err := ValidateArgs(nil, args); err != nil {
		return nil, err
	}

	if required := args.AddedAffinity.RequiredDuringSchedulingIgnoredDuringExecution; required != nil {
		plugin.addedRequired = new(readNodeTerms(required))
	}

	var err error
	plugin.addedPreferred, err = readPreferred(args.AddedAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	if err != nil {
		return nil, fmt.Errorf("parsing addedAffinity.preferredDuringSchedulingIgnoredDuringExecution: %w", err)
	}
	return plugin, nil
}

// Name implements Filter and Scorer.
func (*NodeAffinity) Name() string { return "NodeAffinity" }

// Reads implements Filter. See ReadsFor.
func (*NodeAffinity) Reads() Part { return Labels | Identity }

// ReadsFor implements [ReadsPerPod]: most pods do not select nodes by name, so that nodes with the
// same labels share a verdict. Pods of DaemonSets, and pods with requirements on the host name, do
// select nodes by name.
func (pl *NodeAffinity) ReadsFor(p *cluster.Pod) Part {
	parts := Labels
	required, preferred := podNodeAffinity(p.Spec())
	// Label sets exclude host names, so nodes with the same label set may have different host
	// names.
	_, individual := p.Spec().NodeSelector[v1.LabelHostname]
	individual = individual || pl.addedRequired != nil && pl.addedRequired.identifiesNodes() ||
		slices.ContainsFunc(pl.addedPreferred, func(t weightedNodeTerm) bool { return t.identity })
	if required != nil {
		individual = individual || slices.ContainsFunc(required.NodeSelectorTerms,
			func(t v1.NodeSelectorTerm) bool { return termIdentifies(&t) })
	}
	for i := range preferred {
		individual = individual || termIdentifies(&preferred[i].Preference)
	}
	if individual {
		parts |= Identity
	}
	return parts
}

// Targeter is a filter that confines a pod, such as the pod of a DaemonSet, to the node named in
// its required node affinity. A decision may then examine only that node.
type Targeter interface{ Targets() }

// Targets implements [Targeter].
func (*NodeAffinity) Targets() {}

// Steady implements Steady.
func (*NodeAffinity) Steady() {}

// Filter implements Filter. Like upstream it checks the profile's added affinity first, with a
// message that attributes the mismatch to the profile rather than to the pod.
func (pl *NodeAffinity) Filter(_ *cluster.Cluster, p *cluster.Pod) Judge {
	spec := p.Spec()
	required, _ := podNodeAffinity(spec)
	if required == nil && pl.addedRequired == nil && len(spec.NodeSelector) == 0 {
		return Judge{}
	}

	selector := labels.Everything()
	if len(spec.NodeSelector) > 0 {
		selector = labels.SelectorFromSet(spec.NodeSelector)
	}

	var terms requiredTerms
	if required != nil {
		terms = readRequired(required)
	}

	judge := Judge{Node: func(n *cluster.Node) *Rejection {
		switch {
		case pl.addedRequired != nil && !pl.addedRequired.match(n):
			return enforcedMismatch
		case !selector.Matches(n), required != nil && !terms.matchesAny(n):
			return affinityMismatch
		}
		return nil
	}}

	// The names are taken only from the pod's affinity, as in upstream: the added affinity does
	// not narrow.
	if terms.narrow {
		if len(terms.names) == 0 {
			return Judge{All: affinityConflict}
		}
		judge.Only = terms.names
	}
	return judge
}

// namedNodes returns the node names allowed by the terms. The terms narrow the nodes only if each
// of them has a requirement on the name; within a term, a name must be listed by all such
// requirements.
//
//	metadata.name In n1; metadata.name In n2         ->  n1 n2, narrow
//	metadata.name In n1; zone In a                   ->  not narrow: no name in the second term
//	metadata.name In n1, metadata.name In n2         ->  no name, narrow: the pod fits nowhere
func namedNodes(required *v1.NodeSelector) (names map[string]bool, narrow bool) {
	if required == nil || len(required.NodeSelectorTerms) == 0 {
		return nil, false
	}
	names = map[string]bool{}
	for i := range required.NodeSelectorTerms {
		inTerm, narrows := namesOf(&required.NodeSelectorTerms[i])
		if !narrows {
			return nil, false
		}
		for _, name := range inTerm {
			names[name] = true
		}
	}
	return names, true
}

// namesOf is namedNodes for one term.
func namesOf(term *v1.NodeSelectorTerm) (names []string, narrows bool) {
	for i := range term.MatchFields {
		r := &term.MatchFields[i]
		if r.Key != metav1.ObjectNameField || r.Operator != v1.NodeSelectorOpIn {
			continue
		}
		if !narrows {
			names, narrows = r.Values, true
			continue
		}
		listed := sets.New(r.Values...)
		// Clone the names, which may still be the slice of the spec.
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !listed.Has(name) })
	}
	return names, narrows
}

// Scale implements [FixedScorer].
func (*NodeAffinity) Scale() Scale { return MostBest }

// Score implements Scorer. The raw score is a sum of weights, so it is normalised by the highest
// sum.
func (pl *NodeAffinity) Score(_ *cluster.Cluster, p *cluster.Pod, _ []*cluster.Node) Scoring {
	_, preferred := podNodeAffinity(p.Spec())
	if len(preferred) == 0 && pl.addedPreferred == nil {
		return Scoring{}
	}

	read := func() (preferences, error) {
		terms, err := readPreferred(preferred)
		if err != nil {
			return preferences{}, err
		}
		// The cached result may include the profile's terms because the cache belongs to one
		// plugin.
		return preferencesOf(append(terms, pl.addedPreferred...)), nil
	}

	// The cache is keyed by the address of the first term; the list itself is a slice header,
	// copied freely.
	var first *v1.PreferredSchedulingTerm
	if len(preferred) > 0 {
		first = &preferred[0]
	}

	parts := 0
	for i := range preferred {
		parts += partsOf(&preferred[i].Preference)
	}
	all, err := pl.preferred.readOnce(first, parts, read)
	if err != nil {
		return Scoring{Err: err}
	}

	return Scoring{
		Node:      func(n *cluster.Node) (int64, error) { return all.sumWeights(n), nil },
		Normalize: func(_ []*cluster.Node, scores []int64) { normalizeScores(scores, false) },
	}
}

// podNodeAffinity returns the required and preferred parts of the spec's node affinity.
func podNodeAffinity(spec *cluster.Spec) (*v1.NodeSelector, []v1.PreferredSchedulingTerm) {
	a := spec.NodeAffinity
	if a == nil {
		return nil, nil
	}
	return a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution
}

// readPreferred parses preferred terms. It ignores terms of weight 0 and terms without a
// requirement. The errors are the library's: one invalid term makes every attempt fail, as in
// upstream.
func readPreferred(list []v1.PreferredSchedulingTerm) ([]weightedNodeTerm, error) {
	if len(list) == 0 {
		return nil, nil
	}
	terms := make([]weightedNodeTerm, 0, len(list))
	for i := range list {
		if list[i].Weight == 0 || emptyNodeTerm(&list[i].Preference) {
			continue
		}
		term := readNodeTerm(&list[i].Preference)
		if term.broken {
			return nil, wordedPreferred(list, i)
		}
		terms = append(terms, weightedNodeTerm{term, int64(list[i].Weight)})
	}
	return terms, nil
}

// Interests implements Requeuer. Only nodes matter: the affinity of a pending pod without
// scheduling gates cannot change. If the profile adds an affinity, a pod's own terms do not cover
// all requirements on a node, so the hint runs for every class.
func (pl *NodeAffinity) Interests(setting Setting) []queue.Interest {
	interest := queue.Interest{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeLabel, Hint: setting.NodeNowPasses}
	if pl.addedRequired == nil {
		interest.Narrowing = byNodeSelection()
	}
	return []queue.Interest{interest}
}

// Wakes implements Waker.
func (*NodeAffinity) Wakes() []string {
	return []string{"a node is added", "a node's labels change"}
}

// Fixes implements Fixer.
func (*NodeAffinity) Fixes() []Fix { return []Fix{RelaxSelection} }
