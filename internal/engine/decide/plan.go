// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// plan describes how to decide the pods of one class: the results of all plugins, by their
// dependencies. It is valid until one of the API objects behind it changes.
//
// A plan is immutable once a ranking, a base or the cache holds it, since classes share it. Its
// functions judge single nodes and are valid for all classes with the same requirements. Its tally
// plans describe which pods to count, but hold no counts.
type plan struct {
	example  *cluster.Pod // one pod of the class
	way      way
	skeleton uint32 // number of the plan's skeleton; 0: none

	// Judges independent of placements. The filters that depend on placed pods run after the judges
	// in early, and before the judges in late.
	early, late []namedJudge
	// perNode is set if one of these judges or raw scores depends on the node's name. Each node is
	// then judged individually, even if it shares all of its cluster.Parts with another node.
	perNode         bool
	taint, affinity rawScore
	image           rawScore
	scoreKey        string // inputs of these scores besides pod and node; see plugins.ScoreKeyer

	// The judges and scores that depend on the pods on a node and its remaining room. room, if set,
	// is a faster implementation of the RoomFilter and of all these scores.
	contents      []namedJudge
	filtersRoom   bool // contents includes a plugins.RoomFilter
	contentScores []rawScore
	room          *room
	maxRoom       int  // highest sum of contentScores
	exact         bool // a content score has fine scores

	// PodTopologySpread.
	hard, soft   []plugins.SpreadConstraint
	everyKey     bool // score only nodes with the keys of all soft constraints
	spreadWeight int64
	inclusion    *plugins.SpreadInclusion

	// InterPodAffinity.
	affinities     *plugins.Affinities
	attractsItself bool
	filtersPods    bool // the plugin is a filter of the profile
	scoresPods     bool // the plugin is a scorer of the profile
	onlyOwnVotes   bool // the plugin scores only pending pods with preferred terms
	voteWeight     int64

	others termEffects // the effect of other pods' terms on the class

	tallies []tallyPlan
	// Foreign terms are the terms of pods whose affinity differs from the pending pod's. Pods of
	// the same workload have the same affinity. foreignApart is set if foreign terms have separate
	// tallies, because a joint tally would yield too many combinations of domains. foreignSummed is
	// set if foreign terms have no tallies, because a base sums them.
	foreignApart, foreignSummed bool
	combinations                int // estimated number of node groups created by the tallies

	// The filters to run for every pod, on the nodes that pass everything else.
	asked       []askedFilter
	askedScores []plugins.Weighted

	// steps lists all filters in the order of the profile; spreadStep and affinityStep are the
	// indices of the two filters that count pods by domain. usualOrder is set if the filters have
	// their default order: the filters that depend only on the pods on a node precede spread,
	// spread precedes affinity, and no other filter is between spread and affinity.
	steps                        []step
	spreadStep, affinityStep     int
	spreadPlugin, affinityPlugin string // names of these two filters; empty if the profile lacks them
	usualOrder                   bool
	asksEarly                    bool // an asked filter precedes a filter of contents
}

// step is a filter: either the index of an asked filter in plan.asked, or a judge. A filter that
// counts pods by domain has neither.
type step struct {
	name  string
	asked int32
	judge judge
}

// scoresNothing reports whether all feasible nodes are equally good.
func (pl *plan) scoresNothing() bool {
	return pl.taint.node == nil && pl.affinity.node == nil && pl.image.node == nil && len(pl.contentScores) == 0 && pl.maxRoom == 0 &&
		len(pl.soft) == 0 && !pl.scoresPods && len(pl.askedScores) == 0
}

// stepOf returns the index of a filter in steps.
func (pl *plan) stepOf(name string) int {
	return slices.IndexFunc(pl.steps, func(s step) bool { return s.name == name })
}

// planOrder sets usualOrder, asksEarly, spreadStep and affinityStep. In the usual order, the early
// filters are followed by contents and the asked filters, then by spread, affinity, and the late
// filters.
func (pl *plan) planOrder() {
	const (
		contents = iota
		spread
		affinity
		late
	)
	is := map[string]int{pl.spreadPlugin: spread, pl.affinityPlugin: affinity}
	for _, f := range pl.late {
		is[f.name] = late
	}

	for _, f := range pl.contents {
		is[f.name] = contents
	}
	pl.usualOrder = slices.IsSortedFunc(pl.steps[len(pl.early):], func(a, b step) int { return is[a.name] - is[b.name] })
	for _, f := range pl.contents {
		pl.asksEarly = pl.asksEarly || len(pl.asked) > 0 && pl.asked[0].step < pl.stepOf(f.name)
	}
	pl.spreadStep, pl.affinityStep = pl.stepOf(pl.spreadPlugin), pl.stepOf(pl.affinityPlugin)
}

// way is the method of deciding the pods of a class.
type way uint8

const (
	ranked way = iota // from a ranking
	// plainly is used if groups of nodes cannot express a plugin's result, or if a ranking does not
	// pay off because the pod is rejected on all nodes or restricted to nodes by name.
	plainly
)

type namedJudge struct {
	name  string
	judge judge
}

// rawScore is a plugin's score before normalization; node is nil if the plugin skips the pod.
type rawScore struct {
	node   func(n *cluster.Node) (int64, error)
	exact  func(n *cluster.Node) (score, fine int64) // see plugins.Scoring; nil: no fine score
	weight int64
}

// scoreFinely returns a score for room, which cannot fail, and the fine score.
func (s *rawScore) scoreFinely(n *cluster.Node) (score, fine int64) {
	if s.exact != nil {
		return s.exact(n)
	}
	score, _ = s.node(n)
	return score, 0
}

func (s *rawScore) scoreNode(n *cluster.Node) int64 {
	if s.node == nil {
		return 0
	}
	score, _ := s.node(n)
	return score
}

// tallyPlan describes the purpose of counting pods, and the label to count by. Two plans count the
// same pods if their tally plans are equal and their fields named others are equal; see
// planner.signatureOf.
type tallyPlan struct {
	purpose    purpose
	key        string
	constraint *plugins.SpreadConstraint
	self       int64 // see SpreadConstraint.Self
	// foreign restricts the tally to foreign terms.
	foreign bool
	// lackingCount counts nodes without the label together with nodes whose label value is empty.
	lackingCount bool
}

// maxBuckets bounds the sum of the scores for room. If the scorers' weights allow a higher sum,
// Plain decides.
const maxBuckets = 1 << 14

// fixedScoreAt returns the plan's raw score with the given scale.
func (pl *plan) fixedScoreAt(scale plugins.Scale) *rawScore {
	switch scale {
	case plugins.FewestBest:
		return &pl.taint
	case plugins.MostBest:
		return &pl.affinity
	}
	return &pl.image
}

// askedFilter is a filter whose verdicts groups of nodes cannot express, because it reads API
// objects (volumes, device claims) or is out-of-tree. It runs on each node that passes all other
// filters.
type askedFilter struct {
	filter plugins.Filter
	step   int // index in plan.steps
}

// purpose determines which pods a tally counts.
type purpose uint8

const (
	spreadHard purpose = iota // pods counted by a DoNotSchedule constraint
	spreadSoft                // pods counted by a ScheduleAnyway constraint
	attract                   // pods matching the required affinity
	repel                     // pods excluded by the required anti-affinity
	repelledBy                // pods whose required anti-affinity excludes the pending pod
	vote                      // weights of the preferences of the pending pod and of placed pods
)

// onlyRoom reports whether free room is the only influence of the pods on a node.
func (pl *plan) onlyRoom() bool { return pl.room != nil && len(pl.contents) == 1 }

// domainOfLacking returns the domain of nodes without the label, or none.
func (t *tallyPlan) domainOfLacking(topology *topology) int32 {
	if empty, known := topology.values[""]; known && t.lackingCount {
		return empty
	}
	return none
}

// versions holds the versions of all inputs of a plan, except for nodes and pods.
type versions struct {
	namespaces, services, controllers, devices uint64
	images                                     uint64
	keys                                       int
	terms                                      int    // version of the terms that may match the pod
	learnt                                     uint64 // see plugins.Learner
}

// versionsFor returns the current versions, except for versions.terms, which the caller must set.
// The version of namespaces is included only if a term selects namespaces by labels.
func (ix *index) versionsFor(class *cluster.PodClass) versions {
	c := ix.c
	v := versions{
		services:    c.Services.Version,
		controllers: c.ReplicationControllers.Version + c.ReplicaSets.Version + c.StatefulSets.Version,
		devices:     c.DeviceClasses.Version, images: c.ImagesVersion, keys: ix.keys.version, learnt: ix.learntVersion(),
	}
	if class.SelectsNamespaces || ix.terms.selective > 0 {
		v.namespaces = c.Namespaces.Version
	}
	return v
}

// learntVersion returns the combined version of the state learnt by scorers.
func (ix *index) learntVersion() (sum uint64) {
	for _, l := range ix.learners {
		sum += l.Version(ix.c)
	}
	return sum
}

// reason is the reason why a node itself cannot take the pod.
type reason struct {
	plugin    string
	rejection *plugins.Rejection
}

// static is the part of a verdict and score that does not depend on placements. For one class,
// nodes with the same static differ only in their domains and pods.
//
// Nodes with equal statics share one entry, so statics are compared by index.
type static struct {
	early     *reason // reason for rejecting the nodes before their pods are considered, or nil
	bucket    int16   // bucket of the nodes if early is set
	late      *reason // reason for rejecting the nodes if nothing else rejects them, or nil
	lateIndex int16   // index of late in the reasons of the ranking

	taint, affinity int64 // raw scores to be normalized
	image           int64 // score that needs no normalization
	scored          bool  // the soft spread constraints score the nodes, because the nodes have their labels
	hostname        bool
}

// scoreStatic scores a node that passed all static filters.
func (pl *plan) scoreStatic(n *cluster.Node) static {
	return static{
		taint: pl.taint.scoreNode(n), affinity: pl.affinity.scoreNode(n), image: pl.image.scoreNode(n), scored: !pl.everyKey ||
			plugins.HasKeys(n, pl.soft), hostname: n.Hostname.Known,
	}
}
