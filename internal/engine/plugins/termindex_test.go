// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// TestIndexedTermsMatchWhatEachOfThemDoes compares the index with the library for few terms and for
// thousands of terms. Keys are used by few or many terms, or repeatedly within a term; some terms
// have fields, and some are broken.
func TestIndexedTermsMatchWhatEachOfThemDoes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	matched, masks, lists, few := 0, 0, 0, 0
	for round := range 60 {
		var terms nodeTerms
		var weights []int64
		var library []*nodeaffinity.LazyErrorNodeSelector
		for i := range []int{1, 30, 100, 3000}[round%4] {
			term := oddNodeTerm(rng, i)
			terms, weights = append(terms, readNodeTerm(term)), append(weights, rng.Int64N(100)-10)
			library = append(library, nodeaffinity.NewLazyErrorNodeSelector(&v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{*term}}))
		}
		x := indexTerms(terms, weights)
		for _, k := range x.keys {
			if k.index != nil {
				masks, lists = masks+len(k.index.equal.all.mask), lists+len(k.index.equal.all.list)
			}
			few += len(k.all)
		}
		c := cluster.New()
		for range 20 {
			node := oddNode(rng) // often an earlier node with other labels
			n := c.SetNode(node)
			var want, got []int
			var weight int64
			for i := range library {
				if matches, _ := library[i].Match(node); matches {
					want, weight = append(want, i), weight+weights[i]
				}
			}
			for i := range terms {
				if x.words == 0 && terms[i].match(n) {
					got = append(got, i)
				}
			}
			if x.words > 0 {
				w := x.findMatching(n)
				for i := range terms {
					if w.left[i/64]>>(i%64)&1 != 0 {
						got = append(got, i)
					}
				}
				x.spare.Put(w)
			}
			first, again := x.matchesAny(n), x.matchesAny(n)
			if !slices.Equal(got, want) || first != (len(want) > 0) || again != first || x.sumWeights(n) != weight {
				t.Fatalf("%v of %d terms match %s with %v, want %v; they weigh %d, want %d", got, len(terms), n.Name, node.Labels, want, x.sumWeights(n), weight)
			}
			matched += len(got)
		}
	}
	if matched < 1000 || masks < 100 || lists < 100 || few < 1000 {
		t.Errorf("%d matches, %d words of masks, %d terms in lists, %d alone: too few to say anything", matched, masks, lists, few)
	}
}

// TestWhatWasReadLastIsOfThatPod alternates between pods with many terms, and verifies that each
// pod is judged by its own terms.
func TestWhatWasReadLastIsOfThatPod(t *testing.T) {
	plugin, err := NewNodeAffinity(nil)
	if err != nil {
		t.Fatal(err)
	}
	c := cluster.New()
	node := c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"}}})
	pod := func(zone string, name string, valid bool) *cluster.Pod {
		affinity := &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{}}
		for k := range 2 * worthKeeping {
			term := expressions(in("zone", zone), not("other", fmt.Sprint(k)))
			affinity.PreferredDuringSchedulingIgnoredDuringExecution = append(affinity.PreferredDuringSchedulingIgnoredDuringExecution,
				v1.PreferredSchedulingTerm{Weight: 1, Preference: term})
			term.MatchFields = []v1.NodeSelectorRequirement{in(metav1.ObjectNameField, name)}
			required := affinity.RequiredDuringSchedulingIgnoredDuringExecution
			required.NodeSelectorTerms = append(required.NodeSelectorTerms, term)
		}
		if !valid {
			affinity.PreferredDuringSchedulingIgnoredDuringExecution[0].Preference.MatchExpressions[0].Values = nil
		}
		return c.Pending(&v1.Pod{Spec: v1.PodSpec{Affinity: &v1.Affinity{NodeAffinity: affinity}}})
	}
	for range 3 {
		for _, test := range []struct {
			pod           *cluster.Pod
			only          string
			passes, valid bool
			score         int64
		}{{pod("a", "n", true), "n", true, true, 2 * worthKeeping}, {pod("b", "m", true), "m", false, true, 0}, {pod("a", "n", false), "n", true, false, 0}} {
			for range 2 {
				judge, scoring := plugin.Filter(c, test.pod), plugin.Score(c, test.pod, nil)
				if len(judge.Only) != 1 || !judge.Only[test.only] || (judge.Node(node) == nil) != test.passes || (scoring.Err == nil) != test.valid {
					t.Errorf("only %v, rejected %v, %v; want %+v", judge.Only, judge.Node(node), scoring.Err, test)
				}
				if scoring.Node == nil {
					continue
				}
				if score, _ := scoring.Node(node); score != test.score {
					t.Errorf("it scores %d, want %d", score, test.score)
				}
			}
		}
	}
}

func oddNodeTerm(rng *rand.Rand, i int) *v1.NodeSelectorTerm {
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	term := &v1.NodeSelectorTerm{}
	parts := 1 + rng.IntN(4)
	if rng.IntN(30) == 0 {
		parts = 10
	}
	for range parts {
		e := v1.NodeSelectorRequirement{
			Key:      pick("a", "b", "c", "d", "example.com/e", v1.LabelHostname),
			Operator: v1.NodeSelectorOperator(pick("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt")),
		}
		if rng.IntN(50) == 0 {
			e.Key = fmt.Sprint("rare-", []int{i / 2 % 4, 40 + i%200}[i%2])
		}
		switch e.Operator {
		case v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn:
			for range 1 + rng.IntN(3) {
				e.Values = append(e.Values, pick("1", "2", "3", "x", ""))
			}
		case v1.NodeSelectorOpGt, v1.NodeSelectorOpLt:
			e.Values = []string{pick("0", "1", "2", "9223372036854775807", "-9223372036854775808")}
		}
		switch rng.IntN(200) {
		case 0:
			e.Values = nil
		case 1:
			e.Key = "-a"
		case 2:
			e.Values = []string{"1", "2-"}
		}
		term.MatchExpressions = append(term.MatchExpressions, e)
	}
	for rng.IntN(5) == 0 {
		term.MatchFields = append(term.MatchFields, v1.NodeSelectorRequirement{
			Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOperator(pick("In", "NotIn")), Values: []string{pick("n", "m")},
		})
	}
	if rng.IntN(100) == 0 {
		term.MatchFields = append(term.MatchFields, v1.NodeSelectorRequirement{
			Key: "metadata.namespace", Operator: v1.NodeSelectorOperator(pick("In", "NotIn")), Values: []string{pick("", "m")},
		})
	}
	return term
}

func oddNode(rng *rand.Rand) *v1.Node {
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: pick("n", "m"), Labels: map[string]string{}}}
	for _, key := range []string{"a", "b", "c", "d", "example.com/e", v1.LabelHostname, fmt.Sprint("rare-", rng.IntN(4))} {
		if rng.IntN(3) > 0 {
			node.Labels[key] = pick("1", "2", "3", "x", "y", "9223372036854775807", "-9223372036854775808")
		}
	}
	for range 20 {
		node.Labels[fmt.Sprint("rare-", 40+rng.IntN(200))] = pick("1", "2", "3", "x", "y")
	}
	if rng.IntN(3) == 0 {
		for i := range 60 {
			node.Labels[fmt.Sprint("other-", i)] = "x"
		}
	}
	return node
}

// TestThousandsOfInvalidTermsAreToldInShort requires a short message, built from a part of the
// terms. An API server accepts terms that require a label to be greater than a word.
func TestThousandsOfInvalidTermsAreToldInShort(t *testing.T) {
	plugin, err := NewNodeAffinity(nil)
	if err != nil {
		t.Fatal(err)
	}
	affinity := &v1.NodeAffinity{}
	for k := range 10_000 {
		affinity.PreferredDuringSchedulingIgnoredDuringExecution = append(affinity.PreferredDuringSchedulingIgnoredDuringExecution, v1.PreferredSchedulingTerm{
			Weight: 1, Preference: expressions(v1.NodeSelectorRequirement{Key: "k", Operator: v1.NodeSelectorOpGt, Values: []string{fmt.Sprint("word-", k)}}),
		})
	}
	c := cluster.New()
	pod := c.Pending(&v1.Pod{Spec: v1.PodSpec{Affinity: &v1.Affinity{NodeAffinity: affinity}}})
	scoring := plugin.Score(c, pod, nil)
	if scoring.Err == nil {
		t.Fatal("invalid terms are no error")
	}
	if text := scoring.Err.Error(); len(text) > 10_000 || !strings.Contains(text, "word-0") {
		t.Errorf("%d bytes are said: %.300s", len(text), text)
	}
}

// TestATermOfThousandsOfRequirementsIsToldInShort verifies that the error message for a term is
// built from its first requirements only: sorting all of them for each report took 0.8 s. If one of
// the first requirements is invalid, the message must name it.
func TestATermOfThousandsOfRequirementsIsToldInShort(t *testing.T) {
	plugin, err := NewNodeAffinity(nil)
	if err != nil {
		t.Fatal(err)
	}
	const mostTaken = 64 << 20 // bytes of memory; an earlier version took 4 GB
	for _, invalid := range []int{3, 11_000} {
		var term v1.NodeSelectorTerm
		for k := range 12_000 {
			r := v1.NodeSelectorRequirement{Key: fmt.Sprint("key-", k), Operator: v1.NodeSelectorOpExists}
			if k == invalid {
				r.Operator, r.Values = v1.NodeSelectorOpGt, []string{"word"}
			}
			term.MatchExpressions = append(term.MatchExpressions, r)
		}
		affinity := &v1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.PreferredSchedulingTerm{{Weight: 1, Preference: term}}}
		c := cluster.New()
		pod := c.Pending(&v1.Pod{Spec: v1.PodSpec{Affinity: &v1.Affinity{NodeAffinity: affinity}}})

		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		scoring := plugin.Score(c, pod, nil)
		runtime.ReadMemStats(&after)
		if scoring.Err == nil {
			t.Fatal("an invalid requirement is no error")
		}
		if taken := after.TotalAlloc - before.TotalAlloc; taken > mostTaken {
			t.Errorf("%d MiB are allocated to say what is wrong", taken>>20)
		}
		named := strings.Contains(scoring.Err.Error(), "[0].matchExpressions[3]")
		if text := scoring.Err.Error(); len(text) > 10_000 || named != (invalid == 3) {
			t.Errorf("requirement %d is invalid; said in %d bytes: %.300s", invalid, len(text), text)
		}
	}
}

// TestTermsThatMatchNothingAreDropped verifies that invalid terms are dropped when they are read: a
// tenant's pod may have tens of thousands of them, and iterating over them for each node took 240
// ms on a hundred nodes.
func TestTermsThatMatchNothingAreDropped(t *testing.T) {
	selector := &v1.NodeSelector{}
	for k := range 20_000 {
		r := v1.NodeSelectorRequirement{Key: fmt.Sprint("k", k), Operator: v1.NodeSelectorOpGt, Values: []string{"word"}}
		if k == 7_000 {
			r = v1.NodeSelectorRequirement{Key: "good", Operator: v1.NodeSelectorOpExists}
		}
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, expressions(r))
	}
	if terms := readNodeTerms(selector); len(terms) != 1 || terms[0].wanted[0].Key != "good" {
		t.Errorf("%d terms are left of 20,000, want the one that is valid", len(terms))
	}
}
