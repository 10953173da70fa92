// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"strings"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide/effort"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// planner makes plans from the results of all plugins of a profile. Plans of classes with the same
// requirements on single nodes share a skeleton, so the plan of a new class only requires
// evaluating its selectors.
type planner struct {
	c       *cluster.Cluster
	profile *plugins.Profile
	limits  *effort.Limits
	meter   *effort.Meter
	ix      *index

	scoreKey     func(*cluster.Pod) string // see plugins.ScoreKeyer; nil: no scorer implements it
	skeletons    map[string]*skeleton      // by key made by skeletonFor
	nextSkeleton uint32
	key          []byte // scratch space
}

func newPlanner(ix *index, profile *plugins.Profile) *planner {
	pn := &planner{c: ix.c, profile: profile, limits: ix.limits, meter: ix.meter, ix: ix, skeletons: map[string]*skeleton{}}
	for _, s := range profile.Scorers {
		f, is := s.Scorer.(plugins.ScoreKeyer)
		if !is {
			continue
		}

		before := pn.scoreKey
		pn.scoreKey = func(p *cluster.Pod) string {
			if before != nil {
				return before(p) + f.ScoreKey(pn.c, p)
			}
			return f.ScoreKey(pn.c, p)
		}
	}
	return pn
}

// newPlan makes the plan for the pod's class from the results of all plugins of the profile.
func (pn *planner) newPlan(p *cluster.Pod) *plan {
	pl := &plan{example: p}
	if isInterested(pn.profile, p) {
		pl.way = plainly
		return pl
	}
	if !pn.planPlugins(pl) {
		return pl
	}
	pl.planOrder()
	pn.planRoom(pl)
	pn.planTallies(pl)
	if pl.maxRoom >= maxBuckets || pn.needsScan(pl) {
		pl.way = plainly
	}
	return pl
}

// planPlugins collects the results of the plugins. It returns false if the result of a plugin
// determines the way of deciding the pod.
func (pn *planner) planPlugins(pl *plan) bool {
	for _, f := range pn.profile.Filters {
		if !pn.planFilter(pl, f) {
			return false
		}
	}
	for _, s := range pn.profile.Scorers {
		if !pn.planScorer(pl, s) {
			pl.way = plainly
			return false
		}
	}
	return true
}

// needsScan reports whether the pod requests an extended resource that a DeviceClass may provide.
// The nodes of a group may differ in such devices.
func (pn *planner) needsScan(pl *plan) bool {
	return pl.room == nil && plugins.WantsDevices(pn.c, pl.example)
}

// signatureOf returns a string that distinguishes the plans of classes with the same requirements.
// It covers the parts of a plan that depend on API objects and on the pods' own labels.
func (pn *planner) signatureOf(pl *plan) string {
	var b strings.Builder
	fmt.Fprintln(&b, pn.ix.learntVersion(), pl.everyKey, len(pl.early), len(pl.late), len(pl.contents), pl.room != nil, pl.scoreKey)
	for i := range pl.asked {
		fmt.Fprintln(&b, pl.asked[i].filter.Name())
	}

	for i := range pl.askedScores {
		fmt.Fprintln(&b, pl.askedScores[i].Name())
	}
	for i := range pl.tallies {
		t := &pl.tallies[i]
		fmt.Fprintf(&b, "%d %t %s", t.purpose, t.foreign, t.key)
		if t.constraint != nil {
			fmt.Fprintf(&b, " %x %d", t.constraint.Selector.Digest(), t.self)
		}
		b.WriteByte('\n')
	}

	if len(pl.tallies) > 0 {
		fmt.Fprintln(&b, pl.attractsItself)
		b.Write(pl.others.describeTerms([2]uint64{}))
	}
	return b.String()
}

// planFilter adds a filter to the plan. It returns false if the filter determines the way of
// deciding the pod.
func (pn *planner) planFilter(pl *plan, f plugins.Filter) bool {
	switch f := f.(type) {
	case plugins.Spreader:
		hard, err := f.Hard(pn.c, pl.example)
		if err != nil {
			pl.way = plainly
			return false
		}
		pl.hard = hard
		pl.spreadPlugin = f.Name()
		pl.steps = append(pl.steps, step{f.Name(), none, nil})
		return true
	case plugins.TermCounter:
		if pl.example.Class.TermError != nil {
			pl.way = plainly
			return false
		}
		pl.filtersPods = true
		pl.affinityPlugin = f.Name()
		pl.steps = append(pl.steps, step{f.Name(), none, nil})
		return true
	}

	reads := readsOf(f, pl.example)
	switch {
	case reads&plugins.Others != 0:
		judge := f.Filter(pn.c, pl.example)
		if judge.Err == nil && judge.All == nil && judge.Only == nil && judge.Node == nil {
			return true
		}
		pl.way = plainly
		return false
	case reads&plugins.Objects != 0:
		if appliesTo(f, pn.c, pl.example) {
			pl.asked = append(pl.asked, askedFilter{f, len(pl.steps)})
			pl.steps = append(pl.steps, step{f.Name(), int32(len(pl.asked) - 1), nil})
		}
		return true
	}

	judge := f.Filter(pn.c, pl.example)
	switch {
	case judge.Err != nil, judge.All != nil, judge.Only != nil:
		pl.way = plainly
		return false
	case judge.Node == nil:
		return true
	}

	named := namedJudge{f.Name(), judge.Node}
	pl.steps = append(pl.steps, step{f.Name(), none, judge.Node})
	switch {
	case reads&plugins.Contents != 0:
		pl.contents = append(pl.contents, named)
		if _, is := f.(plugins.RoomFilter); is {
			pl.filtersRoom = true
		}
	case len(pl.contents)+len(pl.hard)+len(pl.asked) == 0 && !pl.filtersPods:
		pl.early = append(pl.early, named)
	default:
		pl.late = append(pl.late, named)
	}

	pl.perNode = pl.perNode || reads&plugins.Identity != 0
	return true
}

// readsOf returns the parts read by a filter for this pod, or for any pod if the filter does not
// distinguish pods.
func readsOf(f plugins.Filter, p *cluster.Pod) plugins.Part {
	if specific, ok := f.(plugins.ReadsPerPod); ok {
		return specific.ReadsFor(p)
	}
	return f.Reads()
}

// planScorer adds a scorer to the plan. It returns false if the scorer fails.
func (pn *planner) planScorer(pl *plan, s plugins.Weighted) bool {
	switch f := s.Scorer.(type) {
	case plugins.Spreader:
		soft, everyKey, err := f.Soft(pn.c, pl.example)
		pl.soft, pl.everyKey, pl.spreadWeight = soft, everyKey, s.Weight
		return err == nil
	case plugins.TermCounter:
		pl.scoresPods, pl.voteWeight = true, s.Weight
		_, pl.onlyOwnVotes = f.TermWeights()
		return pl.example.Class.TermError == nil
	}
	fixed, _ := s.Scorer.(plugins.FixedScorer)
	_, ofRoom := s.Scorer.(plugins.RoomScorer)
	if f, is := s.Scorer.(plugins.ObjectScorer); is && f.ScoresByObjects() {
		pl.askedScores = append(pl.askedScores, s)
		return true
	}
	var into *rawScore
	if fixed != nil {
		into = pl.fixedScoreAt(fixed.Scale())
	}
	if !ofRoom && (into == nil || into.node != nil) { // the plan has one field for each kind of score
		if appliesTo(s.Scorer, pn.c, pl.example) {
			pl.askedScores = append(pl.askedScores, s)
		}
		return true
	}

	scoring := s.Scorer.Score(pn.c, pl.example, nil)
	if scoring.Err != nil {
		return false
	}
	if scoring.Node == nil {
		return true
	}
	raw := rawScore{scoring.Node, scoring.Exact, s.Weight}
	if ofRoom {
		pl.exact = pl.exact || scoring.Exact != nil
		pl.contentScores = append(pl.contentScores, raw)
		pl.maxRoom += plugins.MaxScore * int(s.Weight)
		return true
	}
	*into = raw
	if f, ok := s.Scorer.(plugins.ReadsPerPod); ok {
		pl.perNode = pl.perNode || f.ReadsFor(pl.example)&plugins.Identity != 0
	}
	if f, ok := s.Scorer.(plugins.ScoreKeyer); ok {
		pl.scoreKey += f.ScoreKey(pn.c, pl.example)
	}
	return true
}

// planRoom sets the plan's room if the class and the scorers only use CPU and memory.
func (pn *planner) planRoom(pl *plan) {
	requests := &pl.example.Class.Requests
	if !pl.filtersRoom || requests.EphemeralStorage > 0 {
		return
	}

	for _, amount := range requests.Scalars {
		if amount != 0 {
			return
		}
	}

	r := &room{cpu: requests.MilliCPU, memory: requests.Memory}
	for _, s := range pn.profile.Scorers {
		scorer, is := s.Scorer.(plugins.RoomScorer)
		if !is {
			continue
		}
		switch score := scorer.ScoreByRoom(pn.c, pl.example); {
		case score.Skips:
			r.skips = true
		case score.Only:
			r.addScore(&score, s.Weight)
		default:
			return
		}
	}

	r.usual = r.least.weight != 0 && r.even.weight != 0 && len(r.others) == 0
	pl.room = r
}

// skeleton is the common part of the plans of simple classes with the same requirements on single
// nodes. It excludes room and the parts that depend on the classes' selectors. It is created for
// the first such class.
//
// The example may have different amounts and selectors than the class being decided. Nothing that
// depends on these may be taken from the skeleton: planFrom replaces room, constraints and tallies.
type skeleton struct {
	plan
	suits   bool             // a base can be used: the plan only depends on room, static parts and other pods
	selects bool             // a filter of the profile is a plugins.Targeter
	used    uint64           // decider's clock at the last use
	ask     []any            // plugins that affect only some of the classes; see appliesTo
	hard    plugins.Spreader // nil: none
	soft    plugins.Spreader
	weight  int64 // weight of soft
}

func (sk *skeleton) bulk() int { return sk.example.Class.Bulk }

// maxSkeletons bounds the number of skeletons, and cluster.MostBulk bounds their size. Both are
// bounded because a skeleton retains its example pod, which may have been deleted.
const maxSkeletons = 1 << 10
