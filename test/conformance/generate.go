// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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

// generator draws a world. Names, labels and amounts are from short lists, so that independent
// draws often coincide. Otherwise selectors would rarely match and plugins would have nothing to
// decide.
//
// Each kind of object has a separate generator, which owns its objects and the references to them.
// An arrow points to the generator that is used:
//
//	generator ──► podGenerator ──► deviceGenerator, storageGenerator ──► termGenerator ──► dice
//
// All of them draw from the same dice. The order of the draws determines the world: adding,
// removing or moving a draw changes the meaning of every stored seed.
type generator struct {
	*dice
	w       *World
	terms   *termGenerator
	devices *deviceGenerator
	storage *storageGenerator
	pods    *podGenerator
}

// dice is the source of randomness, of unique names and times, and of the probabilities of features
// in this world.
type dice struct {
	*rand.Rand
	// leaning holds the probability of each feature. It makes worlds differ: a feature is likely in
	// some worlds and rare in others.
	leaning map[string]float64
	serial  int // number of the last name or time, to make all of them distinct
}

// epoch is the earliest possible time in a world. The latest is about three years later.
var epoch = time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)

// Generate returns the world of a seed. The same seed always yields the same world.
func Generate(seed uint64) *World {
	g := newGenerator(seed)
	g.setLeanings("node affinity", "pod affinity", "spread", "taints", "ports", "volumes", "devices", "sizes", "images", "odd", "nominated",
		"features", "pod level", "resized", "full", "packed", "unique", "keys", "huge")
	g.addNamespaces()
	g.addNodes()
	g.pods.makeApps()
	g.storage.addStorage()
	g.devices.addDevices()
	if g.hasLeaning("packed") {
		g.pods.packNodes()
	} else {
		g.pods.addPlaced()
	}
	g.pods.addBudgets()
	g.pods.addNominated()
	g.pods.addPending()
	g.drawArguments()
	// These draws are last because they were added later: the draws before them must not change for
	// stored seeds.
	g.devices.taintRules()
	g.addSlots()
	return g.w
}

func newGenerator(seed uint64) *generator {
	w := &World{Seed: seed, Args: map[string]runtime.Object{}}
	d := &dice{Rand: rand.New(rand.NewPCG(seed, 0x6265727468))}
	terms := &termGenerator{dice: d, w: w}
	devices := &deviceGenerator{dice: d, w: w, terms: terms, deviceClaims: map[string][]string{}}
	storage := &storageGenerator{dice: d, w: w, terms: terms, claims: map[string][]string{}, single: map[string]bool{}}
	pods := &podGenerator{dice: d, w: w, terms: terms, devices: devices, storage: storage, taken: map[string]bool{}}
	return &generator{dice: d, w: w, terms: terms, devices: devices, storage: storage, pods: pods}
}

func (d *dice) setLeanings(features ...string) {
	d.leaning = map[string]float64{}
	for _, f := range features {
		d.leaning[f] = pickOne(d, 0.0, 0.02, 0.1, 0.25, 0.6)
	}
}

// hasLeaning draws whether an object has the feature, with this world's probability.
func (d *dice) hasLeaning(feature string) bool {
	p, ok := d.leaning[feature]
	if !ok {
		panic("no such leaning: " + feature)
	}
	return d.withChance(p)
}

func (d *dice) withChance(p float64) bool { return d.Float64() < p }

// drawBetween draws from lo to hi, inclusive.
func (d *dice) drawBetween(lo, hi int) int { return lo + d.IntN(hi-lo+1) }

// drawFew draws a count from 0 to most. Small counts are far more likely.
func (d *dice) drawFew(most int) int {
	f := d.Float64()
	return int(f * f * f * float64(most+1))
}

func (d *dice) nextName(prefix string) string {
	d.serial++
	return fmt.Sprintf("%s-%d", prefix, d.serial)
}

func pickOne[T any](d interface{ IntN(int) int }, list ...T) T { return list[d.IntN(len(list))] }

// drawSome selects each item of the list with probability p, and keeps their order.
func drawSome[T any](d interface{ withChance(float64) bool }, p float64, list ...T) (drawn []T) {
	for _, item := range list {
		if d.withChance(p) {
			drawn = append(drawn, item)
		}
	}
	return drawn
}

// putAmount sets a resource to one of the amounts. The amount "" leaves it unset.
func (d *dice) putAmount(list v1.ResourceList, name v1.ResourceName, amounts ...string) {
	if amount := pickOne(d, amounts...); amount != "" {
		list[name] = resource.MustParse(amount)
	}
}

func (d *dice) nextTime() metav1.Time {
	d.serial++ // ages must differ: preemption compares them, and ties would be broken at random
	return metav1.NewTime(epoch.Add(time.Duration(d.IntN(20000)*5000+d.serial%5000) * time.Second))
}

var namespaceNames = []string{"default", "team-a", "team-b", "empty"}

func (g *generator) addNamespaces() {
	for _, name := range namespaceNames {
		labels := map[string]string{"kubernetes.io/metadata.name": name}
		if g.withChance(0.5) {
			labels["team"] = pickOne(g, "a", "b", "")
		}
		if g.withChance(0.9) { // otherwise, as if the informer lagged, the namespace does not exist
			g.w.addObject(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
		}
	}
}
