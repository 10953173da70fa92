package plugins

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// TestIndexedTermsMatchWhatEachOfThemDoes: few terms and thousands, about keys that many or few of
// them have, several times in one term, with fields and broken ones.
func TestIndexedTermsMatchWhatEachOfThemDoes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	matched, loose := 0, 0
	for round := range 60 {
		var terms nodeTerms
		for i := range []int{1, fewTerms, 100, 3000}[round%4] {
			term := &v1.NodeSelectorTerm{}
			for range 1 + rng.IntN(4) {
				key := pick("a", "b", "c", "d", v1.LabelHostname)
				if rng.IntN(50) == 0 {
					key = fmt.Sprint("rare-", i%40)
				}
				e := v1.NodeSelectorRequirement{Key: key, Operator: v1.NodeSelectorOperator(pick("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))}
				switch e.Operator {
				case v1.NodeSelectorOpIn, v1.NodeSelectorOpNotIn:
					for range 1 + rng.IntN(3) {
						e.Values = append(e.Values, pick("1", "2", "3", "x"))
					}
				case v1.NodeSelectorOpGt, v1.NodeSelectorOpLt:
					e.Values = []string{pick("0", "1", "2")}
				}
				if rng.IntN(100) == 0 {
					e.Values = nil
				}
				term.MatchExpressions = append(term.MatchExpressions, e)
			}
			if rng.IntN(5) == 0 {
				term.MatchFields = []v1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOperator(pick("In", "NotIn")), Values: []string{pick("n", "m")}}}
			}
			terms = append(terms, readNodeTerm(term))
		}
		x := indexTerms(terms)
		loose += len(slices.Concat(x.loose...))
		c := cluster.New()
		for range 20 {
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: pick("n", "m"), Labels: map[string]string{}}}
			for _, key := range []string{"a", "b", "c", "d", v1.LabelHostname, fmt.Sprint("rare-", rng.IntN(40))} {
				if rng.IntN(3) > 0 {
					node.Labels[key] = pick("1", "2", "3", "x", "y")
				}
			}
			n := c.SetNode(node)
			var want, got []int
			for i := range terms {
				if terms[i].match(n) {
					want = append(want, i)
				}
			}
			x.each(n, func(i int) bool { got = append(got, i); return true })
			if !slices.Equal(got, want) || x.match(n) != (len(want) > 0) {
				t.Fatalf("%v of %d terms match %v, want %v", got, len(terms), node.Labels, want)
			}
			matched += len(got)
		}
	}
	if matched < 1000 || loose < 100 {
		t.Errorf("%d matches, %d loose requirements: too few to say anything", matched, loose)
	}
}
