// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"iter"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	helper "k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// PodClass is the shared part of pods that differ only in name, node and times. No plugin can
// distinguish pods of one class; classDigest covers all fields that distinguish classes. A class is
// immutable: an updated pod moves to another class. A result computed for one of ten thousand
// replicas is valid for all of them, and is stored once.
type PodClass struct {
	// ID is unique and never reused.
	ID int32

	Priority  int32
	Namespace string
	Labels    *rules.Labels
	// Spec is shared by classes with equal specs.
	Spec *Spec
	// Controller is the owner that created the pods, or nil.
	Controller *Controller

	// Demand and Terms are shared and never nil; do not modify them.
	*Demand
	*Terms

	// Look is a digest of namespace, labels and Affinities: the constraints of other pods do not
	// distinguish between the pods of classes with equal digests.
	Look [2]uint64

	// Needs is a digest of the pods' requirements on nodes, except for labels, volumes and device
	// claims.
	Needs [2]uint64

	// Simple reports whether the pods use up only CPU, memory and a pod slot of their node, as
	// requested by their containers, and no ports, volumes, devices or other resources.
	Simple bool

	// Resizes is set if [Cluster.ResizeClass] created the class. Equal pods, if any, share it.
	Resizes bool

	pods int32 // placed pods of the class; at 0 the cluster may drop the class

	// Bulk is the size of labels and spec beyond the usual size, in bytes of the API encoding. The
	// total bulk of classes without pods is bounded; see MostBulk.
	Bulk int

	key digest
}

// Demand holds the requirements of one pod on a node. Classes with equal demands share it.
type Demand struct {
	// Requests is the request of one pod, overhead included.
	Requests Resources
	// NonZeroCPU (in thousandths) and NonZeroMemory are the requested CPU and memory, with defaults
	// for containers without requests.
	NonZeroCPU, NonZeroMemory int64

	// Static is a digest of the pods' requirements on single nodes, apart from room, ports,
	// volumes, devices and Target.
	Static [2]uint64

	Ports *Ports
}

// MostBulk bounds the total bulk of the classes retained by a data structure, because their pods
// may have been deleted. Classes of usual size have a bulk of 0.
const MostBulk = 2 << 20

// newPodClass creates the class of a pod with the given key. It retains parts of the pod object,
// which must not be modified afterwards. shared provides values already used by other classes.
func newPodClass(pod *v1.Pod, key, needs digest, shared *shares) *PodClass {
	bulk := bulkOf(pod)
	if bulk > 0 {
		// An unusually large pod would evict values shared by other classes, and hashing it costs
		// more than it saves.
		shared = &shares{alone: true}
	}
	own := rules.NewLabels(pod.Labels, shared.shareText)
	spec := shared.specOf(pod, needs, own)
	c := &PodClass{
		Namespace: shared.shareText(pod.Namespace), Labels: own, Spec: spec, Terms: spec.terms,
		Controller: shared.controllerOf(pod), Bulk: bulk, Needs: needs, key: key,
	}
	if pod.Spec.Priority != nil {
		c.Priority = *pod.Spec.Priority
	}
	c.Resizes = c.Target() != "" && helper.IsPodResizeDeferred(pod)
	demand := readDemand(pod)
	demand.Static = staticDigest(pod, c.Target() != "")
	c.Demand = shared.demandOf(demand)
	c.Simple = isSimple(pod, &c.Requests, c.Ports)
	c.Look = c.lookBy(c.Labels.All())
	return c
}

// readDemand reads the requirements of a pod on a node, except for Static.
func readDemand(pod *v1.Pod) (d Demand) {
	d.Requests, d.NonZeroCPU, d.NonZeroMemory = placedRequests(pod)
	d.Ports = portsOf(pod)
	return d
}

// Controller is a reference to the controller of pods, in half of the memory of the API's form.
type Controller struct {
	*ControllerKind // not nil, and shared
	Name            string
	UID             types.UID
}

// ControllerKind is the kind of a controller.
type ControllerKind struct{ APIVersion, Kind string }

// Reference returns the API's form of the reference; nil for no controller.
func (c *Controller) Reference() *metav1.OwnerReference {
	if c == nil {
		return nil
	}
	return &metav1.OwnerReference{APIVersion: c.APIVersion, Kind: c.Kind, Name: c.Name, UID: c.UID, Controller: new(true)}
}

// controllerOf returns the pod's controller, with its name and UID in one allocation.
func (s *shares) controllerOf(pod *v1.Pod) *Controller {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return nil
	}
	var h hasher
	h.addString(owner.APIVersion)
	h.addString(owner.Kind)
	kind := s.kinds.get(h.sum(), &ControllerKind{owner.APIVersion, owner.Kind}, sayAll[*ControllerKind])
	text, name := owner.Name+string(owner.UID), len(owner.Name)
	return &Controller{kind, text[:name], types.UID(text[name:])}
}

// LookBy is Look restricted to the labels with these keys: constraints that name no other keys do
// not distinguish between the pods of classes with equal digests. The keys are sorted, without
// duplicates.
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

// Target returns the name of the only eligible node, if the required node affinity consists only of
// this name, or "". For example, the DaemonSet controller sets this affinity:
//
//	nodeSelectorTerms:
//	- matchFields:
//	  - {key: metadata.name, operator: In, values: [node-17]}
func (c *PodClass) Target() string {
	if c.Spec.NodeAffinity == nil {
		return ""
	}
	required := c.Spec.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
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

// WithoutTarget returns a copy of the class without its target, or the class itself if it has none.
// The copy is in no table, and has the same digests as the class.
func (c *PodClass) WithoutTarget() *PodClass {
	if c.Target() == "" {
		return c
	}
	other, spec, node := *c, *c.Spec, *c.Spec.NodeAffinity
	node.RequiredDuringSchedulingIgnoredDuringExecution = nil
	spec.NodeAffinity, other.Spec = &node, &spec
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
	return !slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return volumeMatters(&v) })
}

// classTable holds the classes of the pods seen so far, by digest.
//
// Identical pods get the class in the table, so data cached for a class is valid for all of them. A
// class without placed pods is kept for a while, since such pods often recur. Classes are dropped
// in bulk: when the classes added since the last cleanup exceed an eighth of the classes it kept,
// when the added classes are too large in total, or when many classes have lost their last pod. A
// dropped class remains valid for its holders, and returns to the table if one of its pods is
// placed. In between, identical pods may have received a new class, which costs memory and work but
// changes no decision.
type classTable struct {
	byKey  Set[PodClass]
	next   int32 // the ID of the next class; IDs are never reused
	kept   int   // the number of classes after the last cleanup
	bulk   int   // total bulk of the classes added since the last cleanup
	left   int   // number of classes that have lost their last pod since the last cleanup
	shares shares
}

// classOf returns the class of a pod, and creates it if necessary. For a known class, it costs only
// a digest of the pod.
func (t *classTable) classOf(pod *v1.Pod) *PodClass {
	key, needs := classDigest(pod)
	if class := t.at(key); class != nil {
		return class
	}
	class := newPodClass(pod, key, needs, &t.shares)
	class.ID = t.next
	t.next++
	if t.byKey.Len() >= worthDropping(t.kept) || t.bulk >= MostBulk {
		t.dropUnused()
	}
	t.byKey.Add(ShortHash(key[0]), class)
	t.bulk += class.Bulk
	return class
}

// at returns the class with that key, or nil.
func (t *classTable) at(key digest) *PodClass {
	return t.byKey.Find(ShortHash(key[0]), func(class *PodClass) bool { return class.key == key })
}

// addPod counts a placed pod of the class.
func (t *classTable) addPod(class *PodClass) {
	if class.pods++; class.pods > 1 {
		return
	}
	if known := t.at(class.key); known != class { // the class was dropped
		if known != nil {
			t.byKey.Remove(ShortHash(class.key[0]), func(c *PodClass) bool { return c == known })
		}
		t.byKey.Add(ShortHash(class.key[0]), class)
	}
}

// removePod subtracts a pod from the count of its class. If many classes have lost their last pod,
// removePod drops them without waiting for new classes.
func (t *classTable) removePod(class *PodClass) {
	if class.pods--; class.pods > 0 {
		return
	}
	const few = 1 << 10 // classes without pods are often needed again
	if t.left++; t.left >= few+t.byKey.Len()/2 {
		t.dropUnused()
	}
}

// dropUnused drops the classes without pods.
func (t *classTable) dropUnused() {
	t.byKey.DeleteFunc(func(class *PodClass) bool { return class.pods == 0 })
	t.kept, t.bulk, t.left = t.byKey.Len(), 0, 0
}

// dropLarge drops the large classes without pods.
func (t *classTable) dropLarge() {
	t.byKey.DeleteFunc(func(class *PodClass) bool { return class.pods == 0 && class.Bulk > 0 })
	t.bulk = 0
}

// worthDropping returns the number of entries at which a search for unused entries pays off, given
// the number kept by the last search.
func worthDropping(kept int) int {
	const few = 32
	return kept + kept/8 + few
}
