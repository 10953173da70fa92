// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/inspect/snapshot/apitest"
)

// TestHelpFitsTheTerminal verifies that help is wrapped at the terminal's width or at 100 columns,
// except for examples, which are meant to be copied, and kubectl's own help.
func TestHelpFitsTheTerminal(t *testing.T) {
	neutral(t)
	var commands [][]string
	var list func(cmd *cobra.Command, path []string)
	list = func(cmd *cobra.Command, path []string) {
		for _, sub := range cmd.Commands() {
			if sub.Name() != "kubectl" {
				list(sub, append(path[:len(path):len(path)], sub.Name()))
			}
		}
		commands = append(commands, path)
	}
	root := newRoot("berth")
	list(root, nil)

	for _, path := range commands {
		for _, width := range []int{0, 90, 130} {
			var out bytes.Buffer
			if code := runCommand(context.Background(), append(append([]string{"berth"}, path...), "--help"),
				answer.Terminal{Writer: &out, Width: width}, &out); code != 0 {
				t.Fatalf("%q: %d: %s", path, code, &out)
			}
			most := width
			if width == 0 {
				most = 100
			}
			wide := 0
			for line := range strings.Lines(out.String()) {
				n := utf8.RuneCountInString(strings.TrimRight(line, "\n"))
				if wide = max(wide, n); n > most && !strings.HasPrefix(line, "  berth ") && strings.Contains(strings.TrimSpace(line), " ") {
					t.Errorf("%q: %d of %d columns: %s", path, n, most, line)
				}
			}
			cmd, _, _ := root.Find(path)
			cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
				if !f.Hidden && !strings.Contains(out.String(), " --"+f.Name+" ") {
					t.Errorf("%q: no --%s", path, f.Name)
				}
			})
			if width == 130 && len(path) > 0 && path[0] == "scheduler" && wide < 110 {
				t.Errorf("%q: at most %d of %d columns are used", path, wide, width)
			}
		}
	}
}

// TestAnswersAreNotMixedWithLogs verifies that the output excludes logs of client-go, such as the
// API server's warnings.
func TestAnswersAreNotMixedWithLogs(t *testing.T) {
	api := apitest.New(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Warning", `299 - "this is deprecated"`)
		api.ServeHTTP(w, r)
	}))
	defer server.Close()
	config := file(t, "kubeconfig", fmt.Sprintf(
		"{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: c}}], clusters: [{name: c, cluster: {server: %q}}]}", server.URL))
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"pending -A", "survey fragmentation", "check"} {
		cmd := exec.Command(program, append(strings.Fields(words), "--kubeconfig", config)...)
		cmd.Env = append(os.Environ(), asCommand+"=1")
		if text, _ := cmd.CombinedOutput(); strings.Contains(string(text), "deprecated") || len(text) == 0 {
			t.Errorf("%s: %s", words, text)
		}
	}
}
