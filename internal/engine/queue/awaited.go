// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import "strings"

// Awaited holds the events that a pod waits for because of one plugin.
type Awaited struct {
	Plugin string
	// Events lists kinds and actions, with upstream's names.
	Events []string
}

// Awaits lists, by plugin, the events that retry a waiting or gated pod. The list is derived from
// the interests, whose hints may still decline an event.
func (q *Queue) Awaits(item *Item) (list []Awaited) {
	if item.group == nil {
		return nil
	}
	interests := q.interests[item.Pod.Spec.SchedulerName]
	for _, plugin := range item.group.rejectors {
		a := Awaited{Plugin: plugin}
		of, told := interests[plugin]
		if !told {
			a.Events = []string{string(AnyResource)}
		}
		for i := range of {
			a.Events = append(a.Events, string(of[i].Resource)+" "+of[i].Action.String())
		}
		list = append(list, a)
	}
	return list
}

// Ahead counts the active pods more urgent than the given active pod. It returns 0 for a pod in
// another place. It scans all active pods.
func (q *Queue) Ahead(item *Item) (n int) {
	if item.place != Active {
		return 0
	}
	return q.lines.ahead(item)
}

// actionNames lists the names of the bits of an Action, from the lowest.
var actionNames = [...]string{
	"Add", "Delete", "UpdateNodeAllocatable", "UpdateNodeLabel", "UpdateNodeTaint", "UpdateNodeCondition", "UpdateNodeAnnotation",
	"UpdateNodeDeclaredFeature", "UpdateNodePreemptionPolicy", "UpdatePodLabel", "UpdatePodScaleDown", "UpdatePodScaleUp",
	"UpdatePodToleration", "UpdatePodSchedulingGatesEliminated", "UpdatePodGeneratedResourceClaim",
}

// String returns upstream's names of the actions.
func (a Action) String() string {
	switch {
	case a&All == All:
		return "*"
	case a&Update == Update:
		rest := (a &^ Update).String()
		return strings.TrimPrefix(rest+"|Update", "|")
	}
	var names []string
	for bit, name := range actionNames {
		if a>>bit&1 != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, "|")
}
