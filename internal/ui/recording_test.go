// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestARecordingIsAskedAboutItsTime(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "sessions/a"), 0o700); err != nil {
		t.Fatal(err)
	}
	web, err := json.Marshal(pod("web-1", "node-1"))
	if err != nil {
		t.Fatal(err)
	}
	machine, err := json.Marshal(node("node-1"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"recording.index":       `{"apiVersion":"berth.dev/v1alpha1","kind":"Recording","sessions":[{"folder":"sessions/a","began":"2026-11-20T12:00:00.000000Z","until":"2026-11-20T12:10:00.000000Z","missing":["daemonsets: forbidden"]}]}`,
		"sessions/a/nodes.json": `{"items":[` + string(machine) + `]}`, "sessions/a/pods.json": `{"items":[]}`,
		"sessions/a/changes-000001.jsonl": `{"at":"2026-11-20T12:05:00.000000Z","type":"Set","object":` + string(web) + "}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Listen(nil, Options{Address: "127.0.0.1:0", Running: byDefault, Parse: parseFew, Recording: dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	const before, after = "1795175940000", "1795176540000" // 11:59, before the beginning, and 12:09
	if status, body := ask(t, s, "GET", "api/about", ""); status != http.StatusOK || !strings.Contains(body, `"recording":{"from":1795176000000,"until":1795176600000}`) {
		t.Fatalf("%d %s", status, body)
	}
	for at, pods := range map[string]int{before: 0, after: 1, "": 1} {
		if status, body := ask(t, s, "GET", "api/state?at="+at, ""); status != http.StatusOK || !strings.Contains(body, fmt.Sprintf(`"pods":%d,`, pods)) {
			t.Errorf("at %q: %d %s", at, status, body)
		}
	}
	if status, body := ask(t, s, "GET", "api/nodes/node-1?at="+before, ""); status != http.StatusOK || strings.Contains(body, "web-1") {
		t.Errorf("the node before: %d %s", status, body)
	}
	if status, body := ask(t, s, "GET", "api/find?q=web&at="+after, ""); status != http.StatusOK || !strings.Contains(body, "web-1") {
		t.Errorf("found: %d %s", status, body)
	}
	for _, asOf := range []string{"", `, "asOf": "2026-11-20T12:09:00Z"`} {
		if status, body := ask(t, s, "POST", explainPath, `{"name": "web-1"`+asOf+`}`); status != http.StatusOK || !strings.Contains(body, `"state":"Placed"`) ||
			!strings.Contains(body, `"limits":["daemonsets: forbidden"]`) {
			t.Errorf("explained: %d %s", status, body)
		}
		if status, body := ask(t, s, "POST", whatIfPath, `{"operations": ["cordon", "node-1"]`+asOf+`}`); status != http.StatusOK || !strings.Contains(body, `"cordoned":true`) ||
			!strings.Contains(body, `"pods":{"requested":"1","allocatable":"10"}`) {
			t.Errorf("a forecast: %d %s", status, body)
		}
	}
	const early = `{"name": "web-1", "like": "pod/web-1", "asOf": "2026-11-20T12:01:00Z"}`
	if status, body := ask(t, s, "POST", explainPath, early); status != http.StatusNotFound {
		t.Errorf("explained before it was there: %d %s", status, body)
	}
	if status, body := ask(t, s, "POST", "berth.v1alpha1.QueryService/Fits", early); status != http.StatusBadRequest || !strings.Contains(body, "no such object") {
		t.Errorf("more of them before it was there: %d %s", status, body)
	}
}
