// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package owned

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOnlyWhatIsOnesOwnAndNobodyElseMayChangeIsTrusted(t *testing.T) {
	me := os.Geteuid()
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		uid  int
		mode os.FileMode
		path string
		want string
	}{
		{"mine", me, 0o600, file, ""},
		{"mine, by a link", me, 0o600, link, ""},
		{"somebody's", me + 1, 0o600, file, "belongs to user"},
		{"somebody's link", me + 1, 0o600, link, "belongs to user"},
		{"written by the group", me, 0o620, file, "has mode 0620, which gives others access (chmod 0600)"},
		{"written by all, by a link", me, 0o602, link, "has mode 0602"},
		{"read by others", me, 0o644, file, ""},
	} {
		if err := os.Chmod(file, c.mode); err != nil {
			t.Fatal(err)
		}
		err := CheckFor(c.uid, c.path, Writable)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Check(file, Accessible); err == nil {
		t.Error("a secret that others may read is trusted")
	}
}
