package queue

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// entities counts items as upstream's queue holds them: the pods of a pod group are one entity,
// every other pod is one of its own. A group is in the queue in the most advanced place of its
// pods, since they are decided together with the first one that is popped.
type entities struct {
	groups map[entityName]*groupEntity // those with items
	most   int                         // of groups; see cluster.Shrunk
	places [Gated + 1]int              // groups by place
	lone   [Gated + 1]int              // items that are in no group, by place
}

// entityName is the name of a pod group, or of a composite one.
type entityName struct {
	cluster.Name
	composite bool
}

// groupEntity is the items of one pod group, or of all groups of a tree.
type groupEntity struct {
	name   entityName
	items  int            // wherever they are
	places [Gated + 1]int // those of them that are not Taken
	place  Place          // Taken if all items are
	told   Place          // the last one that EntityMoved was told, Taken after the group was
}

// EntityCounts are numbers of entities by place.
type EntityCounts struct{ Pods, Groups [Gated + 1]int }

// Entities returns how many entities are in each place.
func (q *Queue) Entities() EntityCounts { return EntityCounts{q.entities.lone, q.entities.places} }

// joinGroup makes a new item one of its group's, if groups are decided as a whole.
func (q *Queue) joinGroup(item *Item) {
	of := item.Pod.Spec.SchedulingGroup
	if !q.Grouped || of == nil || of.PodGroupName == nil || *of.PodGroupName == "" {
		return
	}
	item.entity = q.entityOf(cluster.Name{Namespace: item.Pod.Namespace, Name: *of.PodGroupName})
	item.entity.items++
}

// entityOf returns the entity of a group's pods.
func (q *Queue) entityOf(group cluster.Name) *groupEntity {
	name := entityName{Name: group}
	if q.EntityOf != nil {
		name.Name, name.composite = q.EntityOf(group)
	}
	e := q.entities.groups[name]
	if e == nil {
		e = &groupEntity{name: name}
		q.entities.groups[name] = e
		q.entities.groups = cluster.Shrunk(q.entities.groups, &q.entities.most)
	}
	return e
}

// Regroup counts an item to the entity that its group belongs to now; see EntityOf.
func (q *Queue) Regroup(uid types.UID) {
	item := q.items[uid]
	if item == nil || item.entity == nil {
		return
	}
	was := item.entity
	is := q.entityOf(cluster.Name{Namespace: item.Pod.Namespace, Name: *item.Pod.Spec.SchedulingGroup.PodGroupName})
	if is == was {
		return
	}

	q.entities.move(was, item.place, -1)
	q.leaveGroup(item)
	item.entity = is
	is.items++
	q.entities.move(is, item.place, 1)
}

// move counts one item more or less of a group in a place.
func (es *entities) move(e *groupEntity, place Place, by int) {
	es.places[e.place]--
	e.places[place] += by
	e.place = e.findPlace()
	es.places[e.place]++
	if e.place == Taken {
		e.told = Taken
	}
}

// leaveGroup takes a removed item, which is Taken, from its group.
func (q *Queue) leaveGroup(item *Item) {
	e := item.entity
	if e == nil {
		return
	}
	item.entity = nil
	if e.items--; e.items == 0 {
		delete(q.entities.groups, e.name)
		q.entities.groups = cluster.Shrunk(q.entities.groups, &q.entities.most)
	}
}

// countEntity follows an item from one place to another.
func (q *Queue) countEntity(item *Item, from, to Place) {
	e := item.entity
	if e == nil {
		q.entities.lone[from]--
		q.entities.lone[to]++
		return
	}
	e.places[from]--
	e.places[to]++
	q.entities.places[e.place]--
	e.place = e.findPlace()
	q.entities.places[e.place]++
	if e.place == Taken {
		e.told = Taken
	}
}

// findPlace returns the most advanced place that an item is in.
func (e *groupEntity) findPlace() Place {
	for place := Active; place <= Gated; place++ {
		if e.places[place] > 0 {
			return place
		}
	}
	return Taken
}

// reportEntity reports that an entity has moved, if the item that did is not one of a group that
// was there already.
func (q *Queue) reportEntity(item *Item, label string) {
	if q.EntityMoved == nil {
		return
	}
	e := item.entity
	switch {
	case e == nil:
		q.EntityMoved(item.place, label, false)
	case e.told != e.place:
		e.told = e.place
		q.EntityMoved(e.place, label, true)
	}
}

// check returns an error if entities are not what the items say.
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
