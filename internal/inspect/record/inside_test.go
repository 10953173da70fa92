// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestNothingOutsideOfARecordingIsTouched verifies that files outside of a received recording are
// not read, written or removed through links in it.
func TestNothingOutsideOfARecordingIsTouched(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	session := filepath.Join(outside, sessionName(time.Unix(1e9, 0)))
	if err := os.Mkdir(session, 0o700); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(session, "secret.json")
	for _, path := range []string{secret, filepath.Join(session, writingPrefix+"1"), filepath.Join(outside, "lock-target")} {
		if err := os.WriteFile(path, []byte(`{"items":[{"kind":"Secret"}]}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to, name string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link(outside, sessionsFolder)
	link(secret, "pods.json")
	link(filepath.Join(outside, "new"), "nodes.json")

	folder := filepath.Join(sessionsFolder, filepath.Base(session))
	if err := removeInside(dir, folder); err == nil {
		t.Error("a folder outside was removed")
	}
	if got := listSessions(dir); len(got) > 0 {
		t.Errorf("sessions outside are listed: %v", got)
	}
	if err := readList(dir, "pods.json", func(text []byte) error { t.Errorf("read %s", text); return nil }); err == nil {
		t.Error("a list outside was read")
	}
	if err := replaySession(dir, folder, time.Now(), func(*Change) error { return nil }); err == nil {
		t.Error("changes outside were read")
	}
	if err := writeList(dir, filepath.Join(folder, "pods.json"), []json.RawMessage{[]byte("{}")}); err == nil {
		t.Error("a list outside was written")
	}
	if err := replaceFile(dir, "nodes.json", func(w *bufio.Writer) error { _, err := w.WriteString("{}"); return err }); err != nil {
		t.Errorf("a link is replaced by a file: %v", err)
	}
	c := &changes{dir: dir, name: filepath.Join(folder, "changes-000001.jsonl")}
	if err := c.addChange(&Change{}); err == nil {
		t.Error("changes outside were written")
	}
	removeLeftovers(dir)

	index := `{"apiVersion":"berth.dev/v1alpha1","kind":"Recording","sessions":[{"folder":"` + folder + `","began":"2001-09-09T01:46:40.000000Z","until":"2001-09-09T02:46:40.000000Z"}]}`
	if err := os.WriteFile(filepath.Join(dir, IndexFile), []byte(index), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := At(dir, time.Unix(1e9+60, 0)); err == nil || !strings.Contains(err.Error(), "escapes") {
		t.Errorf("a session outside is shown: %v", err)
	}
	if err := os.Symlink(filepath.Join(outside, "created"), filepath.Join(dir, lockFile)); err != nil {
		t.Fatal(err)
	}
	if release, err := claimFolder(dir); err == nil {
		release()
		t.Error("a lock outside was taken")
	}

	var there []string
	_ = filepath.WalkDir(outside, func(path string, e os.DirEntry, _ error) error {
		if !e.IsDir() {
			there = append(there, e.Name())
		}
		return nil
	})
	if len(there) != 3 {
		t.Errorf("outside are now %v", there)
	}
}
