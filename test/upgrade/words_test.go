// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package upgrade

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestUpgradeKeepsCommandsAndFlags verifies that this version accepts all commands and flags of the
// old version, including deprecated ones.
func TestUpgradeKeepsCommandsAndFlags(t *testing.T) {
	t.Parallel()
	v := both(t)
	before, now := map[string][]string{}, map[string][]string{}
	learn(t, v.old, nil, before)
	learn(t, v.new, nil, now)
	if len(before) < 2 || len(before["scheduler"]) == 0 {
		t.Fatalf("of the old version only this is known: %v", before)
	}
	for command, flags := range before {
		has, known := now[command]
		if !known {
			t.Errorf("there is no berth %s any more", command)
			continue
		}
		for _, flag := range flags {
			if !slices.Contains(has, flag) {
				t.Errorf("berth %s does not take %s any more", command, flag)
			}
		}
	}
	t.Logf("%d commands of before, %d now", len(before), len(now))
}

var (
	flagLine    = regexp.MustCompile(`(?m)^ +(?:-\w, )?(--[a-z][\w-]*)`)
	commandLine = regexp.MustCompile(`^  ([a-z][a-z-]*)  +\S`)
)

// learn records the flags of a command and its subcommands, as listed by --help.
func learn(t *testing.T, folder string, path []string, to map[string][]string) {
	t.Helper()
	help := run(t, folder, append(slices.Clone(path), "--help")...)
	_, usage, _ := strings.Cut(help, "\nUsage:\n")
	name := strings.Join(path, " ")
	to[name] = []string{}
	for _, found := range flagLine.FindAllStringSubmatch(usage, -1) {
		to[name] = append(to[name], found[1])
	}
	for _, block := range strings.Split(usage, "\n\n") {
		title, rest, _ := strings.Cut(strings.TrimPrefix(block, "\n"), "\n")
		if strings.Contains(title, "Flags") || title == "Examples:" || !strings.HasSuffix(title, ":") {
			continue
		}
		for line := range strings.Lines(rest) {
			// The subcommands of berth kubectl belong to kubectl.
			if found := commandLine.FindStringSubmatch(line); found != nil && found[1] != "kubectl" && found[1] != "help" {
				learn(t, folder, append(slices.Clone(path), found[1]), to)
			}
		}
	}
}

// TestUpgradeReadsConfiguration verifies that this version accepts every configuration of the old
// version with the same meaning and, for features known to both, vice versa.
func TestUpgradeReadsConfiguration(t *testing.T) {
	t.Parallel()
	v := both(t)
	files, err := filepath.Glob("../../internal/*/*/testdata/good/*")
	if err != nil || len(files) == 0 {
		t.Fatalf("no configuration files: %v", err)
	}
	written := filepath.Join(t.TempDir(), "written.yaml")
	run(t, v.old, "scheduler", "--write-config-to", written)
	read := 0
	for _, file := range append(files, written) {
		before, err := try(t, v.old, "scheduler", "--config", file, "--write-config-to", "-")
		if err != nil {
			continue // the file uses later features
		}
		read++
		now, err := try(t, v.new, "scheduler", "--config", file, "--write-config-to", "-")
		if err != nil {
			t.Errorf("%s is not taken any more: %v", file, err)
			continue
		}
		if now != before {
			t.Errorf("%s means something else now:\n%s\nbefore:\n%s", file, now, before)
		}
		again := filepath.Join(t.TempDir(), "now.yaml")
		if err := os.WriteFile(again, []byte(now), 0o600); err != nil {
			t.Fatal(err)
		}
		if back, err := try(t, v.old, "scheduler", "--config", again, "--write-config-to", "-"); err != nil || back != before {
			t.Errorf("%s, as this version writes it, is not the same to the old one: %v\n%s", file, err, back)
		}
	}
	if read < len(files)/2 {
		t.Errorf("the old version reads %d of %d files: the test looks for nothing", read, len(files))
	}
	t.Logf("%d of %d configurations are read by both", read, len(files)+1)
}
