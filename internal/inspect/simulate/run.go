package simulate

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/controller/nodehealth"
	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// Options say how to simulate. The zero value is the default profile and no time that passes.
type Options struct {
	// Profiles serve pods by their scheduler name; none: the default profile.
	Profiles []*plugins.Profile
	// Gates are feature gates by name; see [Gates] for those that are not named.
	Gates map[string]bool
	// Admission is what pods are given before they exist.
	Admission admission.Config
	// Seed breaks ties between nodes that are equally good.
	Seed uint64
	// Explain adds the word of every plugin on every node to every decision.
	Explain bool
	// For is how long time passes after all pods have been tried: evictions come due, their pods
	// are made again by their controllers, and what waits is tried again whenever something
	// changes. At 0 every pod is tried once.
	For time.Duration
	// Discard lets the set's pods go as they are taken in: half of the memory, but the set is of no
	// use afterwards.
	Discard bool
	// Now is when the world begins; by default the latest time in the manifests.
	Now time.Time
	// Scenario is what happens while time passes, beside what follows by itself; nil: nothing.
	Scenario *Scenario
	// Read reads the manifests that a scenario deploys.
	Read func(files []string) (*manifest.Set, error)
	// Health are the settings of node health; the zero value: kube-controller-manager's defaults.
	Health nodehealth.Options
	// Allowance bounds what the world may cost.
	Allowance Allowance
	// Progress, if set, is called now and then with how many pods have been decided and how many
	// there are.
	Progress func(decided, pods int)
}

// Run simulates the set. Workloads are expanded first, in the set itself. A pod that the API server
// would refuse is an error, as other faults of manifests are.
func Run(set *manifest.Set, o Options) (*Simulation, error) {
	var err error
	if _, set.JobGroups, err = Gates(o.Gates, set); err != nil {
		return nil, err
	}
	set.Expand(int64(o.Seed))
	w, err := open(set, o, o.For > 0)
	if err != nil {
		return nil, err
	}
	if o.Scenario != nil {
		if err := w.plan(o.Scenario); err != nil {
			return nil, err
		}
	}
	w.settle()
	if o.For > 0 {
		w.begin()
		w.Advance(o.For)
	}
	w.outlook()
	if err := w.Err(); err != nil {
		return nil, err
	}
	if len(w.said.Pods) == 0 {
		w.said.Bound = w.homed
	}
	if o.Scenario != nil {
		w.said.Timeline, w.said.Samples, w.said.For = w.timeline, w.samples, Seconds(o.For)
	}
	return w.said, w.failed
}

// Open makes a world of a set that lasts: operations can be done in it, and time can pass. Nothing
// has been scheduled yet.
func Open(set *manifest.Set, o Options) (*World, error) { return open(set, o, true) }

// Twin is the world as it was when it was opened: what is done in one leaves the other alone. What
// came by Apply before is not in it.
func (w *World) Twin() (*World, error) { return open(&w.origin, w.options, true) }

// Uneventful tells whether nothing comes of itself: no eviction is due, and nothing stands on the
// agenda.
func (w *World) Uneventful() bool {
	_, upcoming := w.upcoming()
	return !upcoming
}

// original is the set with lists of its own, which operations do not change. The objects in them
// are never changed in place.
func original(set *manifest.Set) manifest.Set {
	s := *set
	s.Deployments, s.ReplicaSets, s.StatefulSets = slices.Clone(s.Deployments), slices.Clone(s.ReplicaSets), slices.Clone(s.StatefulSets)
	s.DaemonSets, s.Jobs, s.Namespaces = slices.Clone(s.DaemonSets), slices.Clone(s.Jobs), slices.Clone(s.Namespaces)
	s.PriorityClasses, s.RuntimeClasses = slices.Clone(s.PriorityClasses), slices.Clone(s.RuntimeClasses)
	return s
}

func open(set *manifest.Set, o Options, lasting bool) (*World, error) {
	w, err := newWorld(set, o, lasting)
	if err != nil {
		return nil, err
	}
	if lasting {
		w.origin = original(set)
	}
	if err := w.admit(set); err != nil {
		return nil, err
	}
	w.allowed.count(len(w.pods), len(w.machines))
	w.countBudgets()
	w.introduce()
	return w, nil
}

func newWorld(set *manifest.Set, o Options, lasting bool) (*World, error) {
	if o.Profiles == nil {
		o.Profiles = []*plugins.Profile{plugins.Default()}
	}
	clocks := clocksOf(set)
	w := &World{
		options: o, set: set, bounds: newBounds(set.ResourceQuotas, set.LimitRanges), start: clocks.begins(set),
		catalog: admission.NewCatalog(set.Namespaces, set.PriorityClasses, set.RuntimeClasses), machines: map[string]*machine{},
		held: map[string][]eviction.Held{}, placed: map[types.UID]*pod{}, unready: map[*cluster.PodClass]int{},
		templates: map[Name]*resourcev1.ResourceClaimTemplate{}, wants: map[types.UID]int32{}, pods: map[Name]*pod{},
		said:    &Simulation{APIVersion: APIVersion, Kind: Kind, Pods: []Pod{}, Evictions: []Eviction{}},
		lasting: lasting, evictedAt: -1, allowed: allowed{Allowance: o.Allowance},
	}
	if !o.Now.IsZero() {
		w.start = o.Now
	}
	var err error
	if w.gates, w.gangs, err = Gates(o.Gates, set); err != nil {
		return nil, err
	}
	if err := w.newScheduling(o.Profiles); err != nil {
		return nil, err
	}
	w.load(set)
	w.identifyClaims()
	for _, t := range set.ResourceClaimTemplates {
		w.templates[Name{t.Namespace, t.Name}] = t
	}
	for _, n := range set.Nodes {
		w.addMachine(n)
	}
	w.findDead(set.Leases, clocks)
	return w, nil
}

// admit takes the pods in as an API server would let them in, or has. That is the same for each pod
// whatever the others are, so it is done for many at a time.
func (w *World) admit(set *manifest.Set) error {
	catalog := w.catalog
	admitted, errs := make([]*v1.Pod, admittedAtATime), make([]error, admittedAtATime)
	for first := 0; first < len(set.Pods); first += admittedAtATime {
		if w.halted() {
			return w.Err()
		}
		pods := set.Pods[first:min(first+admittedAtATime, len(set.Pods))]
		var workers sync.WaitGroup
		n := runtime.GOMAXPROCS(0)
		for worker := range n {
			workers.Go(func() {
				for i := worker; i < len(pods); i += n {
					admitted[i], errs[i] = w.admitOne(catalog, pods[i])
				}
			})
		}
		workers.Wait()
		for i := range pods {
			if errs[i] != nil {
				return refusal(set, first+i, errs[i])
			}
			waits := admitted[i].Spec.NodeName == ""
			isNew := waits && !admission.Stored(pods[i])
			if isNew {
				w.claims(admitted[i])
			}
			w.enter(admitted[i], w.bounds.charge(admitted[i], isNew))
			if w.options.Discard {
				pods[i] = nil
			}
		}
	}
	return nil
}

// refusal says where the pod stands that is not let in, and why.
func refusal(set *manifest.Set, i int, err error) error {
	file, line := set.PodAt(i)
	e := &manifest.Error{File: file, Line: line, Text: fmt.Sprintf("pod %s/%s: %v", set.Pods[i].Namespace, set.Pods[i].Name, err)}
	var refused *admission.Refusal
	if errors.As(err, &refused) {
		e.Field = refused.Field
	}
	return e
}

// admittedAtATime bounds how many pods are there twice: as they were given and as they were
// admitted.
const admittedAtATime = 4096

// readmit takes in a pod that an API server has had. Admission changes nothing of one that it saw;
// a manifest that names a UID and yet lacks what admission writes still gets it. A refusal does not
// count: it would be one by rules of another day.
func (w *World) readmit(catalog *admission.Catalog, p *v1.Pod) *v1.Pod {
	if p.Spec.NodeName == "" {
		if again, err := admission.Create(w.options.Admission, catalog, p); err == nil {
			return again
		}
	}
	p = p.DeepCopy()
	admission.Default(p)
	return p
}

func (w *World) admitOne(catalog *admission.Catalog, p *v1.Pod) (*v1.Pod, error) {
	if admission.Stored(p) {
		p = w.readmit(catalog, p)
	} else {
		if len(w.bounds.ranges[p.Namespace]) > 0 {
			p = p.DeepCopy()
			w.bounds.fill(p)
		}
		var err error
		if p, err = admission.Create(w.options.Admission, catalog, p); err != nil {
			return nil, err
		}
	}
	identify(p, w.start)
	return p, nil
}
