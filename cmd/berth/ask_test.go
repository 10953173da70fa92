// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-k8s/berth/internal/answer"
)

// TestQuestions runs the text files of questions. The commands:
//
//	file NAME   writes a file
//	berth       runs a command line in the folder of the files and prints a non-zero exit code;
//	            width=N simulates a terminal of N columns
func TestQuestions(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no questions: %v", err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) { askAll(t, path) })
	}
}

func askAll(t *testing.T, path string) {
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	t.Setenv("KUBECONFIG", "/nowhere")
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd == "file" {
			name := d.CmdArgs[0].Key
			if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(d.Input), 0o600); err != nil {
				t.Fatal(err)
			}
			return ""
		}
		var out, errs bytes.Buffer
		screen := answer.Terminal{Writer: &out}
		d.MaybeScanArgs(t, "width", &screen.Width)
		code := runCommand(context.Background(), append([]string{d.Cmd}, strings.Fields(d.Input)...), screen, &errs)
		for line := range strings.Lines(out.String()) {
			command := strings.HasPrefix(strings.TrimSpace(line), "kubectl ") // a kubectl command stays on one line, to be copied
			if screen.Width > 0 && !command && utf8.RuneCountInString(line) > screen.Width+1 {
				t.Errorf("%s: %s: wider than %d columns: %s", d.Pos, d.Input, screen.Width, line)
			}
		}
		if screen.Width > 0 {
			for _, sentence := range twice(out.String()) {
				t.Errorf("%s: %s: written twice: %s", d.Pos, d.Input, sentence)
			}
		}
		text := out.String() + errs.String()
		if code != 0 {
			text += fmt.Sprintf("exit code %d\n", code)
		}
		return strings.ReplaceAll(text, "\n\n", "\n.\n") // a blank line would end the answer
	})
}

// twice lists repeated sentences of more than four words, ignoring line breaks.
func twice(answer string) (list []string) {
	seen := map[string]bool{}
	for paragraph := range strings.SplitSeq(answer, "\n\n") {
		text := strings.Join(strings.Fields(paragraph), " ")
		for sentence := range strings.SplitSeq(text, ". ") {
			sentence = strings.TrimSuffix(sentence, ".")
			if seen[sentence] && strings.Count(sentence, " ") > 3 {
				list = append(list, sentence)
			}
			seen[sentence] = true
		}
	}
	return list
}

func TestAnswersAreMachineReadable(t *testing.T) {
	town := file(t, "town.yaml", smallTown)
	for _, args := range []string{"explain pod/big", "explain pod/small --node node-1", "what-if drain node/node-1 --force", "what-if add-pods --max --like pod/big"} {
		for _, format := range []string{"json", "yaml"} {
			code, out, errs := command(t, append(strings.Fields(args), "-f", town, "-o", format)...)
			if code != 0 {
				t.Errorf("%s: exit code %d, %s", args, code, errs)
			}
			if format == "yaml" {
				continue
			}
			var answer struct{ APIVersion, Kind string }
			if err := json.Unmarshal([]byte(out), &answer); err != nil || answer.APIVersion != "berth.dev/v1alpha1" || answer.Kind == "" {
				t.Errorf("%s: %v in\n%s", args, err, out)
			}
		}
	}
}

// TestASchedulerThatDoesNotAnswerIsAskedOnce verifies that an unresponsive scheduler is queried
// only once for any number of pods.
func TestASchedulerThatDoesNotAnswerIsAskedOnce(t *testing.T) {
	town := file(t, "town.yaml", smallTown)
	code, _, errs := command(t, "explain", "-l", "!none", "-f", town, "--scheduler-url", "http://127.0.0.1:1")
	if times := strings.Count(errs, "not asked: the scheduler"); code != 0 || times != 1 {
		t.Errorf("exit code %d, %d times:\n%s", code, times, errs)
	}
}

// TestAForecastHeedsTheTimeoutOfDrains verifies that the drain timeout also applies to nodes
// selected by --choose.
func TestAForecastHeedsTheTimeoutOfDrains(t *testing.T) {
	for _, words := range []string{"drain node/n --timeout 10s", "drain --choose 2 --timeout 10s"} {
		_, steps, err := (&forecast{}).parse(strings.Fields(words), "")
		if err != nil {
			t.Fatal(err)
		}
		drain := steps[0].Drain
		if steps[0].Operation != nil {
			drain = steps[0].Operation.Drain
		}
		if drain.Timeout == nil || drain.Timeout.Duration != 10*time.Second {
			t.Errorf("%s: %v", words, drain.Timeout)
		}
	}
}

// TestAForecastRepeatsItsOperations verifies that the heading of a forecast has its operations as
// entered.
func TestAForecastRepeatsItsOperations(t *testing.T) {
	for _, words := range []string{"drain node-1 --force=false --ignore-daemonsets", "taint node-1 key=value:NoExecute", "scale deployment/web --replicas 3"} {
		_, steps, err := (&forecast{}).parse(strings.Fields(words), "")
		if err != nil || len(steps) != 1 || steps[0].Words != words {
			t.Errorf("%s: %+v, %v", words, steps, err)
		}
	}
}
