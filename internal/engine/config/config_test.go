// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// outside holds examples of compiled-in plugins.
var outside = Options{Outside: map[string]plugins.Point{
	"MyPlugin":        plugins.PreFilter | plugins.Filters | plugins.Score | plugins.PreScore,
	"MyCustomPluginA": plugins.Score,
	"MyCustomPluginB": plugins.Score,
	"MyQueueSort":     plugins.QueueSort,
}}

// TestReadCases runs testdata/*.txt. The commands:
//
//	read     reads a file and prints each profile's extension points that differ from the default, and the notes
//	load     the same with a file of testdata
//	yaml     prints the file, or its translation
func TestReadCases(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !strings.HasSuffix(path, ".txt") {
			return
		}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			file := "sched.yaml"
			d.MaybeScanArgs(t, "file", &file)
			data := []byte(d.Input)
			if d.Cmd == "load" {
				file = d.CmdArgs[0].Key
				var err error
				if data, err = os.ReadFile(filepath.Join("testdata", file)); err != nil {
					t.Fatal(err)
				}
			}
			c, err := Parse(filepath.Join("testdata", file), data, outside)
			if err != nil {
				return "refused: " + strings.TrimPrefix(err.Error(), "testdata/") + "\n"
			}
			switch d.Cmd {
			case "read", "load":
				return describe(c)
			case "yaml":
				out, err := c.YAML()
				if err != nil {
					t.Fatal(err)
				}
				return string(out)
			}
			d.Fatalf(t, "unknown command %q", d.Cmd)
			return ""
		})
	})
}

func describe(c *Config) string {
	var b strings.Builder
	for _, p := range c.Profiles {
		fmt.Fprintf(&b, "profile %s:%s\n", p.SchedulerName, differences(p))
	}
	for _, e := range c.Spec.Extenders {
		fmt.Fprintf(&b, "extender %s\n", e.URLPrefix)
	}
	for _, note := range c.Notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	return b.String()
}

func differences(p *plugins.Profile) string {
	var b strings.Builder
	standard := plugins.Default()
	for _, point := range plugins.AllPoints {
		got, want := listed(p, point), listed(standard, point)
		switch {
		case slices.Equal(got, want):
		case len(got) == 0:
			fmt.Fprintf(&b, "\n  %s: none", point)
		default:
			fmt.Fprintf(&b, "\n  %s: %s", point, strings.Join(got, " "))
		}
	}
	if b.Len() == 0 {
		return " as by default"
	}
	if !p.Preemption {
		b.WriteString("\n  no preemption")
	}
	return b.String()
}

func listed(p *plugins.Profile, point plugins.Point) (names []string) {
	for _, name := range p.At[point] {
		if point == plugins.Score {
			name = fmt.Sprintf("%s=%d", name, p.Weights[name])
		}
		names = append(names, name)
	}
	return names
}

func TestWithoutAFileTheDefaultsHold(t *testing.T) {
	c, err := Default(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := describe(c); got != "profile default-scheduler: as by default\n" {
		t.Error(got)
	}
	if c.Profile("default-scheduler") == nil || c.Profile("other") != nil {
		t.Error("profiles are not found by their name")
	}
	if *c.Spec.PodMaxBackoffSeconds != 10 || *c.Spec.Parallelism != 16 || c.Spec.LeaderElection.ResourceLock != "leases" {
		t.Errorf("defaults: %+v", c.Spec)
	}
}

// TestATranslationCanBeReadAgain verifies that the translation of a legacy file is a current file,
// and that reading it yields the same configuration.
func TestATranslationCanBeReadAgain(t *testing.T) {
	files, err := filepath.Glob("testdata/legacy/*")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d legacy files, %v", len(files), err)
	}
	for _, file := range files {
		first, err := Load(file, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if !first.Legacy {
			t.Errorf("%s: is not taken for a legacy file", file)
		}
		printed, err := first.YAML()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse("again.yaml", printed, Options{})
		if err != nil {
			t.Fatalf("%s: %v in\n%s", file, err, printed)
		}
		if again.Legacy {
			t.Errorf("%s: the translation is taken for a legacy file", file)
		}
		for i, p := range first.Profiles {
			q := again.Profiles[i]
			if diff := cmp.Diff([]any{p.SchedulerName, p.At, p.Weights, p.Preemption}, []any{q.SchedulerName, q.At, q.Weights, q.Preemption}); diff != "" {
				t.Errorf("%s (-read +read again)\n%s", file, diff)
			}
		}
		if diff := cmp.Diff(first.Spec, again.Spec, cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Raw" || p.Last().String() == ".TypeMeta" }, cmp.Ignore())); diff != "" {
			t.Errorf("%s: (-read +read again)\n%s", file, diff)
		}
	}
}

func TestAPolicyCanComeFromAConfigMap(t *testing.T) {
	file := []byte("apiVersion: kubescheduler.config.k8s.io/v1alpha1\nkind: KubeSchedulerConfiguration\nalgorithmSource: {policy: {configMap: {namespace: kube-system, name: p}}}")
	options := Options{PolicyFromConfigMap: func(namespace, name string) ([]byte, error) {
		return []byte(`{"kind":"Policy","apiVersion":"v1","priorities":[]}`), nil
	}}
	c, err := Parse("sched.yaml", file, options)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(c.Profiles[0].Scorers); n != 0 {
		t.Errorf("%d scorers, want none", n)
	}
	_, err = Parse("sched.yaml", file, Options{})
	want := "sched.yaml: algorithmSource.policy.configMap: there is no cluster to get a ConfigMap from; give the policy as a file"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestNumericTolerationsCountWhereSwitchedOn(t *testing.T) {
	for _, on := range []bool{false, true} {
		c, err := Default(Options{CompareTolerations: on})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range c.Profiles[0].Filters {
			if plugin, ok := f.(*plugins.TaintToleration); ok && plugin.Compare != on {
				t.Errorf("switched on: %t, counts: %t", on, plugin.Compare)
			}
			if plugin, ok := f.(*plugins.PodTopologySpread); ok && plugin.Compare != on {
				t.Errorf("switched on: %t, counts for spreading: %t", on, plugin.Compare)
			}
		}
	}
}

// TestVolumeFeaturesCanBeSwitchedOff verifies that the options disable the scores for free storage,
// and the check for CSI drivers.
func TestVolumeFeaturesCanBeSwitchedOff(t *testing.T) {
	for _, off := range []bool{false, true} {
		c, err := Default(Options{WithoutStorageScores: off, AllowMissingDrivers: off})
		if err != nil {
			t.Fatal(err)
		}

		p := c.Profiles[0]
		if scores := slices.ContainsFunc(p.Scorers, func(s plugins.Weighted) bool { return s.Name() == "VolumeBinding" }); scores == off {
			t.Errorf("off %t: VolumeBinding scores %t", off, scores)
		}
		for _, f := range p.Filters {
			if limits, ok := f.(*plugins.NodeVolumeLimits); ok && limits.AllowMissing != off {
				t.Errorf("off %t: drivers may be missing %t", off, limits.AllowMissing)
			}
		}
	}
}

func TestArgumentsOfPluginsFromOutsideAreKept(t *testing.T) {
	c, err := Parse("sched.yaml", []byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins: {multiPoint: {enabled: [{name: MyPlugin}]}}
  pluginConfig: [{name: MyPlugin, args: {color: red}}]
`), outside)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(c.Spec.Profiles[0].PluginConfig[0].Args.Raw); got != `{"color":"red"}` {
		t.Errorf("got %q", got)
	}
}

func TestExtendersAreRead(t *testing.T) {
	for file, timeout := range map[string]time.Duration{"good/extenders.yaml": 5 * time.Second, "legacy/extender.json": 100 * time.Millisecond} {
		c, err := Load("testdata/"+file, outside)
		if err != nil {
			t.Fatal(err)
		}
		first := c.Spec.Extenders[0]
		if first.HTTPTimeout.Duration != timeout || first.Weight != 5 || !first.NodeCacheCapable || first.FilterVerb != "filter" {
			t.Errorf("%s: %+v", file, first)
		}
		args := fitArgs(&c.Spec.Profiles[0])
		if want := []string{"example.com/foo"}; !slices.Equal(args.IgnoredResources, want) {
			t.Errorf("%s: NodeResourcesFit ignores %v, want %v: an extender looks after it", file, args.IgnoredResources, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/legacy/*", "testdata/good/*", "testdata/bad/*"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("testdata/fuzz.yaml", data, outside)
		if err != nil {
			if strings.Contains(err.Error(), "\n") && !strings.Contains(string(data), "\n") {
				t.Errorf("an error of several lines: %q", err)
			}
			return
		}
		printed, err := c.YAML()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Parse("testdata/again.yaml", printed, outside); err != nil {
			t.Fatalf("%v in\n%s", err, printed)
		}
	})
}
