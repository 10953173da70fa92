// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// passed holds the packages that passed in the present state of the tree. It replaces the cache of
// go test for packages that run programs and read documents of other modules: these results are
// valid until any file of the tree changes.
type passed struct {
	mu    sync.Mutex
	path  string
	State string   `json:"state"` // "" if it cannot be determined: nothing is remembered then
	Names []string `json:"packages"`
}

// readPassed reads the packages that passed in this state from a file in bin.
func readPassed(o options) *passed {
	p := &passed{path: filepath.Join(o.root, "bin", "passed.json")}
	state, err := stateOf(o)
	if err != nil {
		return p
	}
	if text, err := os.ReadFile(p.path); err != nil || json.Unmarshal(text, p) != nil || p.State != state {
		p.State, p.Names = state, nil
	}
	return p
}

// stateOf returns a hash of all files that git tracks or would add, and of what the tests find on
// this machine.
func stateOf(o options) (string, error) {
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = o.root
	names, err := list.Output()
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for name := range strings.SplitSeq(string(names), "\x00") {
		text, err := os.ReadFile(filepath.Join(o.root, name))
		if err != nil && name != "" && !errors.Is(err, fs.ErrNotExist) { // deleted, but not yet in git
			return "", err
		}
		fmt.Fprintf(hash, "%q %d\n%s", name, len(text), text)
	}
	missing, err := exec.Command(filepath.Join(o.root, "hack", "announce.sh")).Output()
	fmt.Fprintf(hash, "%s %t %d %s %q %q", missing, o.long, os.Getuid(), runtime.Version(), os.Getenv("GOFLAGS"), os.Getenv("BERTH_INSTALL"))
	return fmt.Sprintf("%x", hash.Sum(nil)), err
}

func (p *passed) has(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.State != "" && slices.Contains(p.Names, name)
}

// add remembers a package. An unwritable file only means that the package runs again.
func (p *passed) add(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.State == "" || slices.Contains(p.Names, name) {
		return
	}
	p.Names = append(p.Names, name)
	if text, err := json.Marshal(p); err == nil {
		_ = os.WriteFile(p.path, text, 0o600)
	}
}

// without returns the command without the packages that passed, and these packages. The command has
// no words if all of them passed.
func (p *passed) without(c command, root string) (command, []string, error) {
	at := slices.IndexFunc(c.words, func(word string) bool { return strings.HasPrefix(word, "./") })
	list := exec.Command("go", append([]string{"list"}, c.words[at:]...)...)
	list.Dir = filepath.Join(root, c.folder)
	out, err := list.Output()
	if err != nil {
		return c, nil, fmt.Errorf("go list in %s: %w", c.folder, err)
	}
	var before, left []string
	for name := range strings.FieldsSeq(string(out)) {
		if p.has(name) {
			before = append(before, name)
		} else {
			left = append(left, name)
		}
	}
	if c.words = slices.Concat(c.words[:at], left); len(left) == 0 {
		c.words = nil
	}
	return c, before, nil
}
