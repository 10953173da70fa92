package cluster

import (
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Spec is what the specs of the pods of a class have in common: the fields that decisions may
// depend on, and the names of containers. Everything else, such as environments and mounts, is the
// pods' own. It is much smaller than a v1.PodSpec, since there may be as many classes as pods.
type Spec struct {
	SchedulerName             string
	Priority                  *int32
	PreemptionPolicy          *v1.PreemptionPolicy // nil, or PreemptNever
	NodeSelector              map[string]string
	Tolerations               []v1.Toleration
	Affinity                  *v1.Affinity
	TopologySpreadConstraints []v1.TopologySpreadConstraint
	InitContainers            []Container
	Containers                []Container
	Overhead                  v1.ResourceList
	Resources                 *v1.ResourceRequirements
	Volumes                   []v1.Volume // those that not every node can provide
	ResourceClaims            []v1.PodResourceClaim
	SchedulingGates           []v1.PodSchedulingGate
	SchedulingGroup           *v1.PodSchedulingGroup
	HostNetwork               bool
	HostUsers                 *bool
	RuntimeClassName          *string
}

// Container is the same of a container. Limits, probes, commands and mounts are left out.
type Container struct {
	Name, Image        string
	Requests           v1.ResourceList
	Ports              []v1.ContainerPort // host ports only
	RestartPolicy      *v1.ContainerRestartPolicy
	RestartPolicyRules []v1.ContainerRestartRule
}

// Object returns the spec as that of an API object, for libraries that expect one. It shares its
// contents: do not change them. Containers are allocated anew with each call; callers that need it
// often keep it.
func (s *Spec) Object() v1.PodSpec {
	return v1.PodSpec{
		SchedulerName: s.SchedulerName, Priority: s.Priority, PreemptionPolicy: s.PreemptionPolicy, NodeSelector: s.NodeSelector,
		Tolerations: s.Tolerations, Affinity: s.Affinity, TopologySpreadConstraints: s.TopologySpreadConstraints,
		InitContainers: containerObjects(s.InitContainers), Containers: containerObjects(s.Containers),
		Overhead: s.Overhead, Resources: s.Resources,
		Volumes: s.Volumes, ResourceClaims: s.ResourceClaims, SchedulingGates: s.SchedulingGates, SchedulingGroup: s.SchedulingGroup,
		HostNetwork: s.HostNetwork, HostUsers: s.HostUsers, RuntimeClassName: s.RuntimeClassName,
	}
}

// containerObjects returns containers as those of an API object.
func containerObjects(list []Container) []v1.Container {
	if len(list) == 0 {
		return nil
	}
	objects := make([]v1.Container, len(list))
	for i := range list {
		c := &list[i]
		objects[i] = v1.Container{
			Name: c.Name, Image: c.Image, Ports: c.Ports, RestartPolicy: c.RestartPolicy, RestartPolicyRules: c.RestartPolicyRules,
			Resources: v1.ResourceRequirements{Requests: c.Requests},
		}
	}
	return objects
}

// shares lets the specs of classes have in common what is equal: texts such as topology keys, the
// amounts that containers request, lists of containers, and whole specs, such as those of jobs that
// differ in their labels alone. It remembers what was used lately and nothing else, so that it
// keeps little of what is gone: classes of unusual size take no part. What is shared is never
// changed.
type shares struct {
	alone       bool // they are of one class of unusual size: its containers are hashed in vain
	texts       [512]string
	amounts     slots[v1.ResourceList]
	containers  slots[[]Container]
	tolerations slots[[]v1.Toleration]
	selectors   slots[map[string]string] // of nodes
	specs       slots[*Spec]
}

// slots has one place for all keys that are equal modulo their number; the latest value has it.
type slots[T any] [128]struct {
	key   digest
	value T
}

// get returns the value of the key that is known, if it is the same as the given one, and else
// remembers that one.
func (s *slots[T]) get(key digest, value T, same func(a, b T) bool) T {
	at := &s[key[0]%uint64(len(s))]
	if at.key != key || !same(at.value, value) {
		at.key, at.value = key, value
	}
	return at.value
}

// shareText returns an equal text that was seen before, if it is still remembered: of texts with
// the same hash the last one is.
func (s *shares) shareText(t string) string {
	if t == "" {
		return ""
	}
	var h hasher
	h.addString(t)
	at := &s.texts[h.a%uint64(len(s.texts))]
	if *at != t {
		*at = t
	}
	return *at
}

// specOf reads the Spec of a pod that needs what the digest stands for.
func (s *shares) specOf(pod *v1.Pod, needs digest) *Spec {
	from := &pod.Spec
	spec := &Spec{
		SchedulerName: s.shareText(from.SchedulerName), Priority: from.Priority, HostNetwork: from.HostNetwork, HostUsers: from.HostUsers,
		RuntimeClassName: from.RuntimeClassName,
		NodeSelector:     s.nodeSelectorOf(from.NodeSelector), Tolerations: s.tolerationsOf(from.Tolerations),
		Overhead: from.Overhead, Resources: from.Resources, SchedulingGates: from.SchedulingGates, SchedulingGroup: from.SchedulingGroup,
		ResourceClaims: from.ResourceClaims, Volumes: thatMatter(from.Volumes),
		InitContainers: s.containersOf(from.InitContainers), Containers: s.containersOf(from.Containers),
	}
	if policy := from.PreemptionPolicy; policy != nil && *policy == v1.PreemptNever {
		spec.PreemptionPolicy = policy // all else is the default
	}
	selectors := selectorSet{own: pod.Labels}
	// A copy, since texts and selectors in it are replaced.
	spec.TopologySpreadConstraints = slices.Clone(from.TopologySpreadConstraints)
	for i := range spec.TopologySpreadConstraints {
		c := &spec.TopologySpreadConstraints[i]
		c.TopologyKey, c.WhenUnsatisfiable = s.shareText(c.TopologyKey),
			v1.UnsatisfiableConstraintAction(s.shareText(string(c.WhenUnsatisfiable)))
		c.LabelSelector = selectors.shareSelector(c.LabelSelector)
	}
	spec.Affinity = s.affinityOf(from.Affinity, &selectors)
	if len(spec.Volumes)+len(spec.ResourceClaims)+len(spec.Overhead) > 0 || spec.Resources != nil {
		return spec // few have the same
	}
	h := hasher{needs[0], needs[1]}
	h.addNames(spec.InitContainers)
	h.addNames(spec.Containers)
	h.addGroup(spec.SchedulingGroup)
	return s.specs.get(h.sum(), spec, sayAll[*Spec])
}

// addNames hashes the names of containers, which do not always set classes apart.
func (h *hasher) addNames(list []Container) {
	h.addWord(uint64(len(list)))
	for i := range list {
		h.addString(list[i].Name)
	}
}

// thatMatter returns the volumes that can matter to placement.
func thatMatter(volumes []v1.Volume) (kept []v1.Volume) {
	for i := range volumes {
		if volumeMatters(&volumes[i]) {
			kept = append(kept, volumes[i])
		}
	}
	return slices.Clip(kept)
}

// containersOf keeps of containers what decisions depend on. Equal lists are shared.
func (s *shares) containersOf(list []v1.Container) []Container {
	if len(list) == 0 {
		return nil
	}
	var h hasher
	if !s.alone {
		h.addContainers(list)
	}
	kept := make([]Container, len(list))
	for i := range list {
		from := &list[i]
		h.addString(from.Name)
		kept[i] = Container{
			Name: s.shareText(from.Name), Image: s.shareText(from.Image), Requests: s.amountsOf(from.Resources.Requests),
			Ports:         hostPorts(from.Ports),
			RestartPolicy: from.RestartPolicy, RestartPolicyRules: from.RestartPolicyRules,
		}
	}
	if s.alone {
		return kept
	}
	return s.containers.get(h.sum(), kept, sayAll[[]Container])
}

// hostPorts keeps of a container's ports what decisions depend on: those of the host.
func hostPorts(list []v1.ContainerPort) (kept []v1.ContainerPort) {
	for i := range list {
		if p := &list[i]; p.HostPort > 0 {
			kept = append(kept, v1.ContainerPort{HostIP: p.HostIP, Protocol: p.Protocol, HostPort: p.HostPort})
		}
	}
	return slices.Clip(kept)
}

// amountsOf returns the amounts, shared where equal ones are remembered.
func (s *shares) amountsOf(list v1.ResourceList) v1.ResourceList {
	if len(list) == 0 || s.alone {
		return list
	}
	var h hasher
	h.addResources(list)
	return s.amounts.get(h.sum(), list, sayAll[v1.ResourceList])
}

// tolerationsOf returns the tolerations, shared where equal ones are remembered.
func (s *shares) tolerationsOf(list []v1.Toleration) []v1.Toleration {
	if len(list) == 0 {
		return list
	}
	var h hasher
	h.addTolerations(list)
	return s.tolerations.get(h.sum(), list, func(a, b []v1.Toleration) bool { return slices.EqualFunc(a, b, sameSeconds) })
}

// sameSeconds compares what the digest of tolerations leaves out. No decision depends on
// tolerationSeconds, but specs must not get each other's.
func sameSeconds(a, b v1.Toleration) bool {
	if a.TolerationSeconds == nil || b.TolerationSeconds == nil {
		return a.TolerationSeconds == b.TolerationSeconds
	}
	return *a.TolerationSeconds == *b.TolerationSeconds
}

// nodeSelectorOf returns the node selector, shared where an equal one is remembered.
func (s *shares) nodeSelectorOf(selector map[string]string) map[string]string {
	if len(selector) == 0 {
		return selector
	}
	var h hasher
	h.stringMap(selector)
	return s.selectors.get(h.sum(), selector, sayAll[map[string]string])
}

// sayAll is for values whose digests say all there is to compare.
func sayAll[T any](_, _ T) bool { return true }

// affinityOf returns the affinity with shared texts and selectors. Without terms about pods there
// is nothing to share, and it is returned as it is; else it is a copy: the pod object is not
// changed.
func (s *shares) affinityOf(from *v1.Affinity, selectors *selectorSet) *v1.Affinity {
	if from == nil || from.PodAffinity == nil && from.PodAntiAffinity == nil {
		return from
	}
	affinity := *from
	if from := from.PodAffinity; from != nil {
		affinity.PodAffinity = &v1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  s.termsOf(from.RequiredDuringSchedulingIgnoredDuringExecution, selectors),
			PreferredDuringSchedulingIgnoredDuringExecution: s.weightedOf(from.PreferredDuringSchedulingIgnoredDuringExecution, selectors),
		}
	}

	if from := from.PodAntiAffinity; from != nil {
		affinity.PodAntiAffinity = &v1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution:  s.termsOf(from.RequiredDuringSchedulingIgnoredDuringExecution, selectors),
			PreferredDuringSchedulingIgnoredDuringExecution: s.weightedOf(from.PreferredDuringSchedulingIgnoredDuringExecution, selectors),
		}
	}
	return &affinity
}

// termsOf returns a copy of the terms with shared texts and selectors.
func (s *shares) termsOf(list []v1.PodAffinityTerm, selectors *selectorSet) []v1.PodAffinityTerm {
	list = slices.Clone(list)
	for i := range list {
		s.shareTerm(&list[i], selectors)
	}
	return list
}

// weightedOf is termsOf for preferred terms.
func (s *shares) weightedOf(list []v1.WeightedPodAffinityTerm, selectors *selectorSet) []v1.WeightedPodAffinityTerm {
	list = slices.Clone(list)
	for i := range list {
		s.shareTerm(&list[i].PodAffinityTerm, selectors)
	}
	return list
}

// shareTerm replaces texts and selectors of a term by equal ones that are remembered.
func (s *shares) shareTerm(t *v1.PodAffinityTerm, selectors *selectorSet) {
	t.TopologyKey, t.LabelSelector, t.NamespaceSelector = s.shareText(t.TopologyKey), selectors.shareSelector(t.LabelSelector),
		selectors.shareSelector(t.NamespaceSelector)
}

// selectorSet has equal selectors of one class be one, with its labels where it selects by all of
// them.
type selectorSet struct {
	own  labels.Set
	seen []*metav1.LabelSelector
}

// fewSelectors is how many selectors of a class are compared with each other. Each is compared with
// all before it, and a class may have thousands of terms.
const fewSelectors = 8

// shareSelector returns an equal selector that the class has already, or the one that it is given.
// A selector with expressions is returned as it is.
func (s *selectorSet) shareSelector(selector *metav1.LabelSelector) *metav1.LabelSelector {
	if selector == nil || len(selector.MatchExpressions) > 0 || len(selector.MatchLabels) == 0 {
		return selector
	}
	for _, other := range s.seen {
		if maps.Equal(other.MatchLabels, selector.MatchLabels) {
			return other
		}
	}
	if len(s.seen) == fewSelectors {
		return selector
	}
	if maps.Equal(s.own, selector.MatchLabels) {
		selector = &metav1.LabelSelector{MatchLabels: s.own}
	}
	s.seen = append(s.seen, selector)
	return selector
}
