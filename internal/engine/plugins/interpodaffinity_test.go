package plugins

import (
	"testing"

	"github.com/cockroachdb/datadriven"
	config "k8s.io/kube-scheduler/config/v1"
	"pgregory.net/rapid"
)

// Arguments of the cases: hard=WEIGHT is hardPodAffinityWeight, ignore is
// ignorePreferredTermsOfExistingPods.
func TestInterPodAffinityCases(t *testing.T) {
	runCases(t, "testdata/interpodaffinity.txt", func(t *testing.T, d *datadriven.TestData) any {
		args := &config.InterPodAffinityArgs{IgnorePreferredTermsOfExistingPods: d.HasArg("ignore")}
		if d.HasArg("hard") {
			var weight int32
			d.ScanArgs(t, "hard", &weight)
			args.HardPodAffinityWeight = &weight
		}
		plugin, err := NewInterPodAffinity(args)
		if err != nil {
			t.Fatal(err)
		}
		return plugin
	})
}

func TestInterPodAffinityWeightIsRefusedOutOfRange(t *testing.T) {
	for weight, want := range map[int32]string{
		-1:  "hardPodAffinityWeight: Invalid value: -1: not in valid range [0, 100]",
		101: "hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]",
	} {
		if _, err := NewInterPodAffinity(&config.InterPodAffinityArgs{HardPodAffinityWeight: &weight}); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	}
	plugin, err := NewInterPodAffinity(nil)
	if err != nil || plugin.HardWeight != 1 || plugin.IgnoreOthers {
		t.Errorf("defaults are %+v, %v", plugin, err)
	}
}

// The lowest node scores 0, the highest 100, and order is kept.
func TestAffinityScoresKeepOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := rapid.Int64Range(-1_000_000, 1_000_000)
		lowest := draw.Draw(t, "lowest")
		highest := lowest + rapid.Int64Range(1, 1_000_000).Draw(t, "span")
		a, b := rapid.Int64Range(lowest, highest).Draw(t, "a"), rapid.Int64Range(lowest, highest).Draw(t, "b")
		if AffinityNormalized(lowest, lowest, highest) != 0 || AffinityNormalized(highest, lowest, highest) != MaxScore {
			t.Fatal("the ends are not 0 and 100")
		}
		if a < b && AffinityNormalized(a, lowest, highest) > AffinityNormalized(b, lowest, highest) {
			t.Fatalf("%d scores higher than %d", a, b)
		}
	})
}
