// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	config "k8s.io/kube-scheduler/config/v1"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

func TestVolumeZoneCases(t *testing.T) {
	runCases(t, "testdata/volumezone.txt", func(*testing.T, *datadriven.TestData) any { return VolumeZone{} })
}

func TestVolumeRestrictionsCases(t *testing.T) {
	runCases(t, "testdata/volumerestrictions.txt", func(*testing.T, *datadriven.TestData) any { return VolumeRestrictions{} })
}

func TestNodeVolumeLimitsCases(t *testing.T) {
	plugin := &NodeVolumeLimits{}
	runCases(t, "testdata/nodevolumelimits.txt", func(*testing.T, *datadriven.TestData) any { return plugin })
}

func TestVolumeBindingCases(t *testing.T) {
	runCases(t, "testdata/volumebinding.txt", func(t *testing.T, _ *datadriven.TestData) any { return newVolumeBinding(t) })
}

func newVolumeBinding(t *testing.T) *VolumeBinding {
	t.Helper()
	plugin, err := NewVolumeBinding(nil)
	if err != nil {
		t.Fatal(err)
	}
	return plugin
}

func init() {
	// reserve on=NODE [undo]: lists the resulting volumes and claims. With undo, it lists them
	// again after the undo. Objects after the pod in the input are applied in between.
	moreCommands["reserve"] = func(t *testing.T, d *datadriven.TestData, c *cluster.Cluster, plugin any) string {
		var node string
		d.ScanArgs(t, "on", &node)
		pod, meanwhile, _ := strings.Cut(d.Input, "\n---\n")
		undo, err := plugin.(Reserver).Reserve(c, waiting(t, c, pod), c.Node(node))
		if err != nil {
			return fmt.Sprintf("error: %v\n", err)
		}
		load(t, c, meanwhile)
		answer := listVolumes(c)
		if d.HasArg("undo") {
			undo()
			answer += "undone:\n" + listVolumes(c)
		}
		return answer
	}
	// bound on=NODE: prints the result of PodVolumes.Bound for the pod, after adding the objects
	// that follow the pod in the input.
	moreCommands["bound"] = func(t *testing.T, d *datadriven.TestData, c *cluster.Cluster, plugin any) string {
		var node string
		d.ScanArgs(t, "on", &node)
		pod, meanwhile, _ := strings.Cut(d.Input, "\n---\n")
		volumes, err := plugin.(*VolumeBinding).PodVolumes(c, waiting(t, c, pod), c.Node(node))
		if err != nil {
			return fmt.Sprintf("error: %v\n", err)
		}
		undo := volumes.Assume(c)
		defer undo()
		load(t, c, meanwhile)
		bound, err := volumes.Bound(c, c.Node(node))
		if err != nil {
			return fmt.Sprintf("error: %v\n", err)
		}
		return fmt.Sprintf("%v\n", bound)
	}
}

func listVolumes(c *cluster.Cluster) string {
	var b strings.Builder
	for _, v := range c.Volumes.All() {
		fmt.Fprintf(&b, "volume %s", v.Name)
		if ref := v.Spec.ClaimRef; ref != nil {
			fmt.Fprintf(&b, " for claim %s/%s uid %q", ref.Namespace, ref.Name, ref.UID)
		}
		if v.Annotations[annBoundByController] != "" {
			b.WriteString(" by the controller")
		}
		b.WriteByte('\n')
	}
	for _, claim := range c.Claims.All() {
		fmt.Fprintf(&b, "claim %s", claim.Name)
		if node, ok := claim.Annotations[annSelectedNode]; ok {
			fmt.Fprintf(&b, " to be made for node %s", node)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestVolumeBindingArguments(t *testing.T) {
	if plugin := newVolumeBinding(t); plugin.Timeout != 10*time.Minute {
		t.Errorf("waits %v by default", plugin.Timeout)
	}
	seconds := int64(-1)
	want := "bindTimeoutSeconds: Invalid value: -1: invalid BindTimeoutSeconds, should not be a negative value"
	if _, err := NewVolumeBinding(&config.VolumeBindingArgs{BindTimeoutSeconds: &seconds}); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	want = "shape[0].score: Invalid value: 11: not in valid range [0, 10]"
	if _, err := NewVolumeBinding(&config.VolumeBindingArgs{Shape: []config.UtilizationShapePoint{{Utilization: 0, Score: 11}}}); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// Finding volumes by node labels must have the same result as trying every volume on every node.
func TestVolumesByPlaceAreFoundAsAllVolumesWouldBe(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := cluster.New()
		for i := range 4 {
			host := map[string]string{v1.LabelHostname: fmt.Sprint("host-", i), "zone": fmt.Sprint(i % 2)}
			c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node-", i), Labels: host}})
		}
		claim := &v1.PersistentVolumeClaim{}
		claim.Spec.Resources.Requests = gibibytes(2)
		var volumes []*v1.PersistentVolume
		for i := range rapid.IntRange(0, 8).Draw(t, "volumes") {
			volumes = append(volumes, drawVolume(t, fmt.Sprint("volume-", i)))
		}
		of := byClass(volumes, []*v1.PersistentVolumeClaim{claim})[""]
		found, err := findCandidates(cluster.New(), claim, of)
		if err != nil {
			t.Fatal(err)
		}
		taken, others := map[string]bool{}, make(takenVolumes, len(of))
		for i := range of {
			others[i] = rapid.IntRange(0, 3).Draw(t, "taken") == 0
			taken[of[i].volume.Name] = others[i]
		}
		for _, n := range c.SortedNodes() {
			want, got := "", ""
			if v := smallest(claim, volumes, n, taken); v != nil {
				want = v.Name
			}
			if v := found.volumeOn(n, others); v != nil {
				got = v.volume.Name
			}
			if got != want {
				t.Fatalf("node %s: got %q, want %q", n.Name, got, want)
			}
		}
	})
}

func gibibytes(n int) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(int64(n)<<30, resource.BinarySI)}
}

func drawVolume(t *rapid.T, name string) *v1.PersistentVolume {
	v := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable}}
	v.Spec.Capacity = gibibytes(rapid.IntRange(1, 4).Draw(t, "size"))
	var terms []v1.NodeSelectorTerm
	for range rapid.IntRange(0, 2).Draw(t, "terms") {
		terms = append(terms, v1.NodeSelectorTerm{MatchExpressions: rapid.SliceOfN(rapid.SampledFrom([]v1.NodeSelectorRequirement{
			{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{"host-0", "host-1"}},
			{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{"host-1", "host-1", "host-2"}},
			{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpNotIn, Values: []string{"host-1"}},
			{Key: "zone", Operator: v1.NodeSelectorOpIn, Values: []string{"1"}},
		}), 1, 2).Draw(t, "expressions")})
	}
	if terms != nil {
		v.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: terms}}
	}
	return v
}

func smallest(claim *v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume, n *cluster.Node, taken map[string]bool) (best *v1.PersistentVolume) {
	wanted := claim.Spec.Resources.Requests[v1.ResourceStorage]
	for _, v := range volumes {
		size, reach := v.Spec.Capacity[v1.ResourceStorage], reachOf(v)
		if taken[v.Name] || size.Cmp(wanted) < 0 || !reach.hasNode(n) {
			continue
		}
		if best == nil || size.Cmp(best.Spec.Capacity[v1.ResourceStorage]) < 0 {
			best = v
		}
	}
	return best
}
