package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Whatever is different in a tree, its sum is; where it lies and what git does is not of the tree.
func TestASumIsOfWhatTestsMayUse(t *testing.T) {
	tree := func(files map[string]string) string {
		root := t.TempDir()
		for path, text := range files {
			path = filepath.Join(root, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		of, err := sum(root)
		if err != nil {
			t.Fatal(err)
		}
		return of
	}
	this := tree(map[string]string{"README.md": "text", "bin/berth": "code"})
	for name, same := range map[string]map[string]string{
		"elsewhere":         {"README.md": "text", "bin/berth": "code"},
		"with git":          {"README.md": "text", "bin/berth": "code", ".git/index": "1"},
		"of a git worktree": {"README.md": "text", "bin/berth": "code", ".git": "gitdir: /somewhere"},
	} {
		if tree(same) != this {
			t.Errorf("%s: another sum", name)
		}
	}
	for name, other := range map[string]map[string]string{
		"built anew":      {"README.md": "text", "bin/berth": "edoc"},
		"a changed text":  {"README.md": "texts", "bin/berth": "code"},
		"a file more":     {"README.md": "text", "bin/berth": "code", "x": ""},
		"another name":    {"README": "text", "bin/berth": "code"},
		"a moved content": {"README.md": "code", "bin/berth": "text"},
	} {
		if tree(other) == this {
			t.Errorf("%s: the same sum", name)
		}
	}
}
