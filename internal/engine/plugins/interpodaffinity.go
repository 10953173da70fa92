// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"slices"

	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// InterPodAffinity places pods near pods they have affinity to, and away from pods if either side
// has anti-affinity to the other. [Affinities] holds the rules between two pods; this plugin
// applies them to count the pods of each domain, and counts again for every pod decided.
//
// A domain is a topology key with a value. Required anti-affinity to app=db over zones, and db-0 on
// a node of zone a:
//
//	repels = {"topology.kubernetes.io/zone": {"a": 1}}
//	every node of zone a is rejected; a node without the label is in no domain, and passes
type InterPodAffinity struct {
	// HardWeight is the score that a placed pod adds for each of its required affinity terms that
	// selects the pending pod.
	HardWeight int32
	// IgnoreOthers skips scoring for pending pods without preferences, regardless of the
	// preferences of placed pods.
	IgnoreOthers bool
}

// Codes of InterPodAffinity.
const (
	CodePodAffinity             = "PodAffinity"
	CodePodAntiAffinity         = "PodAntiAffinity"
	CodeExistingPodAntiAffinity = "ExistingPodAntiAffinity"
	CodePodAffinityUnreadable   = "PodAffinityUnreadable"
)

// Rejections of InterPodAffinity.
var (
	AffinityUnmet = &Rejection{
		Code: CodePodAffinity, Reasons: []string{"node(s) didn't match pod affinity rules"}, Unresolvable: true,
	}
	AntiAffinityViolated = &Rejection{Code: CodePodAntiAffinity, Reasons: []string{"node(s) didn't match pod anti-affinity rules"}}
	ExistingAntiAffinity = &Rejection{
		Code: CodeExistingPodAntiAffinity, Reasons: []string{"node(s) didn't satisfy existing pods anti-affinity rules"},
	}
)

// NewInterPodAffinity makes the plugin; nil args select the defaults.
func NewInterPodAffinity(args *config.InterPodAffinityArgs) (*InterPodAffinity, error) {
	args, err := completeArgs(args)
	if err != nil {
		return nil, err
	}
	return &InterPodAffinity{HardWeight: *args.HardPodAffinityWeight, IgnoreOthers: args.IgnorePreferredTermsOfExistingPods}, nil
}

// TermCounter is a filter or a scorer that counts, for the terms of [Affinities], the selected pods
// in each domain of their topology key. Package decide keeps such counts itself from placement to
// placement, and requests the weights instead of the verdicts.
type TermCounter interface {
	Name() string
	// TermWeights returns the score that a placed pod adds for each of its required affinity terms
	// that selects the pending pod, and whether pods without preferences are not scored.
	TermWeights() (hard int32, ignoreOthers bool)
}

// TermWeights implements [TermCounter].
func (a *InterPodAffinity) TermWeights() (hard int32, ignoreOthers bool) {
	return a.HardWeight, a.IgnoreOthers
}

// Name implements [Filter] and [Scorer].
func (a *InterPodAffinity) Name() string { return "InterPodAffinity" }

// Reads implements [Filter]. It excludes taints: nodes count whether or not the pod tolerates their
// taints.
func (a *InterPodAffinity) Reads() Part { return Labels | Identity | Contents | Others }

// domainCounts holds numbers of pods, or sums of votes, by topology key and value. Missing entries
// are 0. A sum of votes may be negative.
type domainCounts map[string]map[string]int64

// addWeight adds weight to the node's domain of the key; a node without the key is in no domain.
func (d domainCounts) addWeight(n *cluster.Node, key string, weight int64) {
	if value, ok := n.Lookup(key); ok {
		rules.Inner(d, key)[value] += weight
	}
}

// countOf returns the number for the node's domain of the key, or 0 without the key.
func (d domainCounts) countOf(n *cluster.Node, key string) int64 {
	if value, ok := n.Lookup(key); ok {
		return d[key][value]
	}
	return 0
}

// anyOf reports whether one of the node's domains has a number above zero. It iterates over the
// keys, which are few, not over the domains.
func (d domainCounts) anyOf(n *cluster.Node) bool {
	for key := range d {
		if d.countOf(n, key) > 0 {
			return true
		}
	}
	return false
}

// cacheByClass caches a result per class, so that a pass over all pods costs a lookup for most of
// them. It is not safe for concurrent use.
func cacheByClass[T any](answer func(*cluster.PodClass) T) func(*cluster.PodClass) T {
	known := map[*cluster.PodClass]T{}
	return func(class *cluster.PodClass) T {
		value, ok := known[class]
		if !ok {
			value = answer(class)
			known[class] = value
		}
		return value
	}
}

// Filter rejects nodes in domains that lack the pods required by affinity, or contain pods excluded
// by anti-affinity. Like upstream, only missing affinity is unresolvable: the departure of victims
// cannot add a pod, but it can remove a repelling one.
func (a *InterPodAffinity) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	if p.Class.TermError != nil {
		reason := fmt.Sprintf("parsing pod: %v", termsError(p.Spec().Affinity()))
		return Judge{All: &Rejection{Code: CodePodAffinityUnreadable, Reasons: []string{reason}, Unresolvable: true}}
	}

	affinities := NewAffinities(c, p.Class)
	repelledBy := countRepelledBy(c, affinities)
	required := affinities.Required()
	if len(repelledBy) == 0 && len(required) == 0 && !affinities.RequiresAnti() {
		return Judge{}
	}

	attracts, repels := countOwnTerms(c, affinities)
	// The first pod of a group with affinity to itself could otherwise never be placed. It still
	// needs nodes with the keys.
	first := len(attracts) == 0 && affinities.AttractsItself()
	return Judge{Node: func(n *cluster.Node) *Rejection {
		switch {
		// The order of the cases is upstream's: it selects the reported reason among several.
		case slices.ContainsFunc(required, func(key string) bool { return !n.Has(key) || !first && attracts.countOf(n, key) <= 0 }):
			return AffinityUnmet
		case repels.anyOf(n):
			return AntiAffinityViolated
		case repelledBy.anyOf(n):
			return ExistingAntiAffinity
		}
		return nil
	}}
}

// countRepelledBy counts the pods with anti-affinity to the pending one, by the keys of their
// terms. Few nodes have pods with required anti-affinity, so all other nodes are skipped.
func countRepelledBy(c *cluster.Cluster, affinities *Affinities) domainCounts {
	counts, repelledBy := domainCounts{}, cacheByClass(affinities.RepelledBy)
	for _, n := range c.Nodes {
		if n == nil || n.AntiAffine == 0 {
			continue
		}
		for _, p := range n.Pods {
			if len(p.Class.RequiredAntiAffinity) == 0 {
				continue
			}
			for _, key := range repelledBy(p.Class) {
				counts.addWeight(n, key, 1)
			}
		}
	}
	return counts
}

// countOwnTerms counts the pods selected by the pending pod's required terms. attracts counts the
// same pods under every key, because a pod must match all affinity terms; repels counts the pods of
// each term separately.
func countOwnTerms(c *cluster.Cluster, affinities *Affinities) (attracts, repels domainCounts) {
	attracts, repels = domainCounts{}, domainCounts{}
	required := affinities.Required()
	if len(required) == 0 && !affinities.RequiresAnti() {
		return attracts, repels
	}

	// The terms are matched twice per class, regardless of its number of pods.
	attractedBy, repelled := cacheByClass(affinities.Attracts), cacheByClass(affinities.Repels)
	for _, n := range c.Nodes {
		if n == nil {
			continue
		}
		for _, p := range n.Pods {
			if attractedBy(p.Class) {
				for _, key := range required {
					attracts.addWeight(n, key, 1)
				}
			}
			for _, key := range repelled(p.Class) {
				repels.addWeight(n, key, 1)
			}
		}
	}

	return attracts, repels
}

// Score adds up the votes of the pods in a node's domains. Votes may be negative; the range over
// all feasible nodes is stretched to 0..MaxScore.
func (a *InterPodAffinity) Score(c *cluster.Cluster, p *cluster.Pod, _ []*cluster.Node) Scoring {
	if p.Class.TermError != nil {
		return Scoring{Err: fmt.Errorf("failed to parse pod: %w", termsError(p.Spec().Affinity()))}
	}
	affinities := NewAffinities(c, p.Class)
	// Upstream skips such pods at PreScore.
	if a.IgnoreOthers && !affinities.Prefers() {
		return Scoring{}
	}

	scores := a.countVotes(c, affinities)
	if len(scores) == 0 {
		return Scoring{}
	}

	return Scoring{
		Node: func(n *cluster.Node) (sum int64, err error) {
			for key := range scores {
				sum += scores.countOf(n, key)
			}
			return sum, nil
		},
		Normalize: func(_ []*cluster.Node, scores []int64) {
			lowest, highest := slices.Min(scores), slices.Max(scores)
			for i := range scores {
				scores[i] = AffinityNormalized(scores[i], lowest, highest)
			}
		},
	}
}

// countVotes adds up the votes by domain. If the pending pod has no preferences, only pods with
// affinity can vote, and nodes without such pods are skipped.
func (a *InterPodAffinity) countVotes(c *cluster.Cluster, affinities *Affinities) domainCounts {
	scores, prefers := domainCounts{}, affinities.Prefers()
	votes := cacheByClass(func(class *cluster.PodClass) []Vote { return affinities.Votes(class, a.HardWeight) })
	for _, n := range c.Nodes {
		if n == nil || !prefers && n.Affine == 0 {
			continue
		}
		for _, p := range n.Pods {
			if !prefers && !p.Class.HasAffinity() {
				continue
			}
			for _, vote := range votes(p.Class) {
				scores.addWeight(n, vote.Key, vote.Weight)
			}
		}
	}
	return scores
}

// Interests implements Requeuer. Namespaces are of interest because terms select them by label.
func (*InterPodAffinity) Interests(setting Setting) []queue.Interest {
	h := &affinityHints{c: setting.Cluster}
	return []queue.Interest{
		{Resource: queue.Pod, Action: queue.Add | queue.Delete | queue.UpdatePodLabel, Hint: h.podMatters,
			Narrowing: byLabels(requiredSelectors)},
		{Resource: queue.Node, Action: queue.Add | queue.Delete | queue.UpdateNodeLabel, Hint: h.domainMatters, Narrowing: h.byDomains()},
		{Resource: queue.Namespace, Action: queue.All, Hint: namespaceMatters, Narrowing: byNamespaces()},
	}
}

// affinityHints caches the terms of the most recent classes. Terms that select namespaces are valid
// only until the labels of namespaces change, so any such change drops them all.
type affinityHints struct {
	c          *cluster.Cluster
	affinities recentValues[*Affinities]
	namespaces uint64 // the version of the namespaces' labels
}

// affinitiesOf returns the affinities of a class for the current namespaces.
func (h *affinityHints) affinitiesOf(class *cluster.PodClass) *Affinities {
	if h.namespaces != h.c.Namespaces.Version {
		h.namespaces = h.c.Namespaces.Version
		h.affinities.forgetAll()
	}
	a, ok := h.affinities.known[class]
	if !ok {
		a = NewAffinities(h.c, class)
		h.affinities.addValue(class, a)
	}
	return a
}

// podMatters reports whether an added, removed or relabelled pod now satisfies the pending pod's
// affinity, or has ceased to conflict with the anti-affinity of either pod.
func (h *affinityHints) podMatters(item *queue.Item, e *queue.Event) bool {
	if !isOthers(e) {
		return Own(item, e)
	}
	a := h.affinitiesOf(item.Class)
	switch {
	case e.PodBefore == nil:
		return e.Pod != nil && a.Attracts(e.Pod.Class)
	case e.Pod == nil:
		return leavingHelps(a, e.PodBefore.Class)
	}
	return a.Attracts(e.Pod.Class) && !a.Attracts(e.PodBefore.Class) ||
		leavingHelps(a, e.PodBefore.Class) && !slices.Equal(affinityKeys(a, e.Pod.Class), affinityKeys(a, e.PodBefore.Class))
}

// leavingHelps reports whether the departure of a pod of the class helps. If the leaving pod
// satisfied the pending pod's affinity on a node unable to take the pending pod, the pending pod
// may now run elsewhere as the first pod of its group.
func leavingHelps(a *Affinities, class *cluster.PodClass) bool {
	return len(a.Repels(class)) > 0 || len(a.RepelledBy(class)) > 0 || a.AttractsItself() && a.Attracts(class)
}

// affinityKeys returns the topology keys of the domains that pods of the class close to the pending
// pod, plus "" if they attract it.
func affinityKeys(a *Affinities, class *cluster.PodClass) []string {
	keys := append(a.Repels(class), a.RepelledBy(class)...)
	if a.Attracts(class) {
		keys = append(keys, "")
	}
	return keys
}

// domainMatters reports whether an added, removed or relabelled node is a new candidate for the
// pending pod, or may move pods that attract or repel the pending pod to another domain.
func (h *affinityHints) domainMatters(item *queue.Item, e *queue.Event) bool {
	a := h.affinitiesOf(item.Class)
	if e.Node == nil {
		return slices.ContainsFunc(e.NodeBefore.Pods, func(p *cluster.Pod) bool { return leavingHelps(a, p.Class) })
	}
	if e.NodeBefore == nil {
		return len(e.Node.Pods) > 0 || !slices.ContainsFunc(a.Required(), func(key string) bool { return !e.Node.Has(key) })
	}

	changed := func(key string) bool { return relabels(e, key) }
	for i := range item.Class.RequiredAntiAffinity {
		if changed(item.Class.RequiredAntiAffinity[i].TopologyKey) {
			return true
		}
	}
	return slices.ContainsFunc(a.Required(), changed) || h.repelledBy(a, changed)
}

// repelledBy reports whether some placed pod repels the pending pod by a topology key for which
// match returns true.
func (h *affinityHints) repelledBy(a *Affinities, match func(key string) bool) bool {
	for class := range h.repellingClasses {
		if slices.ContainsFunc(a.RepelledBy(class), match) {
			return true
		}
	}
	return false
}

// repellingClasses yields each class of placed pods with required anti-affinity.
func (h *affinityHints) repellingClasses(yield func(*cluster.PodClass) bool) {
	known := map[*cluster.PodClass]bool{}
	for _, n := range h.c.Nodes {
		if n == nil || n.AntiAffine == 0 {
			continue
		}
		for _, p := range n.Pods {
			if len(p.Class.RequiredAntiAffinity) == 0 || known[p.Class] {
				continue
			}
			if known[p.Class] = true; !yield(p.Class) {
				return
			}
		}
	}
}

// Wakes implements Waker.
func (*InterPodAffinity) Wakes() []string {
	return []string{"a node is added or changes its labels", "a pod that matches is placed or leaves", "a namespace's labels change"}
}

// Fixes implements Fixer.
func (*InterPodAffinity) Fixes() []Fix { return []Fix{RelaxAffinity} }
