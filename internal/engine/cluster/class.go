package cluster

import (
	"iter"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// PodClass is what pods that differ only in name, node and times have in common. No plugin can tell
// pods of one class apart; classDigest defines which fields that takes. A class never changes: a
// pod that is updated moves to another class. With ten thousand replicas, what the scheduler
// computes about one of them holds for all, and is stored once.
type PodClass struct {
	// ID is unique and never reused.
	ID int32

	Priority  int32
	Namespace string
	Labels    *rules.Labels
	// Spec is shared by classes for which it is the same.
	Spec *Spec
	// Controller is the owner that made the pods, or nil.
	Controller *metav1.OwnerReference

	// Neither is nil, and both are shared, so they are not to be changed.
	*Demand
	*Terms

	// Look is a digest of namespace, labels and Affinities: to the constraints of other pods, pods
	// of classes with equal digests are the same.
	Look [2]uint64

	// Needs is a digest of what the pods need from a node, except for labels, volumes and device
	// claims.
	Needs [2]uint64

	// Target is the name of the only node that the pods can go to, if their required node affinity
	// says that and nothing else. The DaemonSet controller creates such pods.
	Target string
	// Simple: of what placements change on a node, the pods need only CPU, memory and a pod slot,
	// as their containers request them.
	Simple bool

	pods int32 // placed pods of the class; at 0 the cluster may forget it

	// Bulk is how far labels and spec exceed the usual size, in bytes as the API encodes them. What
	// is kept of classes that may be gone is bounded by it.
	Bulk int

	key digest
}

// Demand is what one pod takes of a node, and needs of it. Classes with equal demands share it.
type Demand struct {
	// Requests is what one pod requests, overhead included.
	Requests Resources
	// NonZeroCPU (in thousandths) and NonZeroMemory are the requested CPU and memory, with defaults
	// for containers that request nothing.
	NonZeroCPU, NonZeroMemory int64

	// Static is a digest of what the pods need from single nodes, apart from room, ports, volumes,
	// devices and Target.
	Static [2]uint64

	Ports *Ports
}

// MostBulk bounds the bulk of the classes that something keeps although their pods may be gone.
// Classes of usual size have none.
const MostBulk = 8 << 20

// newPodClass makes the class of a pod with that key. It keeps parts of the pod object, which must
// not be changed afterwards. shared lets it use what other classes have already.
func newPodClass(pod *v1.Pod, key, needs digest, shared *shares) *PodClass {
	bulk := bulkOf(pod)
	if bulk > 0 {
		// A pod of unusual size would push out what others share, and hashing it costs more than it
		// saves.
		shared = &shares{alone: true}
	}
	own := rules.NewLabels(pod.Labels, shared.shareText)
	spec := shared.specOf(pod, needs, own)
	c := &PodClass{
		Namespace: shared.shareText(pod.Namespace), Labels: own, Spec: spec, Terms: spec.terms,
		Controller: shared.ownerOf(pod), Bulk: bulk, Needs: needs, key: key,
	}
	if pod.Spec.Priority != nil {
		c.Priority = *pod.Spec.Priority
	}
	c.Target = targetOf(spec)
	demand := readDemand(pod)
	demand.Static = staticDigest(pod, c.Target != "")
	c.Demand = shared.demandOf(demand)
	c.Simple = isSimple(pod, &c.Requests, c.Ports)
	c.Look = lookOf(c)
	return c
}

// readDemand reads what a pod takes of a node, but for Static.
func readDemand(pod *v1.Pod) (d Demand) {
	d.Requests, d.NonZeroCPU, d.NonZeroMemory = placedRequests(pod)
	d.Ports = portsOf(pod)
	return d
}

// ownerOf returns the pod's controller, with texts that others have, too.
func (s *shares) ownerOf(pod *v1.Pod) *metav1.OwnerReference {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return nil
	}
	owner.APIVersion, owner.Kind, owner.Controller = s.shareText(owner.APIVersion), s.shareText(owner.Kind), &yes
	if block := owner.BlockOwnerDeletion; block != nil && *block {
		owner.BlockOwnerDeletion = &yes
	}
	return owner
}

var yes = true // nobody changes what a class refers to

// lookOf computes PodClass.Look.
func lookOf(c *PodClass) [2]uint64 { return c.lookBy(c.Labels.All()) }

// LookBy is like Look, but of the labels with these keys: to constraints that name no other keys,
// pods of classes with equal digests are the same. The keys are sorted, each once.
func (c *PodClass) LookBy(keys []string) [2]uint64 { return c.lookBy(c.LabelsWith(keys)) }

// LabelsWith yields the labels with these keys, in their order.
func (c *PodClass) LabelsWith(keys []string) iter.Seq2[string, string] {
	return func(yield func(key, value string) bool) {
		for _, key := range keys {
			if value, has := c.Labels.Lookup(key); has && !yield(key, value) {
				return
			}
		}
	}
}

func (c *PodClass) lookBy(labels iter.Seq2[string, string]) [2]uint64 {
	h, count := hasher{}, uint64(0)
	h.addString(c.Namespace)
	for key, value := range labels {
		h.addString(key)
		h.addString(value)
		count++
	}
	h.addWord(count)
	h.addWord(c.Affinities[0])
	h.addWord(c.Affinities[1])
	return h.sum()
}

// bulkOf computes PodClass.Bulk.
func bulkOf(pod *v1.Pod) int {
	const usual = 4 << 10
	size := pod.Spec.Size()
	for key, value := range pod.Labels {
		size += len(key) + len(value)
	}
	return max(0, size-usual)
}

// targetOf computes PodClass.Target. For example, the affinity that the DaemonSet controller sets:
//
//	nodeSelectorTerms:
//	- matchFields:
//	  - {key: metadata.name, operator: In, values: [node-17]}
func targetOf(spec *Spec) string {
	if spec.NodeAffinity == nil {
		return ""
	}
	required := spec.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil || len(required.NodeSelectorTerms) != 1 {
		return ""
	}
	term := &required.NodeSelectorTerms[0]
	if len(term.MatchExpressions) > 0 || len(term.MatchFields) != 1 {
		return ""
	}
	if field := &term.MatchFields[0]; field.Key == metav1.ObjectNameField && field.Operator == v1.NodeSelectorOpIn &&
		len(field.Values) == 1 {
		return field.Values[0]
	}
	return ""
}

// WithoutTarget returns the class without its target. It is a copy, which is in no table; its
// digests are those of the class.
func (c *PodClass) WithoutTarget() *PodClass {
	if c.Target == "" {
		return c
	}
	other, spec, node := *c, *c.Spec, *c.Spec.NodeAffinity
	node.RequiredDuringSchedulingIgnoredDuringExecution = nil
	spec.NodeAffinity, other.Spec, other.Target = &node, &spec, ""
	return &other
}

// isSimple computes PodClass.Simple.
func isSimple(pod *v1.Pod, requests *Resources, ports *Ports) bool {
	if ports != nil || requests.EphemeralStorage != 0 || pod.Spec.Resources != nil || isPersonal(pod) || isResized(&pod.Status) {
		return false
	}
	for _, amount := range requests.Scalars {
		if amount != 0 {
			return false
		}
	}
	for i := range pod.Spec.Volumes {
		if volumeMatters(&pod.Spec.Volumes[i]) {
			return false
		}
	}
	return true
}
