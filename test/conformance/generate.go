package conformance

import (
	"fmt"
	"math/rand/v2"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// generator draws a world. Names, labels and amounts come from short lists, so that what is drawn
// independently often meets: that is where plugins have something to decide.
type generator struct {
	*rand.Rand
	w *World
	// apps are labels, namespace and owner that several pods of this world share.
	apps []app
	// leaning makes worlds differ: a feature is likely in some worlds and rare in the others.
	leaning map[string]float64
	claims  map[string][]string // names of volume claims by namespace
	taken   map[string]bool     // ports of nodes that placed pods have, and claims that they use
	single  map[string]bool     // claims that one pod only may use
	// free are the devices that nobody has, and deviceClaims the names of claims for devices by
	// namespace.
	free         []deviceID
	deviceClaims map[string][]string
	// counted is the extended resource that devices stand for.
	counted v1.ResourceName
	serial  int
}

type app struct {
	name      string
	namespace string
	labels    map[string]string
	owner     *metav1.OwnerReference
}

// epoch is when the first thing in a world can have happened; the last is three years later.
var epoch = time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)

// Generate makes the world of a seed, always the same.
func Generate(seed uint64) *World {
	g := &generator{
		Rand: rand.New(rand.NewPCG(seed, 0x6265727468)), w: &World{Seed: seed, Args: map[string]runtime.Object{}},
		claims: map[string][]string{}, taken: map[string]bool{}, single: map[string]bool{}, deviceClaims: map[string][]string{},
	}
	g.setLeanings("node affinity", "pod affinity", "spread", "taints", "ports", "volumes", "devices", "sizes", "images", "odd", "nominated",
		"features", "pod level", "resized", "full", "packed", "unique", "keys", "huge")
	g.addNamespaces()
	g.addNodes()
	g.makeApps()
	g.addStorage()
	g.addDevices()
	if g.hasLeaning("packed") {
		g.packNodes()
	} else {
		g.addPlaced()
	}
	g.addBudgets()
	g.addNominated()
	g.addPending()
	g.drawArguments()
	g.taintRules() // last: what was drawn before for stored seeds stays
	return g.w
}

func (g *generator) setLeanings(features ...string) {
	g.leaning = map[string]float64{}
	for _, f := range features {
		g.leaning[f] = pickOne(g, 0.0, 0.02, 0.1, 0.25, 0.6)
	}
}

// hasLeaning draws whether a thing has the feature, as likely as this world leans to it.
func (g *generator) hasLeaning(feature string) bool {
	p, ok := g.leaning[feature]
	if !ok {
		panic("no such leaning: " + feature)
	}
	return g.withChance(p)
}

func (g *generator) withChance(p float64) bool { return g.Float64() < p }

// drawBetween draws from lo to hi, both included.
func (g *generator) drawBetween(lo, hi int) int { return lo + g.IntN(hi-lo+1) }

// drawFew draws a count up to most, small ones far more often.
func (g *generator) drawFew(most int) int {
	f := g.Float64()
	return int(f * f * f * float64(most+1))
}

func (g *generator) nextName(prefix string) string {
	g.serial++
	return fmt.Sprintf("%s-%d", prefix, g.serial)
}

func (g *generator) addObject(o runtime.Object) { g.w.Others = append(g.w.Others, o) }

func pickOne[T any](g *generator, list ...T) T { return list[g.IntN(len(list))] }

// drawSome draws each member with probability p, in their order.
func drawSome[T any](g *generator, p float64, list ...T) (drawn []T) {
	for _, item := range list {
		if g.withChance(p) {
			drawn = append(drawn, item)
		}
	}
	return drawn
}

// putAmount sets a resource to one of the amounts; an empty one leaves it out.
func (g *generator) putAmount(list v1.ResourceList, name v1.ResourceName, amounts ...string) {
	if amount := pickOne(g, amounts...); amount != "" {
		list[name] = resource.MustParse(amount)
	}
}

func (g *generator) nextTime() metav1.Time {
	g.serial++ // no two alike: preemption goes by age, and a tie would be broken by chance
	return metav1.NewTime(epoch.Add(time.Duration(g.IntN(20000)*5000+g.serial%5000) * time.Second))
}

var namespaceNames = []string{"default", "team-a", "team-b", "empty"}

func (g *generator) addNamespaces() {
	for _, name := range namespaceNames {
		labels := map[string]string{"kubernetes.io/metadata.name": name}
		if g.withChance(0.5) {
			labels["team"] = pickOne(g, "a", "b", "")
		}
		if g.withChance(0.9) { // a lister that lags may not know a namespace yet
			g.addObject(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
		}
	}
}
