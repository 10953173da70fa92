package provision

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/decide"
)

// takers returns the function that says into which kinds of nodes a pod can go, by the engine: the
// plugins are asked about an empty node of each kind that is in the cluster for that. Pods of a
// class have the same answer, and so have those that differ in size alone, but for room.
//
// Classes with the same answer share one question: what a pod needs besides room is asked once,
// with a pod that requests nothing, and room is a matter of numbers. If no kind has room, or if a
// class is not simple, the engine is asked about the very pod, whose words say why.
func (d *demand) takers() func(p *cluster.Pod) (kinds []int, why string) {
	// It is either kinds or why.
	type answer struct {
		kinds []int
		why   string
	}
	byClass, byNeeds := map[*cluster.PodClass]*answer{}, map[string]*answer{}
	return func(p *cluster.Pod) ([]int, string) {
		if a := byClass[p.Class]; a != nil {
			return a.kinds, a.why
		}
		if c := p.Class; c.Simple {
			counted := d.spreads.knows(c)
			needs := fmt.Sprint(c.Spec.SchedulerName, c.Static, c.Look)
			// The counts do not say all of its constraints, so they have to be the same for the
			// answer to be.
			if !counted {
				needs += fmt.Sprint(c.Spec.TopologySpreadConstraints)
			}
			if byNeeds[needs] == nil {
				asked := &answer{}
				asked.kinds, asked.why = d.ask(d.small(p, counted))
				byNeeds[needs] = asked
			}

			// What a small pod may use is narrowed to what has room for this one.
			fit := d.fitting(p, byNeeds[needs].kinds)
			if counted {
				fit = d.allowed(c, fit)
			}
			if len(fit) > 0 {
				byClass[c] = &answer{kinds: fit}
				return fit, ""
			}
		}

		a := &answer{}
		a.kinds, a.why = d.ask(p)
		byClass[p.Class] = a
		return a.kinds, a.why
	}
}

// allowed are those of the kinds of which a new node can have a pod of the class, by the counts of
// its spread constraints. A zone that no node is in yet counts as a domain: nodes can be bought
// there.
func (d *demand) allowed(class *cluster.PodClass, kinds []int) []int {
	own := d.spreads.of(class).own
	if len(own) == 0 {
		return kinds
	}

	for _, k := range kinds {
		for _, s := range own {
			if domain, has := d.kinds[k].labels[s.key]; has {
				s.add(domain)
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(kinds), func(k int) bool {
		return slices.ContainsFunc(own, func(s ownSpread) bool {
			domain, has := d.kinds[k].labels[s.key]
			return s.key != v1.LabelHostname && (!has || !s.allows(domain)) // a new host has no pod yet
		})
	})
}

// small returns the pod as it would be if it requested nothing, which is all the same to it but for
// room. Softened, its hard spread constraints are soft ones: none at all would give it the defaults
// of the profile. The copy is in no queue and on no node.
func (d *demand) small(p *cluster.Pod, softened bool) *cluster.Pod {
	// A pod that the world no longer has is asked about as it is.
	f, ok := d.world.Find(p.Namespace(), p.Name)
	if !ok {
		return p
	}
	object := f.Object.DeepCopy()
	for _, list := range [][]v1.Container{object.Spec.InitContainers, object.Spec.Containers} {
		for i := range list {
			list[i].Resources = v1.ResourceRequirements{}
		}
	}
	object.Spec.Overhead, object.Spec.Resources = nil, nil
	if softened {
		for i := range object.Spec.TopologySpreadConstraints {
			object.Spec.TopologySpreadConstraints[i].WhenUnsatisfiable = v1.ScheduleAnyway
		}
	}
	return d.world.Cluster().Pending(object)
}

// fitting are those of the kinds of which a node has room for the pod. The largest offer of the
// kind decides: whether others hold the pod is the packing's to see.
func (d *demand) fitting(p *cluster.Pod, kinds []int) (list []int) {
	size := d.sizeOf(p)
	for _, k := range kinds {
		room := d.rooms[d.kinds[k].largest]
		if holds(room, size) {
			list = append(list, k)
		}
	}
	return list
}

// holds reports whether a size is within a room in each resource.
func holds(room, size []int64) bool {
	for r := range size {
		if size[r] > room[r] {
			return false
		}
	}
	return true
}

// trialNode begins the names of the nodes that are in the cluster while plugins are asked. They
// never get a pod.
const trialNode = "berth-offer-"

// isTrial reports whether a node is there for a trial alone.
func isTrial(node string) bool { return strings.HasPrefix(node, trialNode) }

// ask asks the plugins of the pod's profile about the nodes of the kinds. The reasons are those of
// the plugins, the most frequent first; they stand for all nodes of the catalog.
func (d *demand) ask(p *cluster.Pod) (kinds []int, why string) {
	// Pods of other schedulers are not Berth's to place, whatever is bought.
	profile := d.world.Profile(p.Class.Spec.SchedulerName)
	if profile == nil {
		return nil, fmt.Sprintf("no profile serves the scheduler name %q", p.Class.Spec.SchedulerName)
	}

	reasons := map[string]int{}
	for k, rejection := range decide.NewPlain(d.world.Cluster(), profile).Rejections(p, d.trials) {
		if rejection == "" {
			kinds = append(kinds, k)
		} else {
			reasons[rejection]++
		}
	}

	if len(kinds) > 0 {
		return kinds, ""
	}
	list := slices.SortedFunc(maps.Keys(reasons),
		func(a, b string) int { return cmp.Or(cmp.Compare(reasons[b], reasons[a]), cmp.Compare(a, b)) })
	return nil, "no node of the catalog takes it: " + strings.Join(list, "; ")
}

// suppose puts an empty node of each kind into the cluster, and returns what removes them. They
// must be removed before anything else happens in the world: a pending pod could be placed there.
func (d *demand) suppose() (over func()) {
	trial := d.world.Trial()
	mark := trial.Mark()
	for k, of := range d.kinds {
		node := d.offers[of.largest].Node.DeepCopy()
		node.Name = fmt.Sprint(trialNode, k)
		node.Labels = maps.Clone(node.Labels)
		metav1.SetMetaDataLabel(&node.ObjectMeta, v1.LabelHostname, node.Name)
		trial.Put(node)
		d.trials = append(d.trials, d.world.Cluster().Node(node.Name))
	}
	return func() { trial.Undo(mark) }
}

// apartOf are the groups of which a node holds a pod, and the class is in: those of its host ports,
// and of required anti-affinity by node that its own pods meet. Anti-affinity to others than its
// own pods is left to the engine.
func apartOf(class *cluster.PodClass) (keys []string) {
	for _, term := range class.RequiredAntiAffinity {
		if term.TopologyKey == v1.LabelHostname && term.Matches(class, nil) {
			keys = append(keys, fmt.Sprint(term.Namespaces, term.Selector.String()))
		}
	}
	if class.Ports != nil {
		for _, port := range class.Ports.List {
			keys = append(keys, fmt.Sprint(port))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
