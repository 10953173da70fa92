package queue

import "slices"

// Event is something that happened in the cluster and may let a waiting pod run.
type Event uint8

// The events.
const (
	NodeAdded Event = iota
	NodeChanged
	PodPlaced  // a pod got its place, or one that has its place changed its labels
	PodRemoved // a pod left its node, or takes less of it
	VolumesChanged
	DevicesChanged
	NamespaceChanged
)

var eventNames = [...]string{"NodeAdd", "NodeUpdate", "AssignedPodAdd", "AssignedPodDelete", "Volumes", "Devices", "NamespaceUpdate"}

func (e Event) String() string { return eventNames[e] }

// helpedBy says which events can change the mind of a plugin that rejected a pod. A plugin that is not listed may be helped by
// anything.
var helpedBy = map[string][]Event{
	"NodeUnschedulable":    {NodeAdded, NodeChanged},
	"NodeName":             {NodeAdded},
	"TaintToleration":      {NodeAdded, NodeChanged},
	"NodeAffinity":         {NodeAdded, NodeChanged},
	"NodeDeclaredFeatures": {NodeAdded, NodeChanged},
	"NodePorts":            {NodeAdded, PodRemoved},
	"NodeResourcesFit":     {NodeAdded, NodeChanged, PodRemoved},
	"PodTopologySpread":    {NodeAdded, NodeChanged, PodPlaced, PodRemoved},
	"InterPodAffinity":     {NodeAdded, NodeChanged, PodPlaced, PodRemoved, NamespaceChanged},
	"VolumeRestrictions":   {NodeAdded, NodeChanged, PodRemoved, VolumesChanged},
	"NodeVolumeLimits":     {NodeAdded, NodeChanged, PodRemoved, VolumesChanged},
	"VolumeBinding":        {NodeAdded, NodeChanged, VolumesChanged},
	"VolumeZone":           {NodeAdded, NodeChanged, VolumesChanged},
	"DynamicResources":     {NodeAdded, NodeChanged, PodRemoved, DevicesChanged},
}

// helps tells whether the event can help a pod that these plugins rejected.
func (e Event) helps(rejectors []string) bool {
	if len(rejectors) == 0 {
		return true
	}
	for _, name := range rejectors {
		if events, known := helpedBy[name]; !known || slices.Contains(events, e) {
			return true
		}
	}
	return false
}
