package decide

import (
	"testing"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/plugins"
)

// refuser rejects every pod before any node is looked at.
type refuser string

func (r refuser) Name() string      { return string(r) }
func (refuser) Reads() plugins.Part { return plugins.Labels }
func (r refuser) Filter(*cluster.Cluster, *cluster.Pod) plugins.Judge {
	return plugins.Judge{All: &plugins.Rejection{Reasons: []string{string(r)}, Unresolvable: true}}
}

// TestPodIsRejectedInTheOrderAtPreFilter: which of two plugins rejects a pod before any node is looked at depends on their order at
// PreFilter, whatever it is at Filter.
func TestPodIsRejectedInTheOrderAtPreFilter(t *testing.T) {
	for _, first := range []string{"A", "B"} {
		profile := &plugins.Profile{
			Filters: []plugins.Filter{refuser("A"), refuser("B")},
			At:      map[plugins.Point][]string{plugins.PreFilter: {"B", "A"}, plugins.Filters: {"A", "B"}},
		}
		if first == "A" {
			profile.At[plugins.PreFilter] = []string{"A", "B"}
		}
		c := benchCluster(1, false)
		p := c.Pending(benchPod(0, "plain"))
		if e := Evaluate(c, profile, p); e.Rejector != first {
			t.Errorf("%s rejects the pod, want %s", e.Rejector, first)
		}
		d := New(c, profile, 1)
		d.Decide(p)
		if f := d.Diagnose(p); f.Rejector != first {
			t.Errorf("the fast way: %s rejects the pod, want %s", f.Rejector, first)
		}
	}
}
