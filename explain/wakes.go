package explain

// wakes says, for each plugin, what can change its mind: what the queue waits for.
var wakes = map[string][]string{
	"NodeUnschedulable":    {"a node is added", "a node is uncordoned"},
	"NodeName":             {"a node is added"},
	"TaintToleration":      {"a node is added", "a node loses a taint", "the pod gets a toleration"},
	"NodeAffinity":         {"a node is added", "a node's labels change"},
	"NodeDeclaredFeatures": {"a node is added", "a node declares a feature"},
	"NodePorts":            {"a node is added", "a pod leaves its node"},
	"NodeResourcesFit":     {"a node is added", "a node's allocatable grows", "a pod leaves its node or is resized", "the pod asks for less"},
	"PodTopologySpread":    {"a node is added or changes its labels or taints", "a pod that counts is placed, leaves or changes its labels"},
	"InterPodAffinity":     {"a node is added or changes its labels", "a pod that matches is placed or leaves", "a namespace's labels change"},
	"VolumeRestrictions":   {"a pod leaves its node", "a claim changes"},
	"NodeVolumeLimits":     {"a node or CSINode is added or changes", "a pod leaves its node", "a volume is detached"},
	"VolumeBinding":        {"a claim, volume, storage class or storage capacity is added or changes", "a node is added or changes its labels"},
	"VolumeZone":           {"a claim, volume or storage class is added or changes", "a node is added or changes its labels"},
	"DynamicResources":     {"a resource claim or slice is added or changes", "a node is added", "a pod leaves its node"},
}
