// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// TestWhatManyTermsSayIsRemembered verifies that cached effects are used only for classes that the
// terms cannot distinguish, for all kinds of selectors.
func TestWhatManyTermsSayIsRemembered(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 7))
	answers, remembered, usual := 0, 0, 0
	for round := range 60 {
		c := benchCluster(20, false)
		withManyKeys(c)
		for _, name := range []string{"default", "other"} {
			c.Namespaces.Set(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": name}}})
		}
		d := New(c, plugins.Default(), 1)
		d.limits.ManyTerms = 0
		c.SetPod(sayingMuch(rng, round))
		d.ix.followLog()
		for i := range 40 {
			own := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: []string{"default", "other"}[rng.IntN(2)], Labels: oddLabels(rng), UID: types.UID(fmt.Sprint(i))}}
			class := c.Pending(own).Class
			a := plugins.NewAffinities(c, class)
			for users := range d.ix.terms.known.All {
				got, want := d.ix.termEffects(users, class, a), d.ix.askTerms(users, a)
				if !slices.Equal(got.repelled, want.repelled) || !slices.Equal(got.votes, want.votes) || got.affinities != want.affinities {
					t.Fatalf("of %v in %s is remembered %+v, want %+v", own.Labels, own.Namespace, got, want)
				}
				answers++
			}
			if i == 20 {
				c.Namespaces.Set(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: map[string]string{"team": "default"}}})
			}
		}
		remembered += len(d.ix.terms.cached.known)
		usual += len(d.ix.terms.cached.usual)
	}
	if remembered == 0 || remembered > answers*4/5 || usual == 0 || usual > remembered*4/5 {
		t.Errorf("%d of %d answers are remembered, from %d usual ones", remembered, answers, usual)
	}
}

// sayingMuch returns a pod with terms using selectors of every kind.
func sayingMuch(rng *rand.Rand, round int) *v1.Pod {
	pod := towards("much")
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	for range 1 + rng.IntN(12) {
		selector := &metav1.LabelSelector{}
		for range rng.IntN(3) {
			r := metav1.LabelSelectorRequirement{Key: pick("app", "tier", "pod"), Operator: metav1.LabelSelectorOperator(pick("In", "NotIn", "Exists", "DoesNotExist"))}
			if r.Operator == "In" || r.Operator == "NotIn" {
				for range 1 + rng.IntN(3) {
					r.Values = append(r.Values, pick("", "a", "b", "c", "d"))
				}
			}
			selector.MatchExpressions = append(selector.MatchExpressions, r)
		}
		key := fmt.Sprint("k", rng.IntN(9))
		[]func(string, *metav1.LabelSelector) func(*v1.Pod){preferring, disliking, avoiding}[rng.IntN(3)](key, selector)(pod)
		if list := pod.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(list) > 0 && round%2 == 0 {
			list[len(list)-1].PodAffinityTerm.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": pick("default", "other")}}
		}
	}
	return pod
}

func oddLabels(rng *rand.Rand) map[string]string {
	labels := map[string]string{}
	for _, key := range []string{"app", "tier", "pod", "x"} {
		if rng.IntN(2) == 0 {
			labels[key] = []string{"", "a", "b", "c", "d", "e", "f"}[rng.IntN(7)]
		}
	}
	return labels
}

// TestManyTermsAreAskedOnce verifies that the effects of a pod with very many terms on a hundred
// workloads are cached only once if the terms do not name the workloads. The effects of a pod with
// a single term are not cached, however many values the term lists, since evaluating the term for a
// workload costs only one look.
func TestManyTermsAreAskedOnce(t *testing.T) {
	var nobody, everybody []string
	for i := range 2000 {
		nobody, everybody = append(nobody, fmt.Sprint("nobody-", i)), append(everybody, fmt.Sprint("app-", i))
	}
	not := func(values []string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpNotIn, Values: values}}}
	}
	for name, test := range map[string]struct {
		pod         *v1.Pod
		want, usual int
	}{
		"terms that name nobody": {thousandsOfTerms("nobody"), 1, 1},
		"one that names nobody":  {towards("thousands", preferring("k1", not(nobody))), 0, 0},
		"one that names all":     {towards("thousands", avoiding("k1", not(everybody[1:]))), 0, 0},
		"terms that name each":   {thousandsOfTerms("app"), 100, 1},
	} {
		c := benchCluster(20, false)
		withManyKeys(c)
		d := New(c, plugins.Default(), 1)
		c.SetPod(test.pod)
		for i := range 100 {
			pod := benchPod(0, "plain")
			pod.Labels, pod.UID = map[string]string{"app": fmt.Sprint("app-", i)}, types.UID(fmt.Sprint(i))
			p := c.Pending(pod)
			decision := d.Decide(p)
			if i%10 == 0 {
				holds(t, c, d, p, decision)
			}
		}
		if s := &d.ix.terms.cached; len(s.known) != test.want || len(s.usual) != test.usual {
			t.Errorf("%s: %d answers are remembered from %d, want %d from %d", name, len(s.known), len(s.usual), test.want, test.usual)
		}
		c.RemovePod(test.pod.UID)
		d.ix.followLog()
		d.ix.terms.dropUnused()
		if n := len(d.ix.terms.cached.known) + len(d.ix.terms.cached.usual); n != 0 {
			t.Errorf("%s: %d answers of pods that are gone are remembered", name, n)
		}
	}
}

// TestWhatIsRememberedIsBoundedInSize verifies that the size of the cache is bounded even if a pod
// has as many labels as fit into an object and terms name all of them.
func TestWhatIsRememberedIsBoundedInSize(t *testing.T) {
	const keys = 4000
	c := benchCluster(20, false)
	withManyKeys(c)
	d := New(c, plugins.Default(), 1)
	var names [keys]string
	for k := range names {
		names[k] = fmt.Sprint("label-", k)
	}
	var terms []v1.WeightedPodAffinityTerm
	for some := range slices.Chunk(names[:], 200) {
		selector := &metav1.LabelSelector{}
		for _, name := range some {
			selector.MatchExpressions = append(selector.MatchExpressions, metav1.LabelSelectorRequirement{Key: name, Operator: metav1.LabelSelectorOpExists})
		}
		terms = append(terms, v1.WeightedPodAffinityTerm{Weight: 1, PodAffinityTerm: v1.PodAffinityTerm{TopologyKey: "k1", LabelSelector: selector}})
	}
	pod := towards("curious")
	pod.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: terms}}
	c.SetPod(pod)
	d.ix.followLog()
	most := 0
	for i := range 800 {
		own := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Labels: map[string]string{}, UID: types.UID(fmt.Sprint(i))}}
		for k, name := range names {
			if k != i {
				own.Labels[name] = ""
			}
		}
		class := c.Pending(own).Class
		a := plugins.NewAffinities(c, class)
		for users := range d.ix.terms.known.All {
			d.ix.termEffects(users, class, a)
		}
		size := 0
		for key := range d.ix.terms.cached.known {
			size += len(key.properties)
		}
		for key := range d.ix.terms.cached.usual {
			size += len(key.properties)
		}
		most = max(most, size)
		if i == 350 { // nearly the capacity of the cache
			kept := heap()
			d.ix.terms.cached = effectCache{}
			if kept -= heap(); kept > 2*effectsSize {
				t.Errorf("what is remembered takes %d KiB, want %d at most", kept>>10, 2*effectsSize>>10)
			}
		}
	}
	if most > effectsSize || most < effectsSize/2 {
		t.Errorf("%d bytes are remembered, want up to %d", most, effectsSize)
	}
}

// TestALongSelectorHoldsNobodyUp verifies that a selector with as many values as fit into an object
// does not delay the next decision. The delay was three seconds when each label was searched for in
// the list of preceding labels.
func TestALongSelectorHoldsNobodyUp(t *testing.T) {
	c := benchCluster(100, false)
	d := New(c, plugins.Default(), 1)
	apps := make([]string, 100_000)
	for i := range apps {
		apps[i] = fmt.Sprint("app-", i)
	}
	long := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: apps}}}
	c.SetPod(towards("long", preferring(v1.LabelTopologyZone, long)))
	p := c.Pending(benchPod(1, "plain"))
	before := processorTime()
	decision := d.Decide(p)
	// Even on a busy machine, the usual time is about a tenth of this.
	if took := processorTime() - before; took > time.Second {
		t.Errorf("it took %v of processor time", took)
	}
	holds(t, c, d, p, decision)
}

// TestUsersAreListedOnce verifies that users are listed once if several of their terms require the
// same label or no label.
func TestUsersAreListedOnce(t *testing.T) {
	d := newTerms(0)
	c := cluster.New()
	pod := towards("lists", preferring("k1", thousandApps()), preferring("k2", thousandApps()), preferring("k3", everyPod()), preferring("k4", everyPod()))
	d.addPod(c.Pending(pod).Class)
	if d.byLabel.Len() > 1000 || len(d.alsoByLabel) != 0 || len(d.others) != 1 {
		t.Errorf("they are listed by %d labels, by %d again, and %d times for all; want at most 1000, 0 and 1", d.byLabel.Len(), len(d.alsoByLabel), len(d.others))
	}
	if about := d.usersFor(rules.NewLabels(map[string]string{"app": "app-1", "tier": "x"}, nil)); len(about) != 1 {
		t.Errorf("%d users are found, want 1", len(about))
	}
}
