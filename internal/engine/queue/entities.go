// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// entities counts items like upstream's queue: the pods of a pod group are one entity, and every
// ungrouped pod is a separate entity. The place of a group is the most advanced place of its pods,
// since all of them are decided together when the first of them is popped.
type entities struct {
	groups map[entityName]*groupEntity // the groups with items
	most   int                         // largest length of groups; see cluster.Shrunk
	places [Gated + 1]int              // number of groups by place
	lone   [Gated + 1]int              // number of ungrouped items by place
}

// entityName is the name of a pod group or of a composite group.
type entityName struct {
	cluster.Name
	composite bool
}

// groupEntity holds the items of one pod group, or of all groups of a tree. It exists while it
// contains items.
type groupEntity struct {
	name      entityName
	items     int            // number of items in all places
	places    [Gated + 1]int // number of items by place, without Taken items
	place     Place          // place of the entity; Taken if all items are Taken
	lastPlace Place          // place last returned by takeMove; reset to Taken when all items are Taken
}

// EntityCounts holds the numbers of entities by place.
type EntityCounts struct{ Pods, Groups [Gated + 1]int }

// Entities returns the number of entities in each place.
func (q *Queue) Entities() EntityCounts { return EntityCounts{q.entities.lone, q.entities.places} }

// Regroup moves an item to the current entity of its group; see EntityOf.
func (q *Queue) Regroup(uid types.UID) {
	if item := q.items[uid]; item != nil && item.entity != nil {
		q.entities.regroup(item, q.EntityOf)
	}
}

// entityNamer is [Queue.EntityOf]; if nil, each group is its own entity.
type entityNamer func(group cluster.Name) (name cluster.Name, composite bool)

// join adds a new, Taken item to its group's entity, if it names a group. A resize is decided
// alone.
func (es *entities) join(item *Item, nameOf entityNamer) {
	of := item.Pod.Spec.SchedulingGroup
	if of == nil || item.Resizes() || of.PodGroupName == nil || *of.PodGroupName == "" {
		return
	}
	item.entity = es.entityOf(item, nameOf)
	item.entity.items++
}

// entityOf returns the entity of an item that names a group.
func (es *entities) entityOf(item *Item, nameOf entityNamer) *groupEntity {
	name := entityName{Name: cluster.Name{Namespace: item.Pod.Namespace, Name: *item.Pod.Spec.SchedulingGroup.PodGroupName}}
	if nameOf != nil {
		name.Name, name.composite = nameOf(name.Name)
	}
	e := es.groups[name]
	if e == nil {
		e = &groupEntity{name: name}
		es.groups[name] = e
		es.groups = cluster.Shrunk(es.groups, &es.most)
	}
	return e
}

// regroup moves an item in any place to its current entity.
func (es *entities) regroup(item *Item, nameOf entityNamer) {
	was, is := item.entity, es.entityOf(item, nameOf)
	if is == was {
		return
	}

	es.move(was, item.place, -1)
	es.leave(item)
	item.entity = is
	is.items++
	es.move(is, item.place, 1)
}

// move adds change to the number of an entity's items in a place, and updates the entity's place.
func (es *entities) move(e *groupEntity, place Place, change int) {
	es.places[e.place]--
	e.places[place] += change
	e.place = e.findPlace()
	es.places[e.place]++
	if e.place == Taken {
		e.lastPlace = Taken
	}
}

// leave removes a Taken item, which is not counted in any place, from its entity.
func (es *entities) leave(item *Item) {
	e := item.entity
	if e == nil {
		return
	}
	item.entity = nil
	if e.items--; e.items == 0 {
		delete(es.groups, e.name)
		es.groups = cluster.Shrunk(es.groups, &es.most)
	}
}

// follow updates the counts for an item that changes places.
func (es *entities) follow(item *Item, from, to Place) {
	e := item.entity
	if e == nil {
		es.lone[from]--
		es.lone[to]++
		return
	}
	e.places[from]--
	es.move(e, to, 1)
}

// findPlace returns the most advanced place of any item, or Taken if all items are Taken.
func (e *groupEntity) findPlace() Place {
	for place := Active; place <= Gated; place++ {
		if e.places[place] > 0 {
			return place
		}
	}
	return Taken
}

// takeMove returns the current place of a moved item's entity. moved is false if the move of the
// item's group to this place was already returned: each move of a group is returned once.
func (es *entities) takeMove(item *Item) (place Place, group, moved bool) {
	e := item.entity
	switch {
	case e == nil:
		return item.place, false, true
	case e.lastPlace == e.place:
		return e.place, true, false
	}
	e.lastPlace = e.place
	return e.place, true, true
}

// check returns an error if the counts of entities do not match the items.
func (es *entities) check(items []*Item) error {
	var lone, groups [Gated + 1]int
	of := map[*groupEntity][Gated + 1]int{}
	for _, item := range items {
		if e := item.entity; e != nil {
			places := of[e]
			places[item.place]++
			of[e] = places
		} else {
			lone[item.place]++
		}
	}

	for e, places := range of {
		sum := 0
		for _, n := range places {
			sum += n
		}
		if places[Taken], e.places[Taken] = 0, 0; es.groups[e.name] != e || sum != e.items || places != e.places {
			return fmt.Errorf("group %v has %d items, at %v, and counts %d, at %v", e.name, sum, places, e.items, e.places)
		}
		groups[e.findPlace()]++
	}
	lone[Taken], groups[Taken] = es.lone[Taken], es.places[Taken]
	if lone != es.lone || groups != es.places || len(of) != len(es.groups) {
		return fmt.Errorf("entities are %v and %v, and counted %v", lone, groups, es)
	}
	return nil
}
