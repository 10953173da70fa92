package queue

import "strings"

// Awaited is what a pod waits for because of one plugin.
type Awaited struct {
	Plugin string
	// Events are kinds and actions, as upstream names them.
	Events []string
}

// Awaits lists the events on which a waiting or gated pod is tried again, by plugin. It is what the
// interests say; their hints may still decline an event.
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

// Ahead counts the active pods that are more urgent than an active one. It goes through all active
// pods. It is 0 for a pod elsewhere.
func (q *Queue) Ahead(item *Item) (n int) {
	if item.place != Active {
		return 0
	}
	return q.lines.ahead(item)
}

// actionNames are the names of the bits of an Action, from the lowest.
var actionNames = [...]string{
	"Add", "Delete", "UpdateNodeAllocatable", "UpdateNodeLabel", "UpdateNodeTaint", "UpdateNodeCondition", "UpdateNodeAnnotation",
	"UpdateNodeDeclaredFeature", "UpdateNodePreemptionPolicy", "UpdatePodLabel", "UpdatePodScaleDown", "UpdatePodScaleUp",
	"UpdatePodToleration", "UpdatePodSchedulingGatesEliminated", "UpdatePodGeneratedResourceClaim",
}

// String names the actions as upstream does.
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
