package decide

import (
	"slices"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// planTallies lists what has to be counted by topology.
func (d *Decider) planTallies(pl *plan) {
	own := pl.example.Class
	for i := range pl.hard {
		c := &pl.hard[i]
		pl.tallies = append(pl.tallies, tallyPlan{purpose: spreadHard, key: c.TopologyKey, constraint: c, self: c.Self(own)})
	}
	if pl.spreadWeight == 0 {
		pl.soft = nil
	}
	for i := range pl.soft {
		c := &pl.soft[i]
		pl.tallies = append(pl.tallies, tallyPlan{purpose: spreadSoft, key: c.TopologyKey, constraint: c, lackingCount: !pl.everyKey && !c.PerNode()})
	}
	if len(pl.hard)+len(pl.soft) > 0 {
		pl.inclusion = plugins.NewSpreadInclusion(pl.example)
	}
	pl.affinities = plugins.NewAffinities(d.c, own)
	pl.attractsItself = pl.affinities.AttractsItself()
	if pl.filtersPods || pl.scoresPods {
		pl.others = d.terms.of(pl.affinities, own.Labels, pl.hardWeight, &d.keys)
	}
	if pl.filtersPods {
		for _, key := range pl.affinities.Required() {
			pl.tallies = append(pl.tallies, tallyPlan{purpose: attract, key: key})
		}
		for i := range own.RequiredAntiAffinity {
			d.addTally(pl, repel, own.RequiredAntiAffinity[i].TopologyKey)
		}
		for _, key := range pl.others.repelling {
			d.addTally(pl, repelledBy, key)
		}
	}
	if pl.scoresPods && !(pl.onlyOwnVotes && !pl.affinities.Prefers()) {
		for _, list := range [][]cluster.WeightedTerm{own.PreferredAffinity, own.PreferredAntiAffinity} {
			for i := range list {
				d.addTally(pl, vote, list[i].TopologyKey)
			}
		}
		for _, key := range pl.others.voting {
			d.addTally(pl, vote, key)
		}
	}
}

// addTally lists a purpose once for a key, if a node has the key.
func (d *Decider) addTally(pl *plan, purpose purpose, key string) {
	if d.keys.has(key) && !slices.ContainsFunc(pl.tallies, func(t tallyPlan) bool { return t.purpose == purpose && t.key == key }) {
		pl.tallies = append(pl.tallies, tallyPlan{purpose: purpose, key: key})
	}
}

// start makes an empty tally over the nodes that there are now.
func (t *tallyPlan) start(d *Decider) *tally {
	perNode := t.purpose == spreadSoft && t.constraint.PerNode()
	topology := d.topology(t.key, perNode)
	n := topology.domains()
	made := &tally{purpose: t.purpose, topology: topology, constraint: t.constraint, self: t.self, count: make([]int64, n), byCount: n > d.fewDomains}
	if perNode {
		made.byCount = true
	} else if t.purpose == spreadSoft {
		made.byCount = n > d.manyDomains // else the domains of the feasible nodes are told apart by their groups
	}
	if t.purpose == spreadHard {
		made.included = make([]int32, n)
	}
	made.lacking = t.domainOfLacking(topology)
	return made
}

// domainOfLacking returns the domain in which nodes without the label count, or none.
func (t *tallyPlan) domainOfLacking(topology *topology) int32 {
	if empty, known := topology.values[""]; known && t.lackingCount {
		return empty
	}
	return none
}

// limitGroups makes nodes be grouped by count instead of by domain in some tallies, where there
// would be a group for each of too many combinations of domains.
func limitGroups(tallies []*tally, manyGroups int) {
	for {
		groups, most := 1, (*tally)(nil)
		for _, t := range tallies {
			if t.byCount {
				continue
			}
			groups = min(groups*max(1, t.topology.domains()), 1<<30)
			if t.purpose != spreadSoft && (most == nil || t.topology.domains() > most.topology.domains()) {
				most = t
			}
		}
		if groups <= manyGroups || most == nil {
			return
		}
		most.byCount = true
	}
}

// countsPodsOf tells by a bit for each spread tally whether it counts the pods of a node.
func (pl *plan) countsPodsOf(n *cluster.Node) (counts uint8) {
	if pl.inclusion == nil {
		return 0
	}
	hard, soft := hasKeys(n, pl.hard), !pl.everyKey || hasKeys(n, pl.soft)
	for k := range pl.tallies {
		t := &pl.tallies[k]
		switch t.purpose {
		case spreadHard:
			if hard && pl.inclusion.Includes(t.constraint, n) {
				counts |= 1 << k
			}
		case spreadSoft:
			if t.constraint.PerNode() || soft && pl.inclusion.Includes(t.constraint, n) {
				counts |= 1 << k
			}
		}
	}
	return counts
}

func hasKeys(n *cluster.Node, constraints []plugins.SpreadConstraint) bool {
	for i := range constraints {
		if !n.Has(constraints[i].TopologyKey) {
			return false
		}
	}
	return true
}

// effects returns what one placed pod of a class counts in the tallies.
func (pl *plan) effects(class *cluster.PodClass) (effects []effect) {
	namespace := pl.example.Namespace()
	attracts := false
	if pl.filtersPods {
		attracts = pl.affinities.Attracts(class)
	}
	for k := range pl.tallies {
		t := &pl.tallies[k]
		var weight int64
		switch t.purpose {
		case spreadHard, spreadSoft:
			if t.constraint.Counts(class, namespace) {
				weight = 1
			}
		case attract:
			if attracts {
				weight = 1
			}
		case repel:
			weight = occurrences(pl.affinities.Repels(class), t.key)
		case repelledBy:
			weight = occurrences(pl.affinities.RepelledBy(class), t.key)
		case vote:
			weight = pl.votes(class, t.key)
		}
		if weight != 0 {
			effects = append(effects, effect{k, weight})
		}
	}
	return effects
}

func occurrences(keys []string, key string) (n int64) {
	for _, k := range keys {
		if k == key {
			n++
		}
	}
	return n
}

func (pl *plan) votes(class *cluster.PodClass, key string) (sum int64) {
	for _, v := range pl.affinities.Votes(class, pl.hardWeight) {
		if v.Key == key {
			sum += v.Weight
		}
	}
	return sum
}
