// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
)

// TestAFolderThatWasHandedOverReachesNoHost verifies that a kustomization, which may reference any
// host, does not cause a connection.
func TestAFolderThatWasHandedOverReachesNoHost(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte("apiVersion: v1\nkind: Node\nmetadata: {name: n}\n"))
	}))
	defer server.Close()
	called := filepath.Join(t.TempDir(), "called")
	programs := t.TempDir() // a git that reports its calls
	if err := os.WriteFile(filepath.Join(programs, "git"), []byte("#!/bin/sh\n: > "+called+"\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))

	for name, resource := range map[string]string{
		"HTTP": server.URL + "/node.yaml", "git": "https://example.invalid/a/b.git?ref=v1", "ssh": "git@example.invalid:a/b.git", "a local repository": "file:///tmp/a.git",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte("resources: [\""+resource+"\"]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, _, errs := command(t, "simulate", "-k", dir); code == 0 || !strings.Contains(errs, "--fetch") {
			t.Errorf("%s: exit code %d: %s", name, code, errs)
		}
		if _, err := os.Stat(called); err == nil || asked.Load() > 0 {
			t.Errorf("%s: git was called (%v), or the server asked %d times", name, err == nil, asked.Load())
		}
		if name == "HTTP" {
			if code, _, errs := command(t, "simulate", "-k", dir, "--fetch"); code != 0 || asked.Load() == 0 {
				t.Errorf("with --fetch: exit code %d, asked %d times: %s", code, asked.Load(), errs)
			}
			asked.Store(0)
		}
	}
}

// TestFoldersThatWereHandedOverEnd verifies that a link to a device or a FIFO in a folder of
// manifests or of a recording is rejected instead of read forever.
func TestFoldersThatWereHandedOverEnd(t *testing.T) {
	for name, arguments := range map[string][]string{"a.yaml": {"simulate", "-f"}, "resource.yaml": {"simulate", "-k"}, "recording.json": {"pending", "-f"}} {
		for _, device := range []bool{true, false} {
			dir := t.TempDir()
			at, err := filepath.Join(dir, name), error(nil)
			if device {
				err = os.Symlink("/dev/zero", at)
			} else {
				err = syscall.Mkfifo(at, 0o600)
			}
			if name == "resource.yaml" && err == nil {
				err = os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte("resources: [resource.yaml]\n"), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			if code, _, errs := command(t, append(arguments, dir)...); code == 0 {
				t.Errorf("%s, a device: %t: exit code 0: %s", name, device, errs)
			}
		}
	}
}
