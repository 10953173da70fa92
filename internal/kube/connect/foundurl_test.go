// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAnAddressThatIsOnlyFoundIsOnThisMachine verifies that addresses of other machines are
// refused: a cloned repository may contain a file with the address of a foreign scheduler.
func TestAnAddressThatIsOnlyFoundIsOnThisMachine(t *testing.T) {
	for _, c := range []struct {
		name, text string
		mode       os.FileMode
		url, fault string
	}{
		{"as berth up writes it", "https://127.0.0.1:1\nhttp://127.0.0.1:2\n", 0o600, "http://127.0.0.1:2", ""},
		{"by name", "http://localhost:2", 0o600, "http://localhost:2", ""},
		{"over HTTPS only", "https://127.0.0.1:1", 0o600, "", ""},
		{"another host", "http://example.com:80", 0o600, "", "not on this machine"},
		{"a name that begins like this machine", "http://127.0.0.1.example.com", 0o600, "", "not on this machine"},
		{"behind a user", "http://127.0.0.1@example.com", 0o600, "", "not on this machine"},
		{"written by others", "http://127.0.0.1:2", 0o666, "", "gives others access"},
	} {
		path := filepath.Join(t.TempDir(), "scheduler.url")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		url, err := FoundURL(path)
		if url != c.url || (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%s: %q, %v; want %q, %q", c.name, url, err, c.url, c.fault)
		}
	}
	if url, err := FoundURL(filepath.Join(t.TempDir(), "none")); url != "" || err != nil {
		t.Errorf("no file: %q, %v", url, err)
	}
}
