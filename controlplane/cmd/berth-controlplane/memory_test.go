// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

func TestMemoryLimit(t *testing.T) {
	for given, want := range map[string]int64{"4Gi": 4 << 30, "1M": 1e6} {
		if got, err := memoryLimit(given); got != want || err != nil {
			t.Errorf("%s: %d, %v", given, got, err)
		}
	}
	for _, given := range []string{"-1", "0", "much"} {
		if _, err := memoryLimit(given); err == nil {
			t.Errorf("%s is accepted", given)
		}
	}
	if got, err := memoryLimit(""); got <= 0 || got > mostMemory || err != nil {
		t.Errorf("by default: %d, %v", got, err)
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(3 << 30))
	if got, err := memoryLimit(""); got != 3<<30 || err != nil {
		t.Errorf("with GOMEMLIMIT: %d, %v", got, err)
	}
}

// TestTooMuchMemoryIsAClearEnd verifies that a process exceeding the limit ends with the reason and
// the remedy.
func TestTooMuchMemoryIsAClearEnd(t *testing.T) {
	defer debug.SetMemoryLimit(math.MaxInt64)
	hold := make([]byte, 64<<20)
	for i := 0; i < len(hold); i += 4096 {
		hold[i] = 1
	}
	text := ""
	watchMemory(context.Background(), 32<<20, func(err error) { text = err.Error() })
	runtime.KeepAlive(hold)
	if !strings.Contains(text, "the limit is 32 MiB") || !strings.Contains(text, "GOMEMLIMIT") {
		t.Errorf("it says %q", text)
	}
}

// TestAControlGroupIsTheMachine verifies that groupMemory returns a container's limit. If the
// process relied on the machine's memory, the kernel would kill it without an explanation.
func TestAControlGroupIsTheMachine(t *testing.T) {
	const none = 2 * mostMemory
	for name, test := range map[string]struct {
		groups string
		files  map[string]string
		want   int64
	}{
		"version 2":              {"0::/pod/one\n", map[string]string{"pod/one/memory.max": "1073741824\n"}, 1 << 30},
		"version 2, its parent":  {"0::/pod/one\n", map[string]string{"pod/one/memory.max": "max\n", "pod/memory.max": "2147483648\n"}, 2 << 30},
		"version 2, a container": {"0::/\n", map[string]string{"memory.max": "1073741824\n"}, 1 << 30},
		"version 1":              {"9:cpu:/a\n4:memory:/a\n", map[string]string{"memory/a/memory.limit_in_bytes": "536870912\n"}, 1 << 29},
		"version 1, no limit":    {"4:memory:/\n", map[string]string{"memory/memory.limit_in_bytes": "9223372036854771712\n"}, none},
		"none":                   {"", nil, none},
	} {
		dir := t.TempDir()
		groups := filepath.Join(dir, "groups")
		write := func(path, text string) {
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		write(groups, test.groups)
		for file, text := range test.files {
			write(filepath.Join(dir, file), text)
		}
		if got := groupMemory(groups, dir); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}
