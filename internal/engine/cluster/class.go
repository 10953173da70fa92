package cluster

import (
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// PodClass is what pods that differ only in name, node and times have in common. No plugin can tell
// pods of one class apart; classDigest defines which fields that takes. A class never changes: a
// pod that is updated moves to another class. With ten thousand replicas, what the scheduler
// computes about one of them holds for all, and is stored once.
type PodClass struct {
	// ID is unique and never reused.
	ID int32

	Namespace string
	Labels    labels.Set
	Priority  int32
	// Spec is shared by classes for which it is the same.
	Spec *Spec
	// Controller is the owner that made the pods, or nil.
	Controller *metav1.OwnerReference

	// Requests is what one pod requests, overhead included.
	Requests Resources
	// NonZeroCPU (in thousandths) and NonZeroMemory are the requested CPU and memory, with defaults
	// for containers that request nothing.
	NonZeroCPU, NonZeroMemory int64

	Ports *Ports

	RequiredAffinity, RequiredAntiAffinity   []Term
	PreferredAffinity, PreferredAntiAffinity []WeightedTerm
	// SelectsNamespaces: one of the terms above selects namespaces by their labels.
	SelectsNamespaces bool
	// TermError is why the terms above could not be parsed. InterPodAffinity rejects such a pod.
	TermError error

	// Affinities is a digest of the four lists above: classes with equal digests treat other pods
	// alike.
	Affinities [2]uint64
	// Look is a digest of namespace, labels and Affinities: to the constraints of other pods, pods
	// of classes with equal digests are the same.
	Look [2]uint64

	// Needs is a digest of what the pods need from a node, except for labels, volumes and device
	// claims.
	Needs [2]uint64

	// Static is a digest of what the pods need from single nodes, apart from room, ports, volumes,
	// devices and Target.
	Static [2]uint64
	// Target is the name of the only node that the pods can go to, if their required node affinity
	// says that and nothing else. The DaemonSet controller creates such pods.
	Target string
	// Simple: of what placements change on a node, the pods need only CPU, memory and a pod slot,
	// as their containers request them.
	Simple bool

	// SpreadSelectors are the selectors of the spec's topologySpreadConstraints, nil for one that
	// cannot be parsed.
	SpreadSelectors []*rules.Selector

	// Bulk is how far labels and spec exceed the usual size, in bytes as the API encodes them. What
	// is kept of classes that may be gone is bounded by it.
	Bulk int

	// Status is kept only where decisions depend on it: for pods with device claims, each of which
	// is a class of its own.
	Status *v1.PodStatus

	key  digest
	pods int // placed pods of the class; at 0 the cluster may forget it
}

// MostBulk bounds the bulk of the classes that something keeps although their pods may be gone.
// Classes of usual size have none.
const MostBulk = 8 << 20

// Term is one parsed term of pod affinity or anti-affinity. It is about pods in Namespaces and in
// those that NamespaceSelector matches.
type Term struct {
	Namespaces        []string // sorted
	NamespaceSelector *rules.Selector
	Selector          *rules.Selector
	TopologyKey       string
}

// WeightedTerm is a preferred term.
type WeightedTerm struct {
	Term
	Weight int32
}

// Matches reports whether the term selects pods of the class, whose namespace has these labels.
func (t *Term) Matches(class *PodClass, namespace labels.Set) bool {
	if _, named := slices.BinarySearch(t.Namespaces, class.Namespace); !named && !t.NamespaceSelector.Matches(namespace) {
		return false
	}
	return t.Selector.Matches(class.Labels)
}

// HasAffinity reports whether the pods have pod affinity or anti-affinity of any kind, even an
// empty one.
func (c *PodClass) HasAffinity() bool {
	a := c.Spec.Affinity
	return a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil)
}

// newPodClass makes the class of a pod with that key. It keeps parts of the pod object, which must
// not be changed afterwards. shared lets it use what other classes have already.
func newPodClass(pod *v1.Pod, key, needs digest, shared *shares) *PodClass {
	bulk := bulkOf(pod)
	if bulk > 0 {
		// A pod of unusual size would push out what others share, and hashing it costs more than it
		// saves.
		shared = &shares{alone: true}
	}
	spec := shared.specOf(pod, needs)
	c := &PodClass{
		Namespace: shared.shareText(pod.Namespace), Labels: pod.Labels, Spec: spec,
		Controller: metav1.GetControllerOf(pod), Bulk: bulk, Needs: needs, key: key,
	}
	if pod.Spec.Priority != nil {
		c.Priority = *pod.Spec.Priority
	}
	c.Requests, c.NonZeroCPU, c.NonZeroMemory = placedRequests(pod)
	c.Ports = portsOf(pod)
	c.Target = targetOf(spec)
	c.Static, c.Simple = staticDigest(pod, c.Target != ""), isSimple(pod, &c.Requests, c.Ports)
	read := readSelectors{}
	if list := spec.TopologySpreadConstraints; len(list) > 0 {
		c.SpreadSelectors = make([]*rules.Selector, len(list))
		for i := range list {
			c.SpreadSelectors[i], _ = read.readOne(list[i].LabelSelector)
		}
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		status := pod.Status // a pointer into the pod would keep all of it
		c.Status = &status
	}
	if a := spec.Affinity; a != nil {
		c.readTerms(a, read)
		if a.PodAffinity != nil || a.PodAntiAffinity != nil {
			h := hasher{}
			h.addString(pod.Namespace) // terms without namespaces select in this one
			h.addAffinity(&v1.Affinity{PodAffinity: a.PodAffinity, PodAntiAffinity: a.PodAntiAffinity})
			c.Affinities = h.sum()
		}
	}
	c.Look = lookOf(c)
	return c
}

// lookOf computes PodClass.Look.
func lookOf(c *PodClass) [2]uint64 {
	h := hasher{}
	h.addString(c.Namespace)
	h.stringMap(c.Labels)
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
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil {
		return ""
	}
	required := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
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
	other, spec, affinity, node := *c, *c.Spec, *c.Spec.Affinity, *c.Spec.Affinity.NodeAffinity
	node.RequiredDuringSchedulingIgnoredDuringExecution = nil
	affinity.NodeAffinity, spec.Affinity, other.Spec, other.Target = &node, &affinity, &spec, ""
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

// readTerms parses the pod's affinity and anti-affinity. The first error is kept in TermError.
func (c *PodClass) readTerms(a *v1.Affinity, read readSelectors) {
	if p := a.PodAffinity; p != nil {
		c.RequiredAffinity = c.readTermList(p.RequiredDuringSchedulingIgnoredDuringExecution, read)
		c.PreferredAffinity = c.weightedTerms(p.PreferredDuringSchedulingIgnoredDuringExecution, read)
	}
	if p := a.PodAntiAffinity; p != nil {
		c.RequiredAntiAffinity = c.readTermList(p.RequiredDuringSchedulingIgnoredDuringExecution, read)
		c.PreferredAntiAffinity = c.weightedTerms(p.PreferredDuringSchedulingIgnoredDuringExecution, read)
	}
}

// readTermList parses a list of terms. As upstream, it returns none of them if one cannot be
// parsed.
func (c *PodClass) readTermList(list []v1.PodAffinityTerm, read readSelectors) []Term {
	terms := make([]Term, 0, len(list))
	for i := range list {
		t, err := c.readTerm(&list[i], read)
		if err != nil {
			c.TermError = err
			return nil
		}
		terms = append(terms, t)
	}
	return terms
}

// weightedTerms is readTermList for preferred terms.
func (c *PodClass) weightedTerms(list []v1.WeightedPodAffinityTerm, read readSelectors) []WeightedTerm {
	terms := make([]WeightedTerm, 0, len(list))
	for i := range list {
		t, err := c.readTerm(&list[i].PodAffinityTerm, read)
		if err != nil {
			c.TermError = err
			return nil
		}
		terms = append(terms, WeightedTerm{t, list[i].Weight})
	}
	return terms
}

// readTerm parses one term. As in the API, a term without namespaces and without a namespace
// selector is about the pod's own namespace.
func (c *PodClass) readTerm(t *v1.PodAffinityTerm, read readSelectors) (Term, error) {
	selector, err := read.readOne(t.LabelSelector)
	if err != nil {
		return Term{}, err
	}
	namespaceSelector, err := read.readOne(t.NamespaceSelector)
	if err != nil {
		return Term{}, err
	}
	namespaces := slices.Compact(slices.Sorted(slices.Values(t.Namespaces)))
	if len(t.Namespaces) == 0 && t.NamespaceSelector == nil {
		namespaces = []string{c.Namespace}
	}
	if by, _ := namespaceSelector.Requirements(); len(by) > 0 {
		c.SelectsNamespaces = true
	}
	return Term{namespaces, namespaceSelector, selector, t.TopologyKey}, nil
}
