package decide

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestFirstLookFromBaseIsTheSame: what is taken over from a base and brought up to date is what a look at every node gives.
func TestFirstLookFromBaseIsTheSame(t *testing.T) {
	for _, mode := range []string{"spread", "affinity", "anti"} {
		t.Run(mode, func(t *testing.T) {
			c := benchCluster(60, false)
			d := New(c, plugins.Default(), 1)
			d.fewDomains = 2 // so that nodes are grouped by the counts of their zones, too
			for i := range 90 {
				pod := benchPod(i%30, "1000 apps, "+mode)
				pod.UID = types.UID(fmt.Sprint(i))
				p := c.Pending(pod)
				decision := d.Decide(p)
				holds(t, c, d, p, decision)
				c.Place(p, decision.Node)
				if i == 70 {
					c.RemoveNode("node-5")
				}
			}
			if len(d.bases.rankings) == 0 {
				t.Fatal("no base was made")
			}
			for i := range 30 {
				class := c.Pending(benchPod(i, "1000 apps, "+mode)).Class
				p := c.Pending(benchPod(i, "1000 apps, "+mode))
				d.sync()
				pl := d.newPlan(p)
				base := d.base(class, pl)
				if base == nil {
					t.Fatal("there is no base for the class")
				}
				got, want := newFromBase(pl, base), newRanking(d, pl)
				for n := range c.Nodes {
					if got.bucket[n] != want.bucket[n] {
						t.Fatalf("node %d is in bucket %d, want %d", n, got.bucket[n], want.bucket[n])
					}
					if got.bucket[n] == absent {
						continue
					}
					a, b := got.groups[got.at[n].group], want.groups[want.at[n].group]
					if !slices.Equal(a.values, b.values) {
						t.Fatalf("node %d counts %v, want %v", n, a.values, b.values)
					}
					if at := got.at[n].place; got.bucket[n] >= 0 && a.buckets[got.bucket[n]][at] != int32(n) {
						t.Fatalf("node %d is not where it is said to be", n)
					}
				}
				for k := range got.tallies {
					a, b := got.tallies[k], want.tallies[k]
					if !slices.Equal(a.count, b.count) || !slices.Equal(a.included, b.included) || a.present != b.present || a.total != b.total {
						t.Fatalf("tally %d is %+v, want %+v", k, a, b)
					}
				}
				if a, b := got.choose(), want.choose(); a.total != b.total || a.feasible != b.feasible {
					t.Fatalf("it chooses %+v, want %+v", a, b)
				}
			}
		})
	}
}

// TestPodsAreFoundByWhatSelectsThem: a first look counts the pods of classes that the selectors and terms can mean, and no others.
func TestPodsAreFoundByWhatSelectsThem(t *testing.T) {
	c := benchCluster(10, false)
	d := New(c, plugins.Default(), 1)
	for i := range 40 {
		pod := benchPod(i, "1000 apps, anti")
		pod.UID, pod.Spec.NodeName = types.UID(fmt.Sprint(i)), fmt.Sprint("node-", i%10)
		c.SetPod(pod)
	}
	p := c.Pending(benchPod(7, "1000 apps, anti"))
	d.sync()
	pl := d.newPlan(p)
	classes, all := d.counted(pl)
	if all || len(classes) != 1 {
		t.Errorf("%d classes may count (all: %t), want the one of the app", len(classes), all)
	}
	if n := len(newRanking(d, pl).effects); n != 1 {
		t.Errorf("%d classes were looked at, want 1", n)
	}
}
