// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/test/internal/nightly"
)

var reloadFlips = flag.Int("reload-flips", 4, "how often TestConfigurationChangedUnderLoad changes the file; the long form is -reload-flips 20")

// reloadConfig returns a configuration with a profile for each scheduler name. If broken is set,
// the configuration is invalid.
func reloadConfig(broken bool, names ...string) string {
	var b strings.Builder
	b.WriteString("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nleaderElection: {resourceName: reload}\nprofiles:\n")
	for _, name := range names {
		fmt.Fprintf(&b, "- schedulerName: %s\n", name)
	}
	if broken {
		b.WriteString("  plugins: {score: {enabled: [{name: NoSuchPlugin}]}}\n")
	}
	return b.String()
}

// TestConfigurationChangedUnderLoad verifies that, while pods are created, valid changes to the
// configuration take effect, invalid changes are reported and ignored, and no pod is lost.
func TestConfigurationChangedUnderLoad(t *testing.T) {
	nightly.Only(t)
	t.Parallel()
	c := start(t, filepath.Join(t.TempDir(), "reload"), "--nodes", "30")
	file := filepath.Join(t.TempDir(), "scheduler.yaml")
	replace := func(content string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	replace(reloadConfig(false, "steady"))
	s := c.schedule(t, "--config", file)
	seen := &witness{nodes: map[types.UID]string{}}
	seen.watch(t, c.client, "steady")
	eventually(t, startWithin, func() error { return s.says("ready") })
	stop := load(t, c.client, "steady", 40)

	var applied, refused float64
	for flip := range *reloadFlips {
		before := s.metric("scheduler_schedule_attempts_total")
		if flip%2 == 0 {
			replace(reloadConfig(true, "steady", "steady"+fmt.Sprint(flip)))
			refused++
		} else {
			replace(reloadConfig(false, "steady", "steady"+fmt.Sprint(flip)))
			applied++
		}
		eventually(t, patience, func() error {
			page := s.page("/metrics")
			for what, n := range map[string]float64{"applied": applied, "refused": refused} {
				if want := fmt.Sprintf("berth_scheduler_config_reloads_total{result=%q} %v\n", what, n); n > 0 && !strings.Contains(page, want) {
					return fmt.Errorf("no %s", want)
				}
			}
			return nil
		})
		eventually(t, patience, func() error {
			if s.metric("scheduler_schedule_attempts_total") < before+10 {
				return fmt.Errorf("no pods are placed after the change")
			}
			return nil
		})
	}
	made := stop()
	allPlaced(t, c.client, "steady", made)

	// The last valid configuration is in effect, as shown by /configz.
	name := "steady" + fmt.Sprint(*reloadFlips-1)
	if page := s.page("/configz"); !strings.Contains(page, name) {
		t.Errorf("/configz does not show %s: %s", name, page)
	}
	loadOf := load(t, c.client, name, 20)
	allPlaced(t, c.client, name, 1)
	loadOf()
	for _, words := range []string{"Configuration refused, the last good one stays in effect", "Configuration applied"} {
		if err := s.says(words); err != nil {
			t.Error(err)
		}
	}
	for reason, words := range map[string]string{"ConfigurationRefused": "is refused, the last good one stays in effect: profiles[1].plugins.score.enabled[0].name", "ConfigurationApplied": "is in effect"} {
		eventually(t, patience, func() error {
			events, err := c.client.CoreV1().Events("kube-system").List(background(), metav1.ListOptions{
				FieldSelector: "involvedObject.kind=Lease,involvedObject.name=reload,reason=" + reason})
			if err != nil {
				return err
			}
			for i := range events.Items {
				if strings.Contains(events.Items[i].Message, words) {
					return nil
				}
			}
			return fmt.Errorf("no event %s with %q among %d", reason, words, len(events.Items))
		})
	}

	// If the file is deleted, the configuration stays in effect.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, func() error { return s.says("no such file or directory") })
	if page := s.page("/readyz"); page != "ok" {
		t.Errorf("/readyz without the file: %s", page)
	}
	if len(seen.broken) > 0 {
		t.Errorf("pods moved: %v", seen.broken)
	}
	t.Logf("%d pods, %d changes", made, *reloadFlips)
}
