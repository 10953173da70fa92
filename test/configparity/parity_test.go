// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package configparity

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/config"
)

var (
	files = flag.Int("files", 300, "how many random files")
	first = flag.Uint64("seed", 1, "the first file's seed; the others follow")
)

func TestMain(m *testing.M) {
	flag.Parse()
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	os.Exit(m.Run())
}

// compare reads a file with kube-scheduler's and with Berth's code. It reports whether both
// accepted the file.
func compare(t *testing.T, file string) (read bool) {
	t.Helper()
	want, refused := readUpstream(t.Context(), file)
	got, err := readBerth(file)
	switch {
	case refused != nil && err != nil:
		return false
	case refused != nil:
		t.Errorf("only upstream refuses it: %v", refused)
		return false
	case err != nil:
		t.Errorf("only Berth refuses it: %v", err)
		return false
	}
	if diff := cmp.Diff(want, withDefaultArgs(want, got)); diff != "" {
		t.Errorf("(-upstream +berth)\n%s", diff)
	}
	return true
}

// withDefaultArgs adds the arguments of plugins that the file does not configure, as upstream does.
// The file all-arguments-empty.yaml verifies that Berth's plugins have the same default arguments.
func withDefaultArgs(want, got map[string]Profile) map[string]Profile {
	for name, p := range got {
		for plugin, args := range want[name].Args {
			if _, ok := p.Args[plugin]; !ok {
				p.Args[plugin] = args
			}
		}
	}
	return got
}

func TestFilesOfTheDocumentationAreReadAlike(t *testing.T) {
	each(t, "../../internal/engine/config/testdata/good/*", func(t *testing.T, file string) {
		if !compare(t, file) {
			t.Errorf("refused")
		}
	})
}

func TestBadFilesAreRefusedByBoth(t *testing.T) {
	each(t, "../../internal/engine/config/testdata/bad/*", func(t *testing.T, file string) {
		if compare(t, file) {
			t.Errorf("read")
		}
	})
}

func each(t *testing.T, pattern string, check func(t *testing.T, file string)) {
	list, err := filepath.Glob(pattern)
	if err != nil || len(list) < 5 {
		t.Fatalf("%d files, %v", len(list), err)
	}
	for _, file := range list {
		t.Run(filepath.Base(file), func(t *testing.T) { check(t, file) })
	}
}

// TestTranslationsAreReadAlike verifies that kube-scheduler accepts Berth's translation of a legacy
// file and derives the same profiles from it as Berth.
func TestTranslationsAreReadAlike(t *testing.T) {
	each(t, "../../internal/engine/config/testdata/legacy/*", func(t *testing.T, file string) {
		c, err := config.Load(file, config.Options{})
		if err != nil {
			t.Fatal(err)
		}
		translated, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if !compare(t, write(t, string(translated))) || t.Failed() {
			t.Errorf("of\n%s", translated)
		}
	})
}

func TestRandomFilesAreReadAlike(t *testing.T) {
	read := 0
	for seed := *first; seed < *first+uint64(*files); seed++ {
		text := random(rand.New(rand.NewPCG(seed, 1)))
		if compare(t, write(t, text)) {
			read++
		}
		if t.Failed() {
			t.Fatalf("seed %d:\n%s", seed, text)
		}
	}
	t.Logf("%d files, %d of them good", *files, read)
	if read < *files/4 || read > *files*9/10 {
		t.Errorf("%d of %d files are good: too few of one kind to compare", read, *files)
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "sched.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// names lists plugins for each extension point. Most of them implement it.
var names = map[string][]string{
	"multiPoint": {"MyPlugin", "NodeResourcesFit", "TaintToleration", "ImageLocality", "DefaultPreemption", "MyCustomPluginA", "NodeName", "VolumeBinding"},
	"preEnqueue": {"SchedulingGates", "DynamicResources", "DefaultPreemption"},
	"queueSort":  {"PrioritySort", "MyQueueSort"},
	"preFilter":  {"NodeAffinity", "NodePorts", "MyPlugin", "InterPodAffinity"},
	"filter":     {"NodeName", "NodePorts", "TaintToleration", "MyPlugin", "NodeDeclaredFeatures", "VolumeZone"},
	"postFilter": {"DefaultPreemption", "DynamicResources"},
	"preScore":   {"TaintToleration", "NodeAffinity", "PodTopologySpread", "MyPlugin"},
	"score":      {"TaintToleration", "NodeAffinity", "ImageLocality", "MyPlugin", "MyCustomPluginA", "MyCustomPluginB", "NodeResourcesBalancedAllocation"},
	"reserve":    {"VolumeBinding", "DynamicResources"},
	"bind":       {"DefaultBinder"},
}

var points = []string{"multiPoint", "preEnqueue", "queueSort", "preFilter", "filter", "postFilter", "preScore", "score", "reserve", "bind"}

var strange = []string{"NoSuchPlugin", "PrioritySort", "ImageLocality", "NodeUnschedulable", "EBSLimits"}

// random returns a file with one to three profiles. About half of the files are valid.
func random(r *rand.Rand) string {
	var b strings.Builder
	b.WriteString("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n")
	for i := range 1 + r.IntN(3) {
		fmt.Fprintf(&b, "- schedulerName: s%d\n  plugins:\n", i)
		for _, point := range points {
			if r.IntN(3) > 0 || point == "queueSort" && r.IntN(8) > 0 {
				continue
			}
			fmt.Fprintf(&b, "    %s:\n", point)
			randomSet(r, &b, "enabled", point, names[point])
			disabled := names[point]
			if r.IntN(6) == 0 {
				disabled = []string{"*"}
			}
			randomSet(r, &b, "disabled", point, disabled)
		}
		randomArguments(r, &b)
	}
	return b.String()
}

func randomSet(r *rand.Rand, b *strings.Builder, key, point string, from []string) {
	if r.IntN(2) == 0 {
		return
	}
	fmt.Fprintf(b, "      %s:\n", key)
	for range 1 + r.IntN(3) {
		name := from[r.IntN(len(from))]
		if r.IntN(40) == 0 {
			name = strange[r.IntN(len(strange))]
		}
		if strings.Contains(b.String()[strings.LastIndex(b.String(), key):], "name: "+name+"\n") && r.IntN(10) > 0 {
			continue
		}
		fmt.Fprintf(b, "      - name: %s\n", name)
		if key == "enabled" && r.IntN(2) == 0 && (point == "score" || point == "multiPoint") {
			fmt.Fprintf(b, "        weight: %d\n", r.IntN(5))
		}
	}
}

// randomArguments writes arguments drawn from ranges slightly larger than the allowed ranges.
func randomArguments(r *rand.Rand, b *strings.Builder) {
	choices := []string{
		fmt.Sprintf("NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: %d}, {name: example.com/gpu}]}}", r.IntN(110)),
		fmt.Sprintf("InterPodAffinity, args: {hardPodAffinityWeight: %d}", r.IntN(110)),
		fmt.Sprintf("NodeResourcesBalancedAllocation, args: {resources: [{name: cpu, weight: %d}]}", r.IntN(2)),
		fmt.Sprintf("DefaultPreemption, args: {minCandidateNodesPercentage: %d}", r.IntN(110)),
		fmt.Sprintf("PodTopologySpread, args: {defaultingType: List, defaultConstraints: [{maxSkew: %d, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]}", r.IntN(9)),
		fmt.Sprintf("VolumeBinding, args: {bindTimeoutSeconds: %d}", r.IntN(100)-5),
		fmt.Sprintf("DynamicResources, args: {bindingTimeout: %dms}", 900+r.IntN(2000)),
		"NodeAffinity, args: {addedAffinity: {}}",
	}
	if r.IntN(2) == 0 {
		return
	}
	b.WriteString("  pluginConfig:\n")
	for i, choice := range choices {
		if i == 0 || r.IntN(4) == 0 {
			fmt.Fprintf(b, "  - {name: %s}\n", choice)
		}
	}
}
