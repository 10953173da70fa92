// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// named holds the plugins used as examples in the documentation.
var named = map[string]plugins.Point{
	"MyPlugin":        plugins.PreFilter | plugins.Filters | plugins.PreScore | plugins.Score,
	"MyCustomPluginA": plugins.Score, "MyCustomPluginB": plugins.Score,
	"CustomQueueSort": plugins.QueueSort,
	"CustomPlugin1":   plugins.Filters | plugins.Score, "CustomPlugin2": plugins.Filters | plugins.Score,
}

// TestConfigurationsOfTheDocumentation verifies the differences between the default profile and the
// profiles in the files shown in Kubernetes' documentation.
func TestConfigurationsOfTheDocumentation(t *testing.T) {
	shown := map[string]bool{}
	datadriven.RunTest(t, filepath.Join("testdata", "documented.txt"), func(t *testing.T, d *datadriven.TestData) string {
		file := filepath.Join("testdata", "documented", d.CmdArgs[0].Key)
		shown[file] = true
		f := parse(t, "--config", file)
		source := f.Source()
		data, err := source.Read()
		if err != nil {
			return err.Error()
		}
		c, err := source.Parse(data, config.Options{Outside: named})
		if err != nil {
			return err.Error()
		}
		s, err := f.Settings(c, data)
		if err != nil {
			return err.Error()
		}
		return describe(c, s)
	})
	files, err := filepath.Glob("testdata/documented/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if !shown[file] {
			t.Errorf("%s is in no case", file)
		}
	}
}

func describe(c *config.Config, s Settings) string {
	usual := plugins.Default()
	var b strings.Builder
	for _, p := range c.Profiles {
		fmt.Fprintf(&b, "profile %s\n", p.SchedulerName)
		for _, point := range plugins.AllPoints {
			if got, want := strings.Join(p.At[point], " "), strings.Join(usual.At[point], " "); got != want {
				fmt.Fprintf(&b, "  %s: %s\n", point, cmp.Or(got, "none"))
			}
		}
		for i := range c.Spec.Profiles {
			if profile := &c.Spec.Profiles[i]; *profile.SchedulerName == p.SchedulerName {
				for _, args := range profile.PluginConfig {
					fmt.Fprintf(&b, "  arguments of %s\n", args.Name)
				}
			}
		}
	}
	if s.Cluster.Kubeconfig != "" {
		fmt.Fprintf(&b, "kubeconfig %s\n", s.Cluster.Kubeconfig)
	}
	if !s.Lead.Elect {
		fmt.Fprintln(&b, "no leader election")
	}
	for _, note := range c.Notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	return b.String()
}
